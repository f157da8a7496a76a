"""From paths to Sessions: find the files, tell their format, convert, name the content, report.

Every format becomes the canonical trace first, so that loading a file and loading its conversion
give the same sessions.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
from replicast.sim.errors import InputError
from replicast.sim.workload import Session
from replicast.traces import canonical_io, columns
from replicast.traces.canonical import CanonicalTrace
from replicast.traces.detect import FORMATS, Format, detect
from replicast.traces.files import FileBytes, read_file
from replicast.traces.report import ImportReport, InputFile
from replicast.traces.turns import Builder

_JITTER = (0x6A17,)  # key of the stream of random numbers
_SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz")


@dataclass(frozen=True, slots=True)
class LoadedTrace:
    """Sessions ready to be replayed, and what became of every row.

    `open_loop`: arrivals on one clock and no session structure, so that replaying the time stamps
    is all that can be done.
    """

    sessions: tuple[Session, ...]
    report: ImportReport
    open_loop: bool


def load_trace(
    paths: Sequence[Path | str],
    *,
    format: str | None = None,
    models: str | None = None,
    token_scale: float = 1.0,
    reply_reuse: bool = True,
    share_prefixes: bool = True,
    skip_bad_rows: bool = False,
    jitter: bool = True,
    seed: int = 0,
    cache: Path | str | None = None,
) -> LoadedTrace:
    """Load trace files or folders of them; `format` forces one of `FORMATS`.

    `models` is a regular expression of the models to serve, `token_scale` the served tokenizer's
    tokens per recorded one. `jitter` spreads arrivals whose stamps lie on a grid over its step,
    drawn from `seed`. `cache` is a folder where loaded files are kept (`columns.py`).
    """
    read = partial(
        _load,
        paths,
        format=format,
        models=models,
        token_scale=token_scale,
        reply_reuse=reply_reuse,
        share_prefixes=share_prefixes,
        skip_bad_rows=skip_bad_rows,
        jitter=jitter,
        seed=seed,
    )
    folder = cache or os.environ.get("REPLICAST_TRACE_CACHE")
    entry = columns.entry(Path(folder), [Path(path) for path in paths], read.keywords) if folder else None
    if entry is None:
        return read()
    with _no_gc():
        kept = columns.load(entry)
    if kept is not None:
        return LoadedTrace(*kept)
    loaded = read()
    columns.save(entry, loaded.sessions, loaded.report, loaded.open_loop)
    return loaded


def _load(
    paths: Sequence[Path | str],
    *,
    format: str | None,
    models: str | None,
    token_scale: float,
    reply_reuse: bool,
    share_prefixes: bool,
    skip_bad_rows: bool,
    jitter: bool,
    seed: int,
) -> LoadedTrace:
    if not 0.01 <= token_scale <= 100:
        raise InputError(
            f"token scale {token_scale} is out of range",
            where="--token-scale",
            remedy="Use 0.01 to 100; 1 keeps tokens.",
        )
    with _no_gc():
        traces, report = _read(paths, format, skip_bad_rows)
        builder = Builder(
            report,
            models=models,
            token_scale=token_scale,
            reply_reuse=reply_reuse,
            share_prefixes=share_prefixes,
            skip_bad_rows=skip_bad_rows,
            jitter=np.random.default_rng(np.random.SeedSequence(seed, spawn_key=_JITTER)) if jitter else None,
        )
        sessions = tuple(session for trace in traces for session in builder.sessions(trace))
    if spread := report.flags["arrival_spread"]:
        report.notes.append(f"{spread} arrivals spread over the step of their stamps' grid (seed {seed})")
    if token_scale != 1.0:
        report.notes.append(f"all token counts multiplied by {token_scale:g}")
    _count_bad(report, builder)
    if not sessions:
        raise _nothing_left(paths, report)
    open_loop = all(trace.header.has_global_clock for trace in traces) and all(
        len(session.turns) == 1 and session.start_s is not None for session in sessions
    )
    report.flags = +report.flags
    return LoadedTrace(sessions, report, open_loop)


def convert(
    paths: Sequence[Path | str], out: Path | str, *, format: str | None = None, skip_bad_rows: bool = False
) -> ImportReport:
    """Write the canonical trace of `paths` to `out` (`.jsonl` or `.jsonl.gz`), once it is sound."""
    with _no_gc():
        traces, report = _read(paths, format, skip_bad_rows, lossless=True)
        builder = Builder(report, skip_bad_rows=skip_bad_rows)
        for trace in traces:
            builder.sessions(trace)
        _count_bad(report, builder)
        bad = frozenset(builder.bad_places)
        merged = _merged(traces, paths)
        kept = [line for line, place in zip(merged.lines, merged.places, strict=True) if place not in bad]
        if not report.rows_emitted:
            raise _nothing_left(paths, report)
        canonical_io.write_canonical(CanonicalTrace(merged.header, kept), out)
    return report


def _merged(traces: Sequence[CanonicalTrace], paths: Sequence[Path | str]) -> CanonicalTrace:
    """One trace of several, where they name their prefixes alike."""
    if len(traces) == 1:
        return traces[0]
    headers = [replace(trace.header, source=None, tokenizer=None) for trace in traces]
    if any(header != headers[0] for header in headers) or headers[0].block_scope == "global":
        raise InputError(
            "the files cannot share one canonical header (global ids, block sizes or clocks differ)",
            where=", ".join(map(str, paths)),
            remedy="Convert them one by one.",
        )
    merged = CanonicalTrace(traces[0].header, [])
    for trace in traces:
        merged.lines.extend(trace.lines)
        merged.places.extend(trace.places)
    return merged


def _count_bad(report: ImportReport, builder: Builder) -> None:
    """Charge rows that do not fit the others to the files they came from."""
    for number, file in enumerate(report.inputs):
        dropped = _of_file(builder.bad_places, file.path)
        rows = _of_file(builder.bad_sessions, file.path)
        report.inputs[number] = replace(file, rows=file.rows + rows, dropped=file.dropped + dropped)


def _of_file(places: Sequence[str], path: str) -> int:
    return sum(place == path or place.startswith(f"{path}:") for place in places)


def _nothing_left(paths: Sequence[Path | str], report: ImportReport) -> InputError:
    return InputError(
        "no request is left to replay",
        where=", ".join(map(str, paths)),
        remedy="Dropped: " + (_counts(report) or "nothing; the trace has no requests") + ".",
    )


def _counts(report: ImportReport) -> str:
    return ", ".join(f"{number} {reason}" for reason, number in sorted(report.dropped.items()))


@contextmanager
def _no_gc() -> Iterator[None]:
    """Without the cyclic collector, which would walk every row read so far, over and over."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():  # what was made is old at once: no walk over it now
                gc.freeze()
                gc.unfreeze()
            gc.enable()


