"""`replicast compare`: two saved results, difference by difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from replicast.commands.options import PATH


@click.command(short_help="Two saved results, difference by difference.")
@click.argument("before", metavar="A.json", type=PATH)
@click.argument("after", metavar="B.json", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout (replicast/compare/1).")
def compare(before: Path, after: Path, as_json: bool) -> None:
    """Compare two results saved with --json, paired where seeds and traces match.

    \b
    replicast compare before.json after.json
    """
    from replicast.sim.errors import InputError
    from replicast.sim.planning.compare import compare
    from replicast.sim.report.document import dumps
    from replicast.sim.report.whatif import comparison_object, comparison_text

    try:
        comparison = compare(_document(before), _document(after))
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{before} and {after}: a figure is missing or of another kind than replicast writes",
            remedy="Give files as they were written with --json.",
        ) from error
    if as_json:
        click.echo(dumps(comparison_object(comparison)), nl=False)
    else:
        click.echo(comparison_text(comparison), nl=False)


def _document(path: Path) -> dict[str, Any]:
    import json

    from replicast.sim.errors import InputError

    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise InputError(
            f"cannot be read as JSON: {why}", where=str(path), remedy="Give a file written with --json."
        ) from error
    if not isinstance(loaded, dict):
        raise InputError("holds no document", where=str(path), remedy="Give a file written with --json.")
    return loaded
