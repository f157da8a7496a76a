"""Claude Code transcripts (`~/.claude/projects`): usage and time stamps become requests.

A request becomes ready with the last tool result or human text before its reply, so the gap after
the previous reply parts into tool and human time. Its prompt is input + cache creation + cache read.

Identity (counts) comes from the text, not from what the provider's cache did: a prompt at least half
as long as the last one of the same model grows from it; a shorter one keeps what was read from the
cache; another model starts cold. Only a context's first cache read is taken as the tools and system
text that sessions share, unless it is so long that the start of the session must be missing.

A message that was copied into a resumed or forked session, or replayed in a side chain, counts once,
where it came first; what follows the copies takes its prefix from the original.
Sub-agents wait for the request that spawned them; the parent waits for those that ended before its
next request. A compaction call repeats its parent's context.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
from replicast.traces.canonical import CanonicalTrace, CountPrefix, Header, Kind, TraceRequest, TraceSession
from replicast.traces.files import FileBytes, encodable
from replicast.traces.formats.claude_lines import Agents, Lines, Reply, read_lines
from replicast.traces.report import ImportReport, InputFile

LONGEST_SHARED_PREFIX = 40_000  # a first cache read beyond this is a session whose start is missing
_HELPER_FILE = re.compile(r"agent-a([a-z_]{4,})-")


@dataclass(slots=True, eq=False)
class _Call:
    """A request with its timing: ready, first and last line of its reply."""

    reply: Reply
    context: _Context
    ready_s: float
    trigger: str
    turn: int
    tool_end_s: float | None = None  # when the last tool was done
    base: TraceRequest | None = None  # the original that the lines before this one are copied from
    joins: list[_Call] = field(default_factory=list)
    request: TraceRequest | None = None


@dataclass(slots=True, eq=False)
class _Context:
    lines: Lines
    name: str
    kind: Kind
    agent_id: str | None = None
    agent_type: str | None = None
    parent: _Context | None = None
    spawned_by: _Call | None = None
    calls: list[_Call] = field(default_factory=list)
    shared: dict[str, Any] | None = None
    copied: dict[str, str | None] = field(default_factory=dict)  # message before a call -> its original


def read_claude_code(files: Sequence[FileBytes], report: ImportReport, skip: bool) -> list[CanonicalTrace]:
    """All transcripts as one trace, since a message may stand in several files."""
    agents, others = Agents(), Counter[str]()
    found: list[Lines] = []
    for file in files:
        read, dropped = report.rows_read, report.dropped.total()
        found.extend(read_lines(file, agents, report, others, skip=skip))
        report.inputs.append(
            InputFile(str(file.path), file.sha256, report.rows_read - read, report.dropped.total() - dropped)
        )
    if others:
        kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(others.items()))
        report.notes.append(f"lines without a request: {kinds}")
    roots = _contexts(found, agents)
    contexts = [context for root in roots for context in root]
    _drop_copies(contexts, report)
    for context in contexts:
        _time(context)
    for root in roots:
        for context in root[1:]:
            _link(context)
    _share(contexts)
    return [_trace(roots, report)]


def _contexts(found: Sequence[Lines], agents: Agents) -> list[list[_Context]]:
    """Main agents, each with its sub-agents behind it, by the time of their first and last line."""
    mains: dict[str, _Context] = {}
    trees: dict[str, list[_Context]] = {}
    of_session: dict[str, str] = {}
    for lines in found:
        if lines.sidechain is None and not lines.file.path.name.startswith("agent-"):
            name = _stem(lines.file)
            if name in mains:
                name = f"{encodable(lines.file.path.parent.name)}/{name}"
            while name in mains:
                name += "+"
            mains[name] = _Context(lines, name, "root")
            trees[name] = [mains[name]]
            of_session.setdefault(str(lines.file.path.parent / _stem(lines.file)), name)
            if lines.session_id is not None:
                of_session.setdefault(lines.session_id, name)
    for lines in found:
        path = lines.file.path
        is_file = path.name.startswith("agent-")
        if lines.sidechain is None and not is_file:
            continue
        agent_id = lines.sidechain or _stem(lines.file).removeprefix("agent-")
        keys = [str(path.parent / _stem(lines.file)), str(path.parent.parent), lines.session_id or ""]
        owner = next((of_session[key] for key in keys if key in of_session), None)
        if owner is None:  # the main transcript is not here
            owner = (
                encodable(path.parent.parent.name)
                if path.parent.name == "subagents"
                else lines.session_id or _stem(lines.file)
            )
            if owner in trees and owner in mains:
                owner += "+"
            if owner not in trees:
                trees[owner] = [_Context(Lines(lines.file, None), owner, "root")]
        parent = trees[owner][0]
        kind, agent_type = _kind(lines.file), agents.agent_type(agent_id) or _meta_type(lines.file)
        name = f"{owner}/{agent_id}"
        while any(context.name == name for context in trees[owner]):
            name += "+"
        trees[owner].append(_Context(lines, name, kind, agent_id, agent_type, parent))
    for tree in trees.values():
        tree[1:] = sorted(tree[1:], key=lambda context: (_span(context), context.name))
    return sorted(trees.values(), key=lambda tree: (min(map(_span, tree)), tree[0].name))


def _span(context: _Context) -> tuple[float, float]:
    replies = context.lines.replies.values()
    if not replies:
        return float("inf"), float("inf")
    return min(reply.first_s for reply in replies), max(reply.last_s for reply in replies)


def _stem(file: FileBytes) -> str:
    return file.name.removesuffix(".gz").rsplit(".", 1)[0]


def _kind(file: FileBytes) -> Kind:
    helper = _HELPER_FILE.match(file.path.name)
    if helper is None:
        return "subagent"
    return "compact" if helper[1] == "compact" else "helper"


def _meta_type(file: FileBytes) -> str | None:
    path = file.path.parent / f"{_stem(file)}.meta.json"
    try:
        meta = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return None
    kind = meta.get("agentType")
    return kind if isinstance(kind, str) else None


def _drop_copies(contexts: Sequence[_Context], report: ImportReport) -> None:
    """Keep a message in the first main agent that has it, else in the first sub-agent."""
    owner: dict[str, _Context] = {}
    for context in sorted(contexts, key=lambda context: context.parent is not None):
        for name in context.lines.replies:
            owner.setdefault(name, context)
    for context in contexts:
        kept: dict[str, Reply] = {}
        copy: str | None = None
        for name, reply in context.lines.replies.items():
            if owner[name] is context:
                kept[name] = reply
                report.dropped["further line of a message"] += reply.lines - 1
                if copy is not None:
                    context.copied[name] = copy
                    copy = None
                continue
            copy = name
            replayed = context.parent is not None and owner[name].parent is None
            reason = "replayed in a side chain" if replayed else "copied by resume or fork"
            report.dropped[reason] += reply.lines
        context.lines.replies = kept
    for reason in [reason for reason, number in report.dropped.items() if not number]:
        del report.dropped[reason]


def _time(context: _Context) -> None:
    """When each request became ready, and by what."""
    events = context.lines.events
    position = 0
    before: Reply | None = None
    for reply in context.lines.replies.values():
        tool_end_s = user_s = auto_s = None
        while position < len(events) and events[position].time_s <= reply.first_s:
            event = events[position]
            position += 1
            if event.kind == "tool":
                tool_end_s = event.time_s
            elif event.kind == "user":
                user_s = event.time_s
            else:
                auto_s = event.time_s
        moments = [moment for moment in (tool_end_s, user_s, auto_s) if moment is not None]
        ready_s = max(moments) if moments else min(before.last_s, reply.first_s) if before else reply.first_s
        if not moments:
            trigger = "auto" if before else "unknown"
        else:
            trigger = "tool" if ready_s == tool_end_s else "user" if ready_s == user_s else "auto"
        context.calls.append(_Call(reply, context, ready_s, trigger, len(context.calls), tool_end_s))
        before = reply


def _link(context: _Context) -> None:
    """The parent's request that spawned the context, and the one that waited for it."""
    parent = context.parent
    if parent is None or not context.calls:
        return
    first, last = context.calls[0], context.calls[-1]
    earlier = [call for call in parent.calls if call.reply.first_s <= first.ready_s]
    context.spawned_by = earlier[-1] if earlier else None
    if context.kind == "subagent":
        first.trigger = "spawn"
    elif first.trigger == "user":
        first.trigger = "auto"
    if len(earlier) < len(parent.calls):
        following = parent.calls[len(earlier)]
        if last.reply.last_s <= following.ready_s and last.ready_s < following.ready_s:
            following.joins.append(last)


