"""Lines of Claude Code transcripts, grouped into contexts of replies and events.

A reply is all assistant lines with one `message.id`: their input counts agree, the largest output
count is the last. Without a `stop_reason` the output is a placeholder of the stream: where it is
under an eighth of the visible characters, a quarter of these is taken and flagged. Lines are sorted
by time stamp, which says when a content block was written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct
from replicast.traces.canonical_io import BAD_JSON, MAX_TOKENS, Tokens, bad_row, reason
from replicast.traces.files import FileBytes, numbered_lines
from replicast.traces.report import ImportReport

EventKind = Literal["tool", "user", "auto"]


class _Usage(Struct):
    input_tokens: Tokens = 0
    cache_creation_input_tokens: Tokens | None = 0
    cache_read_input_tokens: Tokens | None = 0
    output_tokens: Tokens = 0


class _Message(Struct):
    id: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    content: Any = None
    usage: _Usage | None = None


class _Line(Struct, rename="camel"):
    type: str | None = None
    uuid: str | None = None
    parent_uuid: str | None = None
    session_id: str | None = None
    agent_id: str | None = None
    request_id: str | None = None
    timestamp: str | None = None
    is_sidechain: bool | None = None
    is_meta: bool | None = None
    is_api_error_message: bool | None = None
    is_compact_summary: bool | None = None
    message: msgspec.Raw = msgspec.Raw()
    tool_use_result: Any = None
    data: Any = None
    parent_tool_use_id: str | None = msgspec.field(default=None, name="parentToolUseID")


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_message = msgspec.json.Decoder(_Message).decode


class Event(NamedTuple):
    """Input that became ready: a tool's result, a human's text, or the client's own text."""

    time_s: float
    kind: EventKind


@dataclass(slots=True, eq=False)
class Reply:
    """One request, as far as its response lines tell."""

    message_id: str
    place: str
    model: str | None
    first_s: float
    last_s: float
    prompt_tokens: int
    cached_tokens: int
    written_tokens: int
    output_tokens: int
    stop: str | None = None
    chars: int = 0
    lines: int = 1

    def add(self, other: Reply) -> None:
        """One more line of the same message."""
        self.first_s = min(self.first_s, other.first_s)
        self.last_s = max(self.last_s, other.last_s)
        self.output_tokens = max(self.output_tokens, other.output_tokens)
        self.stop = other.stop or self.stop
        self.chars += other.chars
        self.lines += 1

    @property
    def is_placeholder(self) -> bool:
        """Whether the recorded output is the start of the stream, not its end."""
        return self.stop is None and 8 * self.output_tokens < self.chars


@dataclass(slots=True, eq=False)
class Lines:
    """The lines of one context: replies in order of their first line, and events, both by time."""

    file: FileBytes
    sidechain: str | None  # None: the main agent
    session_id: str | None = None
    replies: dict[str, Reply] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def sort(self) -> None:
        ordered = sorted(self.replies.values(), key=lambda reply: reply.first_s)
        self.replies = {reply.message_id: reply for reply in ordered}
        self.events.sort()


@dataclass(slots=True)
class Agents:
    """What the parents say about their sub-agents."""

    type_of_tool_use: dict[str, str] = field(default_factory=dict)
    tool_use_of_agent: dict[str, str] = field(default_factory=dict)

    def agent_type(self, agent_id: str) -> str | None:
        return self.type_of_tool_use.get(self.tool_use_of_agent.get(agent_id, ""))


def read_lines(
    file: FileBytes, agents: Agents, report: ImportReport, others: Counter[str], *, skip: bool
) -> list[Lines]:
    """The contexts of `file`: its main agent and sub-agents whose lines stand among its own."""
    contexts: dict[str | None, Lines] = {}
    roots: dict[str, str] = {}  # side-chain line -> first line of its chain
    seen: set[str] = set()
    for number, text in numbered_lines(file):
        place = f"{file.path}:{number}"
        try:
            line = _decode_line(text)
            if line.uuid is not None and line.uuid in seen:
                if line.type == "assistant":
                    report.rows_read += 1
                    report.dropped["line twice in a file"] += 1
                continue
            key = _sidechain(line, roots)
            context = contexts.get(key)
            if context is None:
                context = contexts[key] = Lines(file, key)
            context.session_id = context.session_id or line.session_id
            if line.type == "assistant":
                report.rows_read += 1
                _assistant(line, place, context, agents, report)
            elif line.type == "user":
                _user(line, context, agents)
            else:
                others[line.type or "no type"] += 1
                _progress(line, agents)
        except BAD_JSON as error:
            if not skip:
                raise bad_row(error, place) from None
            report.rows_read += b'"assistant"' not in text or not _is_assistant(text)
            report.dropped[reason(error)] += 1
            continue
        if line.uuid is not None:
            seen.add(line.uuid)
    for context in contexts.values():
        context.sort()
    return [context for context in contexts.values() if context.replies]