Reader = Callable[[Sequence[FileBytes], ImportReport, bool], list[CanonicalTrace]]


def _read(
    paths: Sequence[Path | str], format: str | None, skip_bad_rows: bool, *, lossless: bool = False
) -> tuple[list[CanonicalTrace], ImportReport]:
    if not paths:
        raise InputError("no trace given", remedy="Name a trace file or a folder of them.")
    if format is not None and format not in FORMATS:
        raise InputError(
            f"unknown format {format!r}", where="--format", remedy="Use one of " + ", ".join(FORMATS) + "."
        )
    report = ImportReport("")
    files, found = _gather(paths, format, skip_bad_rows, report)
    report.format = found
    if found == "canonical":
        traces = _read_canonical(files, report, skip_bad_rows, lossless=lossless)
    else:
        traces = _reader(found)(files, report, skip_bad_rows)
    for number, file in enumerate(files):
        if file.damaged:
            report.rows_read += 1
            report.dropped["gzip stream broken off"] += 1
            rows = report.inputs[number]
            report.inputs[number] = replace(rows, rows=rows.rows + 1, dropped=rows.dropped + 1)
    sizes = {trace.header.block_size for trace in traces}
    report.block_size = max((size for size in sizes if size is not None), default=None)
    return traces, report


def _gather(
    paths: Sequence[Path | str], format: str | None, salvage: bool, report: ImportReport
) -> tuple[list[FileBytes], Format]:
    """The files to read and their one format; what a folder holds beside them is noted."""
    files: list[tuple[FileBytes, Format]] = []
    others = 0
    seen: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            members, is_folder = [path], False
        else:
            members, is_folder = _members(path), True
        before, twice = len(files), 0
        for member in members:
            file = read_file(member, salvage=salvage)
            place = member.resolve()
            if place in seen:
                report.notes.append(f"{member} was given twice and is read once")
                twice += 1
                continue
            seen[place] = None
            known = detect(file)
            if is_folder and (known is None or (format is not None and known != format)):
                others += 1
                continue
            files.append((file, known if is_folder and known is not None else _expected(file, known, format)))
        if is_folder and len(files) == before and not twice:
            raise _no_transcripts(path, format)
    if others:
        report.notes.append(f"{others} other files in the folders were left out")
    kinds = sorted({kind for _, kind in files})
    if len(kinds) > 1:
        raise InputError(
            f"several formats at once: {', '.join(kinds)}",
            where=", ".join(map(str, paths)),
            remedy="Pass traces of one format, or --format to pick one from a folder.",
        )
    return [file for file, _ in files], files[0][1]


