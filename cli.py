"""The command line's entry: which commands there are, and how each of them may end.

Exit codes: 0 done; 1 cannot run (bad data, unreadable file); 2 wrong usage; 3 ran, and the answer is
no; 4 ran, inconclusive; 130 stopped by Ctrl-C, 143 by SIGTERM. Results go to stdout, progress and
warnings to stderr.
A command's file is loaded only when the command is named, or to list its help.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from types import FrameType
from typing import Any, NoReturn

import click
from replicast import __version__
from replicast.commands import ASKED
from replicast.sim.errors import InputError

# In the order of the help; `commands/NAME.py` has NAME.
COMMANDS = (
    "demo",
    "plan",
    "whatif",
    "compare",
    "replay",
    "trace",
    "check",
    "calibrate",
    "validate",
    "profile",
)


class Refusal(click.ClickException):
    """Bad input as click shows it; where a flag's value is what is wrong, with click's code for that."""

    def __init__(self, error: InputError) -> None:
        super().__init__(str(error))
        of_flag = (error.where or "").startswith("--")
        self.exit_code = click.UsageError.exit_code if of_flag else error.exit_code  # type: ignore[misc]


class Commands(click.Group):
    """Loads commands by name; makes of bad input, a failing disk and Ctrl-C one message and a code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"replicast.commands.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command), "a command's file holds it under its name"
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[ASKED] = shlex.join(["replicast", *args])
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # terminals that know no arrow, undecodable file names
                stream.reconfigure(errors="replace")
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _terminated(os.getpid()))
        atexit.register(gc.freeze)  # to look through all that was read once more would take half a second
        try:
            return super().invoke(ctx)
        except InputError as error:
            raise Refusal(error) from error
        except BrokenPipeError:
            raise  # click ends quietly
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise click.ClickException(f"{where}{error.strerror or error}") from error
        except MemoryError as error:
            raise click.ClickException("out of memory") from error
        except KeyboardInterrupt:
            click.echo("Stopped; nothing was left half-written.", err=True)
            ctx.exit(130)


def _terminated(command: int) -> Callable[[int, FrameType | None], NoReturn]:
    """End as after Ctrl-C: workers stopped, temporary files removed.

    A worker inherits this with the fork, and has nothing to remove.
    """

    def end(number: int, frame: FrameType | None) -> NoReturn:
        if os.getpid() != command:
            os._exit(128 + number)
        raise SystemExit(128 + number)

    return end


@click.group(cls=Commands, context_settings={"auto_envvar_prefix": "REPLICAST", "max_content_width": 100})
@click.version_option(__version__, prog_name="replicast")
def main() -> None:
    """How many vLLM instances do N developers with coding agents need, what will they wait and pay?

    \b
    replicast demo
    replicast replay TRACE --profile qwen3.6-35b-h200 --replicas 1,2,4,8 --sessions 40 --price 10.49
    replicast plan TRACE --profile qwen3.6-35b-h200 --developers 120 --slo "ttft:p90<10s" --price 10.49

    Every option can be given as a variable too: REPLICAST_REPLAY_SEED=7.
    """


if __name__ == "__main__":
    main(prog_name="replicast")
