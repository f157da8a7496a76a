"""kv-cache-tester ("WEKA") traces: one JSON object a session, or one a line.

Main requests and sub-agent markers stand in one list. Ids are local to the file, shared by the main
agent and its sub-agents, chained, and leave the partial last block out. The client gap before a
request is `think_time`, the server's time `api_time`. A sub-agent's own times start at 0 or at the
trace's zero: they are absolute where its first is not before its marker.

The main request after a marker waits for the sub-agent's last one, unless it was launched async.
Stamps are whole seconds; `turns.py` refines them by reply and gap for open-loop replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from replicast.traces.canonical import (
    BlockPrefix,
    CanonicalTrace,
    Header,
    Line,
    SessionEnd,
    TraceRequest,
    TraceSession,
)
from replicast.traces.canonical_io import BAD_JSON, Duration, PromptTokens, Tokens, bad_row, reason
from replicast.traces.files import FileBytes, numbered_lines
from replicast.traces.report import ImportReport, InputFile


class _Request(Struct, kw_only=True):
    t: Duration
    prompt: PromptTokens = msgspec.field(name="in")
    out: Tokens
    hash_ids: list[Annotated[int, Meta(ge=0)]]
    type: str = "n"
    model: str | None = None
    stop: str | None = None
    api_time: Duration | None = None
    think_time: float | None = None
    ttft: Duration | None = None
    input_types: list[str] = []


class _Agent(Struct):
    """The trace itself, or a sub-agent's marker."""

    requests: list[dict[str, Any]]
    id: str | None = None
    block_size: Annotated[int, Meta(ge=1)] | None = None
    models: list[str] | None = None
    tool_tokens: Tokens | None = None
    system_tokens: Tokens | None = None
    totals: dict[str, Any] | None = None
    t: Duration = 0.0
    agent_id: str | None = None
    subagent_type: str | None = None
    duration_ms: Duration | None = None
    status: str | None = None


_SLOTS = frozenset(["type", "model", "in", "out", "hash_ids", "api_time", "think_time", "ttft", "stop"])
_AGENT_SLOTS = frozenset(field.encode_name for field in msgspec.structs.fields(_Agent)) | {
    "type",
    "hash_id_scope",
}


def read_weka(files: Sequence[FileBytes], report: ImportReport, skip: bool) -> list[CanonicalTrace]:
    """One canonical trace a block size, sessions in the order of the files."""
    traces: dict[int, CanonicalTrace] = {}
    for file in files:
        read, dropped = report.rows_read, report.dropped.total()
        for place, document in _documents(file, report, skip):
            _Conversion(place, report, skip).into(traces, document)
        report.inputs.append(
            InputFile(str(file.path), file.sha256, report.rows_read - read, report.dropped.total() - dropped)
        )
    return list(traces.values())