def _is_assistant(text: bytes) -> bool:
    """Whether the line was counted as a row before its message turned out bad."""
    try:
        return _decode_line(text).type == "assistant"
    except BAD_JSON:
        return False


def _sidechain(line: _Line, roots: dict[str, str]) -> str | None:
    if not line.is_sidechain:
        return None
    if line.agent_id is not None:
        return line.agent_id
    root = roots.get(line.parent_uuid or "", line.uuid or "sidechain")
    if line.uuid is not None:
        roots[line.uuid] = root
    return root


def _assistant(line: _Line, place: str, context: Lines, agents: Agents, report: ImportReport) -> None:
    message = _decode_message(line.message) if bytes(line.message) not in (b"", b"null") else _Message()
    usage = message.usage
    if line.is_api_error_message:
        report.dropped["API error"] += 1
    elif message.model == "<synthetic>":
        report.dropped["synthetic message"] += 1
    elif usage is None:
        report.dropped["no usage"] += 1
    else:
        for block in blocks(message.content):
            agent_type = block.get("subagent_type") or _of(block.get("input"), "subagent_type")
            if isinstance(agent_type, str) and isinstance(block.get("id"), str):
                agents.type_of_tool_use[block["id"]] = agent_type
        cached, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
        prompt = usage.input_tokens + cached + written
        if prompt == 0:
            report.dropped["empty prompt"] += 1
            return
        if prompt > MAX_TOKENS:
            raise msgspec.ValidationError(f"a prompt of {prompt} tokens - at `$.message.usage`")
        time_s = _time_s(line)
        name = message.id or line.request_id or line.uuid or place
        reply = Reply(
            name, place, message.model, time_s, time_s, prompt, cached, written, usage.output_tokens,
            message.stop_reason, _visible_chars(message.content),
        )  # fmt: skip
        known = context.replies.get(name)
        if known is None:
            context.replies[name] = reply
        else:
            known.add(reply)


def _user(line: _Line, context: Lines, agents: Agents) -> None:
    if line.is_meta or line.timestamp is None:
        return
    content = _of(msgspec.json.decode(line.message), "content") if bytes(line.message) else None
    results = [block for block in blocks(content) if block.get("type") == "tool_result"]
    agent = _of(line.tool_use_result, "agentId")
    if results and isinstance(agent, str) and isinstance(results[0].get("tool_use_id"), str):
        agents.tool_use_of_agent.setdefault(agent, results[0]["tool_use_id"])
    kind: EventKind = "tool" if results else "auto" if line.is_compact_summary else "user"
    context.events.append(Event(_time_s(line), kind))


def _progress(line: _Line, agents: Agents) -> None:
    agent = _of(line.data, "agentId")
    if isinstance(agent, str) and line.parent_tool_use_id is not None:
        agents.tool_use_of_agent.setdefault(agent, line.parent_tool_use_id)


def blocks(content: Any) -> Iterator[dict[str, Any]]:
    """Content blocks, where content is a list of them."""
    if isinstance(content, list):
        yield from (block for block in content if isinstance(block, dict))


def _of(holder: Any, key: str) -> Any:
    return holder.get(key) if isinstance(holder, dict) else None


def _visible_chars(content: Any) -> int:
    """Characters that the model wrote; transcripts without text carry their number instead."""
    chars = len(content) if isinstance(content, str) else 0
    for block in blocks(content):
        for text_key, count_key in (("text", "chars"), ("thinking", "chars"), ("input", "input_chars")):
            text, number = block.get(text_key), block.get(count_key)
            if isinstance(text, str):
                chars += len(text)
            elif text is not None:
                chars += len(msgspec.json.encode(text))
            elif isinstance(number, int) and block.get("type") == _TYPE_OF[text_key]:
                chars += number
    return chars


_TYPE_OF = {"text": "text", "thinking": "thinking", "input": "tool_use"}


def _time_s(line: _Line) -> float:
    try:
        moment = datetime.fromisoformat(line.timestamp or "")
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise msgspec.ValidationError(
            f"timestamp {line.timestamp!r} is no ISO time - at `$.timestamp`"
        ) from None
