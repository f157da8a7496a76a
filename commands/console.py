"""What commands say besides their result, on stderr: warnings, and progress where somebody watches."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import click

if TYPE_CHECKING:
    from replicast.sim.planning.parallel import Progress as PlanProgress
    from replicast.sim.planning.replay import Progress


class WarningLike(Protocol):
    """A short code and one sentence."""

    @property
    def code(self) -> str: ...
    @property
    def text(self) -> str: ...


class Warned(NamedTuple):
    """One warning."""

    code: str
    text: str


def warn(warnings: Iterable[WarningLike]) -> None:
    """One line each."""
    for warning in warnings:
        click.echo(f"Warning [{warning.code}]: {warning.text}", err=True)


def watched(quiet: bool) -> bool:
    """Whether progress is worth showing."""
    return sys.stderr.isatty() and not quiet


class StatusLine:
    """One line on stderr, written again and again, gone at the end."""

    def __init__(self, quiet: bool) -> None:
        self._shown = watched(quiet)
        self._width = 0

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Leave nothing of it."""
        if self._width:
            click.echo("\r" + " " * self._width + "\r", nl=False, err=True)
            self._width = 0

    def say(self, text: str) -> None:
        """Write `text` over what stands there."""
        if self._shown:
            line = text[:100]
            click.echo("\r" + line.ljust(self._width), nl=False, err=True)
            self._width = max(len(line), self._width)

    def runs(self, now: PlanProgress) -> None:
        """Runs done, runs asked for so far, and the time that is left for those."""
        left_s = now.elapsed_s / now.done * (now.of - now.done)
        self.say(f"{now.done} of {now.of} runs, about {left_s:.0f} s left ({now.what})")


class Bar:
    """One progress bar on stderr over all requests of all runs."""

    def __init__(self, runs: int) -> None:
        self._runs, self._turns, self._at = runs, 0, 0
        self._bar: Any = None

    def start(self, turns: int) -> Progress:
        """Called once the number of requests is known."""
        self._turns = turns
        self._bar = click.progressbar(length=turns * self._runs, label="Simulating", file=sys.stderr)
        self._bar.render_progress()
        return self.advance

    def advance(self, runs_done: int, requests: int) -> None:
        """`requests` of the run under way are finished."""
        now = runs_done * self._turns + requests
        self._bar.update(max(now - self._at, 0))
        self._at = max(now, self._at)

    def end(self) -> None:
        """Leave the terminal as a finished line."""
        if self._bar is not None:
            self._bar.render_finish()
