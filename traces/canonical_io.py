"""Reading and writing the canonical trace, one JSON object a line.

A line is a request where it has `turn`, closes a session where it has `session_end`, and else
describes a session. Types and ranges are checked while decoding (msgspec), references between
lines in `content.py`. Reading for a simulation leaves unknown keys out; `lossless` keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from replicast.sim.errors import InputError
from replicast.traces.canonical import (
    BlockPrefix,
    BlockScope,
    CanonicalTrace,
    CountPrefix,
    Header,
    How,
    Kind,
    Line,
    Observed,
    PartialBlock,
    SessionEnd,
    TraceRequest,
    TraceSession,
)
from replicast.traces.files import FileBytes, numbered_lines, read_file, write_file
from replicast.traces.report import ImportReport

MAX_TOKENS = 10_000_000
SKIP_HINT = "Correct the row, or pass --skip-bad-rows to leave it out and count it."

Tokens = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
PromptTokens = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
Duration = Annotated[float, Meta(ge=0, le=1e9)]
Moment = Annotated[float, Meta(ge=-1e12, le=1e12)]


class _PrefixRow(Struct, gc=False):
    base: str | None = None
    keep: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    add: list[tuple[int, int]] | UnsetType = UNSET
    keep_tokens: Tokens | UnsetType = UNSET
    how: How | None = None


class _RequestRow(Struct, kw_only=True):
    id: str
    session: str
    turn: Annotated[int, Meta(ge=0)]
    arrival_s: Moment | None = None
    wait_for: list[str] | None = None
    delay_s: Duration | None = None
    tool_s: Duration | None = None
    think_s: Duration | None = None
    trigger: str | None = None
    prompt_tokens: PromptTokens
    output_tokens: Tokens
    reasoning_tokens: Tokens | None = None
    model: str | None = None
    stream: bool | None = None
    priority: int | None = None
    prefix: _PrefixRow | None = None
    obs: Observed | None = None
    flags: list[str] | None = None


class _SessionRow(Struct):
    session: str
    parent: str | None = None
    kind: Kind | None = None
    agent_type: str | None = None
    spawn_after: str | None = None
    spawn_s: Moment | None = None
    user: str | None = None
    tenant: str | None = None
    repo: str | None = None
    status: str | None = None
    duration_s: float | None = None
    models: list[str] | None = None
    shared_prefix: dict[str, Any] | None = None


class _HeaderRow(Struct):
    canon: int
    source: dict[str, Any] | None = None
    time_unit: str | None = None
    t0: str | None = None
    block_size: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None
    block_scope: BlockScope | None = None
    partial_block: PartialBlock | None = None
    tokenizer: str | None = None


class _EndRow(Struct):
    session_end: str


_decode_any = msgspec.json.Decoder(dict[str, Any]).decode
_decode_header = msgspec.json.Decoder(_HeaderRow).decode
_decode_request = msgspec.json.Decoder(_RequestRow).decode
_decode_session = msgspec.json.Decoder(_SessionRow).decode
_decode_end = msgspec.json.Decoder(_EndRow).decode
_encode = msgspec.json.Encoder().encode

BAD_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_canonical(path: Path | str) -> CanonicalTrace:
    """The whole file, every key of it kept."""
    return parse(read_file(Path(path)), lossless=True)


def write_canonical(trace: CanonicalTrace, path: Path | str) -> None:
    """Write `trace`; gzip where the name ends in `.gz`. Equal traces give equal bytes."""
    write_file(Path(path), b"".join(line + b"\n" for line in encode(trace)))


def parse(
    file: FileBytes,
    *,
    lossless: bool = False,
    skip_bad_rows: bool = False,
    report: ImportReport | None = None,
) -> CanonicalTrace:
    """Lines of `file` with their places; bad rows raise, or are counted in `report` and left out."""
    numbered = numbered_lines(file)
    first = next(numbered, None)
    if first is None:
        raise InputError(
            "the file is empty", where=str(file.path), remedy="Give a trace with at least one request."
        )
    header = _header(file.path, *first, lossless=lossless)
    trace = CanonicalTrace(header, [])
    add_line, add_place = trace.lines.append, trace.places.append
    for number, text in numbered:
        place = f"{file.path}:{number}"
        try:
            if b'"turn"' in text:
                line: Line = _request(_decode_request(text))
            else:
                line = _other(text)
            if lossless:
                _keep_extra(line, _decode_any(text))
        except BAD_JSON as error:
            if not skip_bad_rows:
                raise bad_row(error, place) from None
            if report is not None:
                report.rows_read += 1
                report.dropped[reason(error)] += 1
            continue
        if report is not None and isinstance(line, TraceRequest):
            report.rows_read += 1
        add_line(line)
        add_place(place)
    return trace


def bad_row(error: Exception, place: str) -> InputError:
    """The message for a row that cannot be decoded."""
    return InputError(f"{reason(error)} ({error})", where=place, remedy=SKIP_HINT)


def reason(error: Exception) -> str:
    """A short name for what is wrong with a row: the key of its count."""
    if isinstance(error, msgspec.ValidationError):
        return "bad value"
    if isinstance(error, RecursionError):
        return "nested too deep"
    return "broken JSON"


def _header(path: Path, number: int, text: bytes, *, lossless: bool) -> Header:
    place = f"{path}:{number}"
    try:
        row = _decode_header(text)
        raw = _decode_any(text) if lossless else {}
    except BAD_JSON as error:
        raise InputError(
            f"no canonical header ({error})", where=place, remedy='The first line must be {"canon": 1, …}.'
        ) from None
    if row.canon != 1:
        raise InputError(
            f"canonical version {row.canon} is unknown", where=place, remedy="Version 1 is read."
        )
    if row.time_unit not in (None, "s"):
        raise InputError(
            f"time_unit {row.time_unit!r} is unknown", where=place, remedy="Times are in seconds: s."
        )
    fields = {name: getattr(row, name) for name in _HeaderRow.__struct_fields__[1:]}
    header = Header(**fields)
    header.extra = _unknown(raw, _HEADER_KEYS)
    return header


def _request(row: _RequestRow) -> TraceRequest:
    source = row.prefix
    prefix: BlockPrefix | CountPrefix | None = None
    if source is not None:
        if source.add is not UNSET and source.keep is not UNSET:
            prefix = BlockPrefix(source.base, source.keep, source.add)
        elif source.keep_tokens is not UNSET:
            prefix = CountPrefix(source.base, source.keep_tokens, source.how)
        else:
            raise msgspec.ValidationError("prefix needs keep and add, or keep_tokens - at `$.prefix`")
    return TraceRequest(
        row.id,
        row.session,
        row.turn,
        row.prompt_tokens,
        row.output_tokens,
        row.wait_for,
        row.arrival_s,
        row.delay_s,
        row.tool_s,
        row.think_s,
        row.trigger,
        row.reasoning_tokens,
        row.model,
        row.stream,
        row.priority,
        prefix,
        row.obs,
        row.flags,
    )


def _other(text: bytes) -> Line:
    raw = _decode_any(text)
    if "turn" in raw or "prompt_tokens" in raw:
        return _request(_decode_request(text))
    if "session_end" in raw:
        return SessionEnd(_decode_end(text).session_end)
    row = _decode_session(text)
    return TraceSession(**{name: getattr(row, name) for name in _SESSION_KEYS})


_HEADER_KEYS = frozenset(_HeaderRow.__struct_fields__)
_SESSION_KEYS = _SessionRow.__struct_fields__
_REQUEST_KEYS = _RequestRow.__struct_fields__
_END_KEYS = _EndRow.__struct_fields__
_PREFIX_KEYS = {BlockPrefix: ("base", "keep", "add"), CountPrefix: ("base", "keep_tokens", "how")}
_KEYS_IN_ORDER = {TraceSession: _SESSION_KEYS, TraceRequest: _REQUEST_KEYS, SessionEnd: _END_KEYS}


def _unknown(raw: dict[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Keys that have no slot of their own, and known keys set to null."""
    return {key: value for key, value in raw.items() if value is None or key not in known}


def _keep_extra(line: Line, raw: dict[str, Any]) -> None:
    line.extra = _unknown(raw, _KEYS_IN_ORDER[type(line)])
    if isinstance(line, TraceRequest):
        line.obs = raw.get("obs")
        if line.prefix is not None:
            line.prefix.extra = _unknown(raw["prefix"], _PREFIX_KEYS[type(line.prefix)])


def encode(trace: CanonicalTrace) -> Iterator[bytes]:
    """The lines of `trace` as JSON, the header first."""
    yield _encode({"canon": 1, **_present(trace.header, _HeaderRow.__struct_fields__[1:])})
    for line in trace.lines:
        item = _present(line, _KEYS_IN_ORDER[type(line)])
        if isinstance(line, TraceRequest) and line.prefix is not None:
            item["prefix"] = _present(line.prefix, _PREFIX_KEYS[type(line.prefix)])
        yield _encode(item)


def _present(holder: Any, keys: Iterable[str]) -> dict[str, Any]:
    item = {key: value for key in keys if (value := getattr(holder, key)) is not None}
    item.update(holder.extra or {})
    return item
