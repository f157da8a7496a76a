"""Reading bytes, JSON and CSV with one clear message for each way they can be broken."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from replicast.sim.errors import InputError
from replicast.traces.report import InputFile

GZIP_MAGIC = b"\x1f\x8b"


def read_bytes(path: Path) -> bytes:
    """The file's bytes, decompressed if it is gzip."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot be read ({error.strerror or error})", where=str(path), remedy="check the path"
        ) from error
    if data[:2] != GZIP_MAGIC:
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"the gzip file is broken or cut off ({error})", where=str(path), remedy="copy it again"
        ) from error


def read_text(path: Path) -> str:
    """The file as UTF-8 text."""
    data = read_bytes(path)
    if not data.strip():
        raise InputError("the file is empty", where=str(path), remedy="give a file that holds a measurement")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"not text: byte {error.start} is not UTF-8", where=str(path), remedy="give a text file"
        ) from error


def read_json(path: Path) -> Any:
    """The file as one JSON value. NaN, which JSON does not have, is refused."""
    return parse_json(read_text(path), str(path))


def parse_json(text: str, where: str) -> Any:
    """One JSON value; `where` names its place."""

    def refuse(word: str) -> None:
        raise InputError(f"{word} is not a number", where=where, remedy="write null where nothing is known")

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise InputError(
            f"broken JSON at line {error.lineno}, column {error.colno} ({error.msg})",
            where=where,
            remedy="the file may be half-written or cut off: copy it again",
        ) from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        why = "it is nested too deeply" if isinstance(error, RecursionError) else "a number is too long"
        raise InputError(f"JSON that cannot be read: {why}", where=where, remedy="correct it") from error


def column_names(header: str) -> list[str]:
    """Names in the first line of a CSV file, in small letters."""
    return [name.strip().lower() for name in next(csv.reader([header], delimiter=_delimiter(header)), [])]


def _delimiter(header: str) -> str:
    return next((mark for mark in ",;\t" if mark in header), ",")


def csv_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows of a CSV file with a header, each with its line number; comment lines start with #.

    Commas, or semicolons or tabs where the header has no comma; names of columns in any case.
    """
    lines = read_text(path).splitlines()
    numbered = [
        (n, line) for n, line in enumerate(lines, start=1) if line.strip() and not line.startswith("#")
    ]
    if not numbered:
        raise InputError("no header", where=str(path), remedy="the first line names the columns")
    reader = csv.reader(
        io.StringIO("\n".join(line for _, line in numbered)), delimiter=_delimiter(numbered[0][1])
    )
    header = column_names(numbered[0][1])
    next(reader)
    doubled = sorted({name for name in header if header.count(name) > 1})
    if doubled:
        raise InputError(f"column {doubled[0]} appears twice", where=f"{path}:{numbered[0][0]}")
    for (number, _), cells in zip(numbered[1:], reader, strict=False):
        if len(cells) != len(header):
            raise InputError(
                f"{len(cells)} cells under {len(header)} column names",
                where=f"{path}:{number}",
                remedy="give every row one cell a column; leave it blank where nothing is known",
            )
        yield number, dict(zip(header, (cell.strip() for cell in cells), strict=True))


def number(value: object, name: str, where: str, *, least: float | None = 0.0) -> float | None:
    """`value` as a finite number, None when it is blank or null; anything else is an `InputError`."""
    if value is None or (isinstance(value, str) and value.strip().lower() in ("", "none", "null")):
        return None
    try:
        found = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        found = None
    if found is None or not math.isfinite(found):
        raise InputError(
            f"{name} is {value!r}, not a finite number", where=where, remedy="leave it blank where unknown"
        )
    if least is not None and found < least:
        raise InputError(f"{name} is {found:g}, below {least:g}", where=where, remedy="correct the figure")
    return found


def whole(value: object, name: str, where: str, *, least: float = 0.0) -> int | None:
    """`value` as a whole number, None when blank."""
    found = number(value, name, where, least=least)
    if found is not None and found != int(found):
        raise InputError(f"{name} is {found:g}, not a whole number", where=where, remedy="correct the figure")
    return None if found is None else int(found)


def label(value: object, name: str, where: str) -> str | None:
    """`value` as text, None when it is null."""
    if value is None or isinstance(value, str):
        return value
    raise InputError(f"{name} is {value!r}, not text", where=where, remedy="put it in quotes")


def mapping(value: object, what: str, where: str) -> Mapping[str, Any]:
    """`value` as a JSON object."""
    if not isinstance(value, dict):
        raise InputError(f"{what} is not an object", where=where, remedy="give the file as the tool wrote it")
    return value


def input_file(path: Path, rows: int, dropped: int = 0) -> InputFile:
    """The file's name and fingerprint."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return InputFile(str(path), digest.hexdigest(), rows, dropped)
