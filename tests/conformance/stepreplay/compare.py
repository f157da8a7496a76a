"""Reads a recording and names the first difference to it."""

from __future__ import annotations

import gzip
import json
import zlib
from itertools import zip_longest
from pathlib import Path

from replicast.sim.errors import InputError

from .scenario import Json

# Facts about vLLM's code paths that no step depends on.
NOT_COMPARED = ("v2_model_runner", "retention_interval")


def load_recording(path: Path) -> list[Json]:
    """The lines of a recording, plain or gzip."""
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        text = raw.decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read ({error})", where=str(path)) from error
    lines: list[Json] = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"is not JSON ({error})", where=f"{path}:{number}") from error
        if not isinstance(entry, dict) or "kind" not in entry:
            raise InputError("is not a line of a recording", where=f"{path}:{number}")
        lines.append(entry)
    if not lines or lines[0]["kind"] != "header":
        raise InputError("is not a recording: it does not start with a header line", where=str(path))
    return lines


def first_difference(ours: list[Json], recorded: list[Json]) -> str | None:
    """Where the two first differ, in words; None if they are the same."""
    for number, (mine, theirs) in enumerate(zip_longest(ours, recorded), 1):
        if theirs is None:
            return f"line {number}: the recording ends, we go on with {_title(mine)}"
        if mine is None:
            return f"line {number}: we end, the recording goes on with {_title(theirs)}"
        keys = dict.fromkeys((*theirs, *mine))
        for key in keys:
            if key not in NOT_COMPARED and (key in mine, mine.get(key)) != (key in theirs, theirs.get(key)):
                return (
                    f"line {number} ({_title(theirs)}), {key}:\n"
                    f"  ours     {_show(mine, key)}\n  recorded {_show(theirs, key)}"
                )
    return None


def _title(line: Json) -> str:
    return " ".join(str(line[key]) for key in ("kind", "step", "id") if key in line)


def _show(line: Json, key: str) -> str:
    return json.dumps(line[key], separators=(",", ":")) if key in line else "(absent)"
