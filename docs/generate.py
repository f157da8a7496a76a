"""Writes what the documentation quotes from the program: `make docs`.

`docs/cli.md` holds the help of every command. In `README.md` each ```console block begins with a
`$ replicast …` line, which is run, in order and in one folder; the rest of the block is its output.
A test runs the same and fails where help or table heads differ.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
from click.testing import CliRunner

DOCS = Path(__file__).resolve().parent
README = DOCS.parent / "README.md"
BLOCK = re.compile(r"```console\n\$ replicast ([^\n]*)\n(.*?)```", re.DOTALL)

EXIT_CODES = """## Exit codes

| code | meaning |
|---|---|
| 0 | done |
| 1 | cannot run: bad data, unreadable file, every request longer than `max_model_len` |
| 2 | wrong usage: no such flag, or a value that it does not take |
| 3 | ran, and the answer is no: a sweep that is not usable, a goal that no replica count meets |
| 4 | ran, inconclusive: the range holds the limit |
| 130 | stopped by Ctrl-C |

Results go to stdout; progress (on a terminal only) and warnings, as `Warning [code]: text`, go to stderr.
"""


def commands(command: click.Command, parent: click.Context | None, name: str) -> Iterator[tuple[str, str]]:
    """(full name, help text) of a command and all below it."""
    context = click.Context(command, info_name=name, parent=parent, max_content_width=100, terminal_width=100)
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            child = command.get_command(context, below)
            assert child is not None, "a listed command exists"
            yield from commands(child, context, below)


def cli_page() -> str:
    """docs/cli.md."""
    from replicast.cli import main

    parts = ["# Commands\n\nWritten by `make docs` from the program's own help.\n"]
    parts += [f"## {path}\n\n```\n{text}\n```\n" for path, text in commands(main, None, "replicast")]
    return "\n".join([*parts, EXIT_CODES])


def readme() -> str:
    """README.md with the output of its commands as it is now."""
    from replicast.cli import main

    def answer(block: re.Match[str]) -> str:
        done = CliRunner().invoke(main, shlex.split(block[1]))
        assert done.exit_code == 0, f"replicast {block[1]}: {done.output}"
        return f"```console\n$ replicast {block[1]}\n{done.output.rstrip()}\n```"

    text = README.read_text(encoding="utf-8")
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            return BLOCK.sub(answer, text)
        finally:
            os.chdir(before)


if __name__ == "__main__":
    (DOCS / "cli.md").write_text(cli_page(), encoding="utf-8")
    README.write_text(readme(), encoding="utf-8")