def _share(contexts: Sequence[_Context]) -> None:
    """Tools and system text: the first cache read, or the group's shortest where that one was cold."""
    groups: dict[str, list[tuple[_Context, int]]] = {}
    for context in contexts:
        if not context.calls or context.kind == "compact" or context.copied:
            continue
        reply = context.calls[0].reply
        family = (
            "claude-code"
            if context.parent is None
            else f"claude-code-sub/{context.agent_type or context.kind}"
        )
        if reply.cached_tokens <= LONGEST_SHARED_PREFIX:
            groups.setdefault(f"{family}/{reply.model}", []).append((context, reply.cached_tokens))
    for group, members in groups.items():
        shortest = min((tokens for _, tokens in members if tokens), default=0)
        for context, tokens in members:
            tokens = min(tokens or shortest, context.calls[0].reply.prompt_tokens)
            if tokens:
                context.shared = {"group": group, "tokens": tokens}


def _trace(roots: Sequence[Sequence[_Context]], report: ImportReport) -> CanonicalTrace:
    calls = [call for root in roots for context in root for call in context.calls]
    zero_s = min((call.ready_s for call in calls), default=0.0)
    header = Header(
        {"format": "claude_code"},
        t0=datetime.fromtimestamp(zero_s, UTC).isoformat(timespec="milliseconds"),
        block_scope="none",
        tokenizer="Anthropic",
    )
    trace = CanonicalTrace(header, [])
    originals: dict[str, TraceRequest] = {}
    for root in roots:
        order = {context.name: number for number, context in enumerate(root)}
        tree = [call for context in root for call in context.calls]
        if not tree:
            continue
        _add_session(trace, root[0], zero_s)
        for call in sorted(tree, key=lambda call: (call.ready_s, order[call.context.name], call.turn)):
            if call.turn == 0 and call.context.parent is not None:
                _add_session(trace, call.context, zero_s)
            copy = call.context.copied.get(call.reply.message_id)
            if copy is not None:
                call.base = originals.get(copy)
            call.request = _request(call, zero_s)
            originals[call.reply.message_id] = call.request
            trace.lines.append(call.request)
            trace.places.append(call.reply.place)
    return trace


