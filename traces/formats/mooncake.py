"""Mooncake rows, one request a line, and the aiperf dialect of them with sessions.

`timestamp` (ms) is on one clock, `hash_ids` are global chain ids; in Mooncake's own files a partial
last block has an id, in others it is left out: the first rows tell, and tell the block size (512
unless they contradict). Rows of one `session_id` follow each other, `delay` (ms) after the reply.

The published traces have stamps on a grid of 3 s. They are kept and flagged; loading spreads the
arrivals over the grid step (`turns.py`), without which TTFT tails are artefacts.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from replicast.traces.canonical import (
    BlockPrefix,
    CanonicalTrace,
    CountPrefix,
    Header,
    PartialBlock,
    TraceRequest,
    TraceSession,
)
from replicast.traces.canonical_io import BAD_JSON, Duration, PromptTokens, Tokens, bad_row, reason
from replicast.traces.files import FileBytes, numbered_lines
from replicast.traces.formats.weka import common_ids, id_runs
from replicast.traces.report import ImportReport, InputFile

_EPOCH_MS = 10**11  # later than 1973: a stamp since 1970, not since the start of the trace
_BLOCK_SIZES = (512, 16, 32, 64, 128, 256, 1024)


class _Row(Struct):
    input_length: PromptTokens
    output_length: Tokens
    timestamp: Annotated[float, Meta(ge=0, le=1e14)] | None = None
    delay: Duration | None = None
    hash_ids: list[Annotated[int, Meta(ge=0)]] | None = None
    session_id: str | int | None = None
    model: str | None = None
    priority: int | None = None


_decode = msgspec.json.Decoder(_Row).decode


def read_mooncake(files: Sequence[FileBytes], report: ImportReport, skip: bool) -> list[CanonicalTrace]:
    """One canonical trace a file: ids of two files have nothing to do with each other."""
    traces = []
    names: dict[str, int] = {}
    for file in files:
        read, dropped = report.rows_read, report.dropped.total()
        stem = file.name.split(".")[0]
        names[stem] = names.get(stem, 0) + 1
        traces.append(_convert(file, stem if names[stem] == 1 else f"{stem}-{names[stem]}", report, skip))
        report.inputs.append(
            InputFile(str(file.path), file.sha256, report.rows_read - read, report.dropped.total() - dropped)
        )
    return traces


def _convert(file: FileBytes, stem: str, report: ImportReport, skip: bool) -> CanonicalTrace:
    rows: list[tuple[int, _Row]] = []
    for number, text in numbered_lines(file):
        report.rows_read += 1
        try:
            rows.append((number, _decode(text)))
        except BAD_JSON as error:
            if not skip:
                raise bad_row(error, f"{file.path}:{number}") from None
            report.dropped[reason(error)] += 1
    stamps = [row.timestamp for _, row in rows if row.timestamp is not None]
    zero_ms = min(stamps) if stamps and min(stamps) > _EPOCH_MS else 0.0
    step_ms = grid_step_ms(stamps)
    flags = [f"clock_rounded_{step_ms // 1000}s"] if step_ms else None
    size, partial = _blocks([row for _, row in rows])
    header = Header(
        {"format": "mooncake_trace", "file": file.name},
        t0=datetime.fromtimestamp(zero_ms / 1000, UTC).isoformat() if zero_ms else None,
        block_size=size,
        block_scope="global",
        partial_block=partial,
    )
    trace = CanonicalTrace(header, [])
    last: dict[str, tuple[TraceRequest, list[int]]] = {}
    for number, row in rows:
        place = f"{file.path}:{number}"
        session = f"{stem}:{number}" if row.session_id is None else f"{stem}/{row.session_id}"
        before = last.get(session)
        if before is None:
            trace.lines.append(TraceSession(session, "root"))
            trace.places.append(place)
        request = _request(row, session, before, zero_ms)
        request.flags = flags
        trace.lines.append(request)
        trace.places.append(place)
        if row.session_id is not None:
            last[session] = request, row.hash_ids or []
    return trace


def _request(
    row: _Row, session: str, before: tuple[TraceRequest, list[int]] | None, zero_ms: float
) -> TraceRequest:
    turn, base, base_ids = 0, None, list[int]()
    if before is not None:
        turn, base, base_ids = before[0].turn + 1, before[0].id, before[1]
    prefix: BlockPrefix | CountPrefix | None = None
    if row.hash_ids is not None:
        keep = common_ids(base_ids, row.hash_ids)
        prefix = BlockPrefix(base, keep, id_runs(row.hash_ids, keep))
    elif base is None:
        prefix = CountPrefix(None, 0, "none")
    return TraceRequest(
        f"{session}#{turn}",
        session,
        turn,
        row.input_length,
        row.output_length,
        [] if base is None else [base],
        None if row.timestamp is None else (row.timestamp - zero_ms) / 1000,
        None if row.delay is None else row.delay / 1000,
        model=row.model,
        priority=row.priority,
        prefix=prefix,
    )


def grid_step_ms(stamps: Sequence[float]) -> int | None:
    """The step, whole seconds in ms, of the grid that stamps lie on; None where there is none.

    Stamps may be a few ms off. Some must coincide: that is what a grid does to arrivals.

    >>> grid_step_ms([0, 0, 3000, 5999, 5999, 9000])
    3000
    """
    distinct = sorted(set(stamps))
    if len(distinct) < 3 or len(distinct) == len(stamps):
        return None
    gaps = [after - before for before, after in pairwise(distinct)]
    step = round(median(gaps) / 1000) * 1000
    if step < 1000 or any(abs(gap - round(gap / step) * step) > 10 for gap in gaps):
        return None
    return step


def _blocks(rows: Sequence[_Row]) -> tuple[int | None, PartialBlock | None]:
    """Block size, and whether a partial last block has an id, that most rows agree with."""
    with_ids = [(row.input_length, len(row.hash_ids)) for row in rows if row.hash_ids is not None]
    if not with_ids:
        return None, None
    choices: list[tuple[int, PartialBlock]] = [(size, "own_id") for size in _BLOCK_SIZES]
    choices += [(size, "dropped") for size in _BLOCK_SIZES]

    def agreeing(choice: tuple[int, PartialBlock]) -> int:
        size, partial = choice
        up = size - 1 if partial == "own_id" else 0
        return sum((length + up) // size == ids for length, ids in with_ids)

    return max(choices, key=agreeing)