def _documents(file: FileBytes, report: ImportReport, skip: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        yield str(file.path), msgspec.json.decode(file.data, type=dict[str, Any])
        return
    except BAD_JSON as error:
        whole = error
    first = next(numbered_lines(file), (0, b""))[1]
    if not first.rstrip().endswith(b"}"):  # one object over many lines
        if not skip:
            raise bad_row(whole, str(file.path)) from None
        report.rows_read += 1
        report.dropped[reason(whole)] += 1
        return
    for number, text in numbered_lines(file):
        try:
            yield f"{file.path}:{number}", msgspec.json.decode(text, type=dict[str, Any])
        except BAD_JSON as error:
            if not skip:
                raise bad_row(error, f"{file.path}:{number}") from None
            report.rows_read += 1
            report.dropped[reason(error)] += 1


class _Conversion:
    """One trace on its way to canonical lines."""

    def __init__(self, place: str, report: ImportReport, skip: bool) -> None:
        self._place = place
        self._report = report
        self._skip = skip
        self._lines: list[Line] = []
        self._places: list[str] = []

    def into(self, traces: dict[int, CanonicalTrace], document: dict[str, Any]) -> None:
        try:
            agent = msgspec.convert(document, _Agent)
            if agent.id is None or agent.block_size is None:
                raise msgspec.ValidationError("a trace needs id and block_size")
        except msgspec.ValidationError as error:
            self._bad(error, self._place)
            return
        session = TraceSession(
            agent.id,
            "root",
            models=agent.models,
            shared_prefix=_shared("claude-code", agent),
            extra=_ext(document, _AGENT_SLOTS),
        )
        self._add(session, self._place)
        self._requests(agent, session, offset_s=0.0, after=[])
        if agent.totals is not None:
            self._add(SessionEnd(agent.id, {"ext": {"totals": agent.totals}}), self._place)
        trace = traces.get(agent.block_size)
        if trace is None:
            header = Header(
                {"format": "weka_trace"},
                block_size=agent.block_size,
                block_scope="session_tree",
                partial_block="dropped",
                tokenizer="tiktoken gpt-4 (approximation of Claude)",
            )
            trace = traces[agent.block_size] = CanonicalTrace(header, [])
        trace.lines.extend(self._lines)
        trace.places.extend(self._places)

    def _add(self, line: Line, place: str) -> None:
        self._lines.append(line)
        self._places.append(place)

    def _bad(self, error: Exception, place: str) -> None:
        if not self._skip:
            raise bad_row(error, place) from None
        self._report.rows_read += 1
        self._report.dropped[reason(error)] += 1

    def _requests(
        self,
        agent: _Agent,
        session: TraceSession,
        *,
        offset_s: float,
        after: list[str],
        where: str = "requests",
    ) -> str | None:
        """Add the agent's requests and sub-agents; the id of its last request."""
        last: str | None = None
        last_ids: list[int] = []
        joins: list[str] = []
        turn = 0
        for number, item in enumerate(agent.requests):
            place = f"{self._place}: {where}[{number}]"
            try:
                if item.get("type") == "subagent":
                    marker = msgspec.convert(item, _Agent)
                    ended = self._subagent(
                        marker, item, session, offset_s, last, f"{where}[{number}].requests"
                    )
                    if ended is not None and marker.status != "async_launched":
                        joins.append(ended)
                    continue
                row = msgspec.convert(item, _Request)
            except msgspec.ValidationError as error:
                self._bad(error, place)
                continue
            self._report.rows_read += 1
            name = f"{session.session}#{turn}"
            keep = common_ids(last_ids, row.hash_ids)
            waits = [last, *joins] if last is not None else [*after, *joins]
            base = BlockPrefix(
                last, keep, id_runs(row.hash_ids, keep), {"base": None} if last is None else None
            )
            extra = _ext(item, _SLOTS)
            if row.think_time is None:
                extra["delay_s"] = None
            request = TraceRequest(
                name,
                session.session,
                turn,
                row.prompt,
                row.out,
                waits,
                round(offset_s + row.t, 6),
                None if row.think_time is None else max(row.think_time, 0.0),
                trigger=_trigger(turn, session, row),
                model=row.model,
                stream=row.type == "s",
                prefix=base,
                obs=_obs(row),
                extra=extra,
            )
            self._add(request, place)
            last, last_ids, joins, turn = name, row.hash_ids, [], turn + 1
        return last

    def _subagent(
        self,
        marker: _Agent,
        item: dict[str, Any],
        parent: TraceSession,
        offset_s: float,
        spawn_after: str | None,
        where: str,
    ) -> str | None:
        if marker.agent_id is None:
            raise msgspec.ValidationError("a subagent needs agent_id")
        session = TraceSession(
            f"{parent.session}/{marker.agent_id}",
            "subagent",
            parent.session,
            spawn_after,
            round(offset_s + marker.t, 6),
            marker.subagent_type,
            status=marker.status,
            duration_s=None if marker.duration_ms is None else marker.duration_ms / 1000,
            models=marker.models,
            shared_prefix=_shared(f"claude-code-sub/{marker.subagent_type}", marker),
            extra=_ext(item, _AGENT_SLOTS),
        )
        self._add(session, f"{self._place}: {where}")
        starts = marker.requests[0].get("t") if marker.requests else None
        absolute = isinstance(starts, int | float) and starts >= marker.t > 0
        return self._requests(
            marker,
            session,
            offset_s=offset_s + (0.0 if absolute else marker.t),
            after=[] if spawn_after is None else [spawn_after],
            where=where,
        )


def _shared(group: str, agent: _Agent) -> dict[str, Any] | None:
    if agent.tool_tokens is None or agent.system_tokens is None:
        return None
    return {
        "group": f"{group}/tools{agent.tool_tokens}/sys{agent.system_tokens}",
        "tokens": agent.tool_tokens + agent.system_tokens,
        "tool_tokens": agent.tool_tokens,
        "system_tokens": agent.system_tokens,
    }


def common_ids(before: Sequence[int], ids: Sequence[int]) -> int:
    """Leading ids that both have."""
    limit = min(len(before), len(ids))
    if before[:limit] == ids[:limit]:
        return limit
    return next(k for k in range(limit) if before[k] != ids[k])


def id_runs(ids: Sequence[int], start: int) -> list[tuple[int, int]]:
    """Runs `(first, count)` of consecutive ids from position `start` on."""
    runs: list[list[int]] = []
    expected = None
    for chain_id in ids[start:]:
        if chain_id == expected:
            runs[-1][1] += 1
        else:
            runs.append([chain_id, 1])
        expected = chain_id + 1
    return [(first, count) for first, count in runs]


def _trigger(turn: int, session: TraceSession, row: _Request) -> str:
    if turn == 0 and session.parent is not None:
        return "spawn"
    return "tool" if "tool_result" in row.input_types else "user"


def _obs(row: _Request) -> dict[str, Any]:
    obs = {"e2e_s": row.api_time, "ttft_s": row.ttft, "stop": row.stop}
    return {key: value for key, value in obs.items() if value is not None}


def _ext(item: dict[str, Any], slots: frozenset[str]) -> dict[str, Any]:
    ext = {key: value for key, value in item.items() if key not in slots}
    return {"ext": ext} if ext else {}