def _add_session(trace: CanonicalTrace, context: _Context, zero_s: float) -> None:
    spawner = context.spawned_by
    calls = context.calls
    session = TraceSession(
        context.name,
        context.kind,
        context.parent.name if context.parent else None,
        spawner.request.id if spawner is not None and spawner.request is not None else None,
        round(calls[0].ready_s - zero_s, 3) if context.parent and calls else None,
        context.agent_type,
        shared_prefix=context.shared,
        status=None if calls else "main transcript absent",
        duration_s=round(calls[-1].reply.last_s - calls[0].ready_s, 3) if calls else None,
        models=sorted({call.reply.model for call in calls if call.reply.model}) or None,
    )
    trace.lines.append(session)
    trace.places.append(calls[0].reply.place if calls else str(context.lines.file.path))


def _request(call: _Call, zero_s: float) -> TraceRequest:
    reply, context = call.reply, call.context
    flags: list[str] = []
    before = context.calls[call.turn - 1] if call.turn else context.spawned_by
    waited = [waited for waited in (before, *call.joins) if waited is not None]
    free_s = max((waited.reply.last_s for waited in waited), default=None)
    tool_s = think_s = delay_s = None
    if free_s is not None:
        delay_s = round(max(0.0, call.ready_s - free_s), 3)
        if call.turn and call.tool_end_s is not None:
            tool_s = round(min(max(0.0, call.tool_end_s - free_s), delay_s), 3)
        if call.turn and call.trigger == "user":
            think_s = round(delay_s - (tool_s or 0.0), 3)
    output = reply.output_tokens
    if reply.is_placeholder:
        output = max(output, reply.chars // 4)
        flags.append("output_estimated")
    return TraceRequest(
        f"{context.name}#{call.turn}",
        context.name,
        call.turn,
        reply.prompt_tokens,
        output,
        [waited.request.id for waited in waited if waited.request is not None],
        round(call.ready_s - zero_s, 3),
        delay_s if delay_s is not None else 0.0,
        tool_s,
        think_s,
        "join" if call.joins and call.trigger == "tool" else call.trigger,
        model=reply.model,
        prefix=_prefix(call, flags),
        obs=_obs(call),
        flags=flags or None,
    )


def _prefix(call: _Call, flags: list[str]) -> CountPrefix:
    """SCHEMA form 2; see the module's rules."""
    reply, context = call.reply, call.context
    base = call.base or _last(context.calls[: call.turn], reply.model)
    if base is None and context.kind == "compact" and context.parent is not None:
        earlier = [other for other in context.parent.calls if other.reply.first_s <= call.ready_s]
        base = _last(earlier, reply.model)
    if base is not None and base.model == reply.model:
        if 2 * reply.prompt_tokens >= base.prompt_tokens:
            return CountPrefix(base.id, min(base.prompt_tokens, reply.prompt_tokens), "prompt_growth")
        return CountPrefix(base.id, min(reply.cached_tokens, base.prompt_tokens), "cache_read")
    if call.turn:
        flags.append("model_switch")
    elif context.shared is not None:
        return CountPrefix(None, context.shared["tokens"], "shared_prefix")
    elif reply.cached_tokens > LONGEST_SHARED_PREFIX:
        flags.append("continuation")
    return CountPrefix(None, 0, "none")


def _last(calls: Iterable[_Call], model: str | None) -> TraceRequest | None:
    found = [call.request for call in calls if call.reply.model == model and call.request is not None]
    return found[-1] if found else None


def _obs(call: _Call) -> dict[str, Any]:
    reply = call.reply
    obs: dict[str, Any] = {
        "e2e_s": round(reply.last_s - call.ready_s, 3),
        "cached_tokens": reply.cached_tokens,
        "cache_write_tokens": reply.written_tokens,
        "first_record_s": round(reply.first_s - call.ready_s, 3),
    }
    if reply.stop is not None:
        obs["stop"] = reply.stop
    return obs
