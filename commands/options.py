"""What the command line accepts beyond click's own types, and options that commands share."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from replicast.commands.console import Warned, warn
from replicast.sim.config import FIELDS, EngineArgs
from replicast.sim.errors import InputError
from replicast.sim.planning.cost import Task, parse_task

if TYPE_CHECKING:
    from replicast.calibration.sweep import Sweep

# Scrapes lie a little inside the load, so that a window may be shorter by as much.
WINDOW_SLACK = 1.05


class Number(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A finite number within bounds; `nan` and `inf` are refused, which click's FloatRange lets pass."""

    name = "number"

    def __init__(
        self, low: float | None = None, *, above: float | None = None, high: float | None = None
    ) -> None:
        self.low, self.above, self.high = low, above, high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number.", param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        if self.low is not None and number < self.low:
            self.fail(f"{value} is below {self.low:g}.", param, ctx)
        if self.above is not None and number <= self.above:
            self.fail(f"{value} is not above {self.above:g}.", param, ctx)
        if self.high is not None and number > self.high:
            self.fail(f"{value} is above {self.high:g}.", param, ctx)
        return number


class ReplicaCounts(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """`1,2,4,8`: replica counts, each once, in the order given."""

    name = "counts"
    most = 10_000

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        counts: dict[int, None] = {}
        for part in str(value).split(","):
            if not (part.strip().isascii() and part.strip().isdecimal()):
                self.fail(f"{part.strip()!r} is not a whole number; write them as 1,2,4,8.", param, ctx)
            count = int(part) if len(part) <= 9 else self.most + 1
            if not 1 <= count <= self.most:
                self.fail(f"{part.strip()[:20]} replicas: must be 1 to {self.most:,}.", param, ctx)
            counts[count] = None
        return tuple(counts)


class TaskTokens(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """`N:M`: prompt and generated tokens of one task."""

    name = "N:M"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Task:
        if isinstance(value, Task):
            return value
        try:
            return parse_task(str(value))
        except InputError as error:
            self.fail(f"{error.what}. {error.remedy}", param, ctx)


class Integers(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """`2,0,3`: whole numbers."""

    name = "list"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers such as 2,0,3.", param, ctx)


class Levels(Integers):
    """`1,2,5,10`: concurrencies, each 1 or more."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        levels = super().convert(value, param, ctx)
        for level in levels:
            if level < 1:
                self.fail(f"{level} sessions: must be 1 or more.", param, ctx)
        return tuple(dict.fromkeys(levels))


FORMATS = ("canonical", "weka", "claude-code", "mooncake")  # as `traces.detect` has them, without its imports

SWEEP_FORMATS = (  # as `calibration.readers.detect` has them, without its imports
    "duckdb-collector", "performance-summary", "prometheus", "sweep-csv", "vllm-bench-serve", "guidellm",
    "aiperf", "requests-csv", "run-summary",
)  # fmt: skip

COUNTS = ReplicaCounts()
LEVELS = Levels()
TASK_TOKENS = TaskTokens()
SECONDS = Number(0)
PATH = click.Path(path_type=Path)

F = TypeVar("F", bound=Callable[..., Any])


def engine_flags(*only: str) -> Callable[[F], F]:
    """One option for each field of `EngineArgs` (or those named), by its vLLM name.

    Unset means as profile or vLLM say.
    """
    kinds: dict[str, Any] = {
        "int": click.INT,
        "float": Number(),
        "str": click.STRING,
        "ints": Integers(),
    }

    def decorate(command: F) -> F:
        for field in reversed(FIELDS):
            if only and field.name not in only:
                continue
            name = field.name.replace("_", "-")
            if field.kind == "bool":
                flag = click.option(f"--{name}/--no-{name}", default=None, help=field.help)
            else:
                kind = click.Choice(field.choices) if field.choices else kinds[field.kind]
                flag = click.option(f"--{name}", type=kind, default=None, help=field.help)
            command = flag(command)
        return command

    return decorate


def engine_args(options: dict[str, Any]) -> EngineArgs:
    """Take the engine's flags out of a command's options."""
    return EngineArgs(**{field.name: options.pop(field.name) for field in FIELDS if field.name in options})


def loading_options(command: F) -> F:
    """Options of every command that loads traces."""
    for option in (
        click.option(
            "--jitter/--no-jitter", default=True, show_default=True,
            help="Spread arrivals whose stamps lie on a grid over its step, drawn from the seed.",
        ),
        click.option("--skip-bad-rows", is_flag=True, help="Drop rows that cannot be used, and count them."),
        click.option(
            "--token-scale", type=Number(above=0), default=1.0, show_default=True,
            help="Multiply all token counts: the served tokenizer's tokens per recorded token.",
        ),
        click.option("--models", metavar="REGEX", help="Serve only requests whose recorded model matches."),
        click.option("--format", type=click.Choice(FORMATS), help="Force a format; else told by content."),
    ):  # fmt: skip
        command = option(command)
    return command


def loading(options: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments of `load_trace` among a command's options."""
    names = ("format", "models", "token_scale", "skip_bad_rows", "jitter", "seed", "reply_reuse")
    return {name: options[name] for name in names if name in options}


SEED = click.option(
    "--seed", type=click.IntRange(0), default=7, show_default=True, help="Same seed, same bytes."
)


def sweep_options(command: F) -> F:
    """The sweep, and options of every command that reads one."""
    for option in (
        click.option(
            "--load-seconds", type=Number(above=0),
            help="How long load was offered in each level.  [default: as the source or its harness tells]",
        ),
        click.option("--model", metavar="NAME", help="Which of several models in the source."),
        click.option(
            "--format", type=click.Choice(SWEEP_FORMATS), metavar="NAME",
            help="Force a format of docs/sweep-formats.md; else told by content.",
        ),
        click.option(
            "--given", multiple=True, metavar="KEY=VALUE|FILE",
            help="Facts about the server, in vLLM's flag names, or its boot log; repeatable.",
        ),
        click.argument("sweep", metavar="SWEEP...", nargs=-1, required=True, type=PATH),
    ):  # fmt: skip
        command = option(command)
    return command


def inputs_of_sweep(options: dict[str, Any]) -> list[Path]:
    """Files that a sweep's options name: what a command must not write over."""
    given = [Path(text) for text in options["given"] if "=" not in text]
    return [
        *options["sweep"],
        *given,
        *(Path(options[name]) for name in ("model", "profile") if options.get(name)),
    ]


def read_sweep_of(options: dict[str, Any]) -> Sweep:
    """The sweep that a command's options name; keys of `--given` files that tell nothing are warned of."""
    from replicast.calibration.readers.boot_log import notes_on
    from replicast.calibration.readers.detect import read_sweep

    sweep = read_sweep(
        *options["sweep"],
        format=options["format"],
        model=options["model"],
        given=options["given"] or None,
        load_s=options["load_seconds"],
    )
    warn(Warned("given", note) for note in notes_on(options["given"]))
    longest = max((level.window_s or 0.0 for level in sweep.levels), default=0.0)
    if 0 < longest * WINDOW_SLACK < (options["load_seconds"] or 0.0):
        raise click.UsageError(
            f"--load-seconds {options['load_seconds']:g}: no level's window is longer than {longest:,.0f} s."
        )
    return sweep


def today() -> str:
    """The date of what is written down, in UTC."""
    from datetime import UTC, datetime

    return datetime.now(UTC).date().isoformat()


def origins(context: click.Context) -> dict[str, str]:
    """Where each option's value came from: flag, variable or default."""
    said = {"COMMANDLINE": "flag", "ENVIRONMENT": "variable"}
    out = {}
    for name in context.params:
        source = context.get_parameter_source(name)
        out[name] = said.get(source.name if source else "", "default")
    return out
