"""A loaded trace kept in columns, so that loading it again takes half as long.

Off unless a folder is named (`REPLICAST_TRACE_CACHE`, or `load_trace(cache=…)`). An entry is never stale:
its name is the digest of the files' bytes and names, of every option, and of the code that reads them, so a
file or a reader that changes makes another name. It is never half-written: written beside, then renamed. An
entry that cannot be read is made anew. Nothing is deleted here; the folder may be, at any time.

Columns: turns, segments of all prompts and outputs one after the other, texts once each with numbers that
point to them; all in one `.npz`, plain arrays, nothing pickled. NaN stands for a time that is not known.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from functools import cache
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from replicast.sim.errors import InputError
from replicast.sim.workload import Content, Segment, Session, Turn
from replicast.traces.files import write_file
from replicast.traces.report import ImportReport, InputFile

TIMES = ("arrival_s", "tool_s", "think_s")
TEXTS = ("turn_id", "agent", "trigger", "model")
INTS = ("num_prompt_tokens", "num_output_tokens", "priority")
Columns = Mapping[str, NDArray[Any]]


@cache
def _readers_digest() -> bytes:
    """Of the code that makes sessions of files."""
    here = Path(__file__).resolve().parent
    digest = hashlib.sha256()
    for file in sorted([*here.rglob("*.py"), here.parent / "sim" / "workload.py"]):
        digest.update(file.read_bytes())
    return digest.digest()


def entry(folder: Path, paths: Sequence[Path], options: Mapping[str, object]) -> Path | None:
    """The file that holds what these paths load as; None where one is no plain file."""
    digest = hashlib.sha256(_readers_digest())
    digest.update(repr(sorted(options.items())).encode())
    for path in paths:
        try:
            if not path.is_file():
                return None
            content = path.read_bytes()
        except OSError:
            return None
        digest.update(repr((str(path), str(path.resolve()), len(content))).encode(errors="backslashreplace"))
        digest.update(content)
    return folder / f"trace-{digest.hexdigest()}.npz"


def save(path: Path, sessions: Sequence[Session], report: ImportReport, open_loop: bool) -> None:
    """Keep what was loaded; a folder that cannot be written to is no error."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, open_loop=np.array(open_loop), **_columns(sessions, report))
    try:
        write_file(path, buffer.getvalue())
    except InputError:
        return  # read-only or full: the next load reads the trace itself


def load(path: Path) -> tuple[tuple[Session, ...], ImportReport, bool] | None:
    """What `save` kept; None where there is no such file, or it is damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            columns = {name: file[name] for name in file.files}
        return tuple(_sessions(columns)), _report(columns), bool(columns["open_loop"])
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError):
        return None


def _columns(sessions: Sequence[Session], report: ImportReport) -> dict[str, NDArray[Any]]:
    turns = [turn for session in sessions for turn in session.turns]
    numbers: dict[str | None, int] = {}

    def pointers(texts: Iterable[str | None]) -> NDArray[np.int64]:
        return np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int64)

    columns: dict[str, NDArray[Any]] = {
        "session_id": pointers(session.session_id for session in sessions),
        "source": pointers(session.source for session in sessions),
        "start_s": _times(session.start_s for session in sessions),
        "num_turns": np.array([len(session.turns) for session in sessions], dtype=np.int64),
        "num_depends": np.array([len(turn.depends_on) for turn in turns], dtype=np.int64),
        "depends_on": np.array([t for turn in turns for t in turn.depends_on], dtype=np.int64),
        "delay_s": np.array([turn.delay_s for turn in turns], dtype=np.float64),
    }
    for name in TIMES:
        columns[name] = _times(getattr(turn, name) for turn in turns)
    for name in TEXTS:
        columns[name] = pointers(getattr(turn, name) for turn in turns)
    for name in INTS:
        columns[name] = np.array([getattr(turn, name) for turn in turns], dtype=np.int64)
    for name, contents in (("prompt", [t.prompt for t in turns]), ("output", [t.output for t in turns])):
        columns[f"num_{name}"] = np.array([len(content) for content in contents], dtype=np.int64)
        segments = [segment for content in contents for segment in content]
        columns[name] = np.array(segments, dtype=np.int64).reshape(-1, 3)
    columns["texts"] = _json(list(numbers))
    columns["report"] = _json(_plain(report))
    return columns


def _plain(report: ImportReport) -> dict[str, Any]:
    kept = {f.name: getattr(report, f.name) for f in fields(report)}
    return {**kept, "inputs": [asdict(file) for file in report.inputs]}


def _times(values: Iterable[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _json(value: object) -> NDArray[np.uint8]:
    return np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)


def _parsed(column: NDArray[Any]) -> Any:
    return json.loads(column.tobytes())


def _report(columns: Columns) -> ImportReport:
    kept = _parsed(columns["report"])
    inputs = [InputFile(**one) for one in kept.pop("inputs")]
    dropped, flags = Counter(kept.pop("dropped")), Counter(kept.pop("flags"))
    return ImportReport(inputs=inputs, dropped=dropped, flags=flags, **kept)


def _sessions(columns: Columns) -> Iterator[Session]:
    texts = _parsed(columns["texts"])

    def named(name: str) -> Iterator[Any]:
        return (texts[number] for number in columns[name].tolist())

    def known(name: str) -> Iterator[float | None]:
        return (None if value != value else value for value in columns[name].tolist())

    turns = map(
        Turn,
        named("turn_id"),
        named("agent"),
        _cut(columns["depends_on"].tolist(), columns["num_depends"].tolist()),
        columns["delay_s"].tolist(),
        _contents(columns, "prompt"),
        _contents(columns, "output"),
        columns["num_prompt_tokens"].tolist(),
        columns["num_output_tokens"].tolist(),
        known("arrival_s"),
        known("tool_s"),
        known("think_s"),
        named("trigger"),
        named("model"),
        columns["priority"].tolist(),
    )
    per_session = zip(
        named("session_id"), columns["num_turns"].tolist(), known("start_s"), named("source"), strict=True
    )
    for session_id, number, start_s, source in per_session:
        yield Session(session_id, tuple(islice(turns, number)), start_s, source)


def _contents(columns: Columns, name: str) -> Iterator[Content]:
    segments = list(map(Segment, *columns[name].T.tolist()))
    return _cut(segments, columns[f"num_{name}"].tolist())


def _cut(values: list[Any], lengths: list[int]) -> Iterator[tuple[Any, ...]]:
    """`values` in pieces of these lengths."""
    ends = list(accumulate(lengths))
    return (tuple(values[end - length : end]) for end, length in zip(ends, lengths, strict=True))