def _members(folder: Path) -> list[Path]:
    """Files below `folder` that may be traces, in the order of their names."""

    def refused(error: OSError) -> None:
        raise InputError(
            f"cannot be read: {error.strerror or error}",
            where=str(error.filename or folder),
            remedy="Check the permissions of the folder.",
        ) from error

    found = [Path(where, name) for where, _, names in os.walk(folder, onerror=refused) for name in names]
    return sorted(
        path
        for path in found
        if path.name.endswith(_SUFFIXES) and not path.name.endswith(".meta.json") and path.is_file()
    )


def _no_transcripts(folder: Path, format: str | None) -> InputError:
    return InputError(
        "the folder holds no transcripts or traces" + (f" of format {format}" if format else ""),
        where=str(folder),
        remedy="Give a folder with .jsonl or .json files (also .gz), such as ~/.claude/projects.",
    )


def _expected(file: FileBytes, known: Format | None, format: str | None) -> Format:
    """The format to read a named file with."""
    if not file.data or file.data.isspace():
        raise InputError(
            "the file is empty", where=str(file.path), remedy="Give a trace with at least one request."
        )
    for name in FORMATS:
        if format == name:
            return name
    if known is None:
        raise InputError(
            "the format is not recognised",
            where=str(file.path),
            remedy="Readable are " + ", ".join(FORMATS) + "; force one with --format.",
        )
    return known


def _read_canonical(
    files: Sequence[FileBytes], report: ImportReport, skip: bool, *, lossless: bool
) -> list[CanonicalTrace]:
    traces = []
    for file in files:
        read, dropped = report.rows_read, report.dropped.total()
        traces.append(canonical_io.parse(file, lossless=lossless, skip_bad_rows=skip, report=report))
        report.inputs.append(
            InputFile(str(file.path), file.sha256, report.rows_read - read, report.dropped.total() - dropped)
        )
    return traces


def _reader(format: Format) -> Reader:
    """`formats/NAME.py` has `read_NAME`; only the one that is needed is loaded."""
    name = format.replace("-", "_")
    reader: Reader = getattr(import_module(f"replicast.traces.formats.{name}"), f"read_{name}")
    return reader
