"""What commands say besides their result, on stderr: warnings, and progress where somebody watches."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

import click

if TYPE_CHECKING:
    from replicast.sim.planning.replay import Progress


class WarningLike(Protocol):
    """A short code and one sentence."""

    @property
    def code(self) -> str: ...
    @property
    def text(self) -> str: ...


def warn(warnings: Iterable[WarningLike]) -> None:
    """One line each."""
    for warning in warnings:
        click.echo(f"Warning [{warning.code}]: {warning.text}", err=True)


def watched(quiet: bool) -> bool:
    """Whether progress is worth showing."""
    return sys.stderr.isatty() and not quiet


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
