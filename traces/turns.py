"""From canonical lines to Sessions: references checked, turns in order, delays resolved.

One `Session` per root and all its sub-agents, turns in file order; whatever a turn waits for or
takes its prefix from must come before it. A turn waits for `wait_for`, or the previous turn of its
context, or (first turn of a sub-agent) `spawn_after`; `timing.py` says for how long after.

Turns of models that are not served go last: who waited for one inherits what it waited for, and
the time it took.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from replicast.sim.errors import InputError
from replicast.sim.workload import Session, Turn, num_tokens
from replicast.traces.canonical import BlockPrefix, CanonicalTrace, TraceRequest, TraceSession
from replicast.traces.canonical_io import MAX_TOKENS, SKIP_HINT
from replicast.traces.content import (
    Context,
    Growing,
    IdSpace,
    Node,
    PrefixError,
    Streams,
    close_nodes,
    open_node,
    scaled,
)
from replicast.traces.report import ImportReport
from replicast.traces.timing import arrivals_of, delay_of, e2e_s


class BadRowError(Exception):
    """A row that cannot be used: a short reason to count by, and the whole story."""

    def __init__(self, reason: str, what: str) -> None:
        super().__init__(what)
        self.reason = reason


class Builder:
    """Builds the sessions of one file after another, with streams that never collide."""

    def __init__(
        self,
        report: ImportReport,
        *,
        models: str | None = None,
        token_scale: float = 1.0,
        reply_reuse: bool = True,
        share_prefixes: bool = True,
        skip_bad_rows: bool = False,
        jitter: np.random.Generator | None = None,
    ) -> None:
        self._report = report
        self._jitter = jitter
        self._models = _pattern(models)
        self._scale = token_scale
        self._reply_reuse = reply_reuse
        self._share = share_prefixes
        self._skip = skip_bad_rows
        self._streams = Streams()
        self._nodes: dict[str, Node] = {}
        self._contexts: dict[str, Context] = {}  # of the trace at hand
        self._earlier: set[str] = set()  # names of sessions of the traces before
        self._all_ids: frozenset[str] | None = None  # of the trace at hand, made when first needed
        self.bad_places: list[str] = []  # rows left out because they do not fit the others
        self.bad_sessions: list[str] = []  # those of them that are session lines

    def sessions(self, trace: CanonicalTrace) -> list[Session]:
        """Sessions of `trace` in the order of their root lines."""
        self._all_ids = None
        if len(trace.places) != len(trace.lines):  # made in memory
            trace.places = [f"line {number} of the trace" for number in range(2, len(trace.lines) + 2)]
        contexts, firsts, ends = self._open_contexts(trace)
        _claim_shared(firsts, self._contexts)
        trees: dict[str, list[Node]] = {
            context.session.session: [] for context in contexts if context.root is None
        }
        under_way = deque(trees)
        out: list[Session] = []
        for number, line in enumerate(trace.lines):
            if not isinstance(line, TraceRequest):
                continue
            try:
                node = self._open(line, trace)
            except BadRowError as bad:
                self._bad(bad, trace.places[number])
            else:
                tree = trees[(node.context.root or node.context).session.session]
                node.index = len(tree)
                tree.append(node)
            while under_way and ends[under_way[0]] <= number:  # complete, and still in the processor's cache
                session = self._close(trees[under_way.popleft()], trace)
                if session is not None:
                    out.append(session)
        for context in contexts:
            context.nodes.clear()  # a cycle less for the collector
        self._earlier.update(self._contexts)
        self._contexts = {}
        return out

    def _close(self, tree: list[Node], trace: CanonicalTrace) -> Session | None:
        if not tree:
            return None
        close_nodes(reversed(tree), reply_reuse=self._reply_reuse)
        return self._session(tree, trace)

    def _bad(self, bad: BadRowError, place: str) -> None:
        if not self._skip:
            raise InputError(str(bad), where=place, remedy=SKIP_HINT) from None
        self._report.dropped[bad.reason] += 1
        self.bad_places.append(place)

    def _bad_session(self, bad: BadRowError, place: str) -> None:
        self._bad(bad, place)
        self._report.rows_read += 1  # a session line is a row only where it is dropped
        self.bad_sessions.append(place)

    def _open_contexts(
        self, trace: CanonicalTrace
    ) -> tuple[list[Context], list[TraceRequest], dict[str, int]]:
        """The contexts, their first requests, and of each root the last line of its tree's requests."""
        opened: list[Context] = []
        firsts: list[TraceRequest] = []
        last: dict[str, int] = {}
        for number, line in enumerate(trace.lines):
            if isinstance(line, TraceRequest):
                last[line.session] = number
                if not line.turn:
                    firsts.append(line)
                continue
            if not isinstance(line, TraceSession):
                continue
            place = trace.places[number]
            try:
                if line.session in self._contexts or line.session in self._earlier:
                    raise BadRowError("duplicate session", f"session {line.session!r} was there before")
                _check_shared(line)
            except BadRowError as bad:
                self._bad_session(bad, place)
                continue
            session = line if self._share else replace(line, shared_prefix=None)
            context = Context(session, place, Growing(self._streams), Growing(self._streams))
            self._contexts[line.session] = context
            opened.append(context)
        header = trace.header
        linked: list[Context] = []
        by_ids = header.block_size is not None and header.block_scope in ("global", "session_tree")
        file_ids = IdSpace(header.block_size or 1, self._streams) if header.block_scope == "global" else None
        own = dict(self._contexts)
        roots: dict[str, Context] = {}
        for member in opened:
            try:
                root = _root(member, own, roots)
                member.root = None if root is member else root
            except BadRowError as bad:
                self._bad_session(bad, member.place)
                del self._contexts[member.session.session]
                continue
            linked.append(member)
        if by_ids:
            for member in linked:
                root = member.root or member
                if root.ids is None:
                    root.ids = file_ids or IdSpace(header.block_size or 1, self._streams)
                member.ids = root.ids
        ends: dict[str, int] = {}
        for member in linked:
            tree = (member.root or member).session.session
            ends[tree] = max(ends.get(tree, -1), last.get(member.session.session, -1))
        return linked, firsts, ends

    def _open(self, request: TraceRequest, trace: CanonicalTrace) -> Node:
        if request.id in self._nodes:
            raise BadRowError("duplicate id", f"request {request.id!r} was there before")
        context = self._contexts.get(request.session)
        if context is None:
            raise BadRowError(
                "unknown session", f"request {request.id!r} is of unknown session {request.session!r}"
            )
        turns = context.nodes
        if request.turn != len(turns):
            raise BadRowError(
                "turns not contiguous", f"turn {request.turn} where turn {len(turns)} should be"
            )
        prefix = request.prefix
        base = turns[-1] if turns else None
        if prefix is not None and prefix.base is not None:
            base = self._nodes.get(prefix.base)
            if base is None:
                raise BadRowError(
                    "unknown base", f"prefix base {prefix.base!r} is no earlier request of this trace"
                )
        try:
            node = open_node(request, context, base, trace.header, self._streams)
        except PrefixError as error:
            raise BadRowError("bad prefix", str(error)) from None
        root = context.root or context
        for name in self._waits_for(request, context):
            before = self._nodes.get(name)
            if before is None or (before.context.root or before.context) is not root:
                raise self._cannot_wait(node, name, before, trace)
            node.waits_for.append(before.index)
        self._nodes[request.id] = node
        turns.append(node)
        return node

    def _waits_for(self, request: TraceRequest, context: Context) -> Sequence[str]:
        if request.wait_for is not None:
            return request.wait_for
        if request.turn:
            return (context.nodes[request.turn - 1].request.id,)
        spawned = context.session.spawn_after
        return () if spawned is None else (spawned,)

    def _cannot_wait(self, node: Node, name: str, found: Node | None, trace: CanonicalTrace) -> BadRowError:
        what = f"{node.request.id!r} waits for {name!r}"
        if found is not None:
            return BadRowError("wait_for outside the session", f"{what} of another session")
        if self._all_ids is None:
            self._all_ids = frozenset(line.id for line in trace.lines if isinstance(line, TraceRequest))
        if name in self._all_ids:
            return BadRowError(
                "wait_for is not earlier",
                f"{what}, which does not come before it: a cycle, or lines out of order",
            )
        return BadRowError("unknown wait_for", f"{what}, which is no request of this trace")

    def _session(self, tree: list[Node], trace: CanonicalTrace) -> Session | None:
        report, pattern, scale = self._report, self._models, self._scale
        arrivals = arrivals_of(tree, trace.header, self._jitter, report)
        depends: list[tuple[int, ...]] = []  # on kept turns, by their new index
        extra: list[float] = []  # time of dropped turns in between
        kept: dict[int, int] = {}
        turns: list[Turn] = []
        for position, node in enumerate(tree):
            request = node.request
            delay_s = request.delay_s
            if delay_s is None:
                delay_s = delay_of(node, tree, arrivals, report)
            waiting, passed_s = _inherited(node.waits_for, kept, depends, extra)
            depends.append(waiting)
            if pattern is not None and not pattern.search(request.model or ""):
                report.dropped["model not served"] += 1
                extra.append(passed_s + delay_s + e2e_s(request))
                continue
            extra.append(0.0)
            kept[position] = len(turns)
            prompt, output = node.prompt or (), node.output
            num_prompt, num_output = request.prompt_tokens, request.output_tokens
            if num_output < 1:
                num_output = 1
                report.flags["output_raised_to_1"] += 1
            if scale != 1.0:
                prompt, output = scaled(prompt, scale), scaled(output, scale)
                num_prompt, num_output = num_tokens(prompt), num_tokens(output)
            for flag in request.flags or ():
                report.flags[flag] += 1
                report.estimated_outputs += flag == "output_estimated"
            if request.prefix is None:
                report.flags["prefix_assumed"] += 1
            turns.append(
                Turn(
                    request.id,
                    request.session,
                    waiting,
                    delay_s + passed_s,
                    prompt,
                    output,
                    num_prompt,
                    num_output,
                    arrivals[position],
                    request.tool_s,
                    request.think_s,
                    request.trigger or "unknown",
                    request.model,
                    request.priority or 0,
                )
            )
        if not turns:
            return None
        report.rows_emitted += len(turns)
        root = tree[0].context.root or tree[0].context
        start_s = turns[0].arrival_s if trace.header.has_global_clock else None
        return Session(root.session.session, tuple(turns), start_s, root.place)


def _inherited(
    waits: Sequence[int], kept: Mapping[int, int], depends: Sequence[tuple[int, ...]], extra: Sequence[float]
) -> tuple[tuple[int, ...], float]:
    """The kept turns that a turn waits for, and the time of dropped ones in between."""
    if len(waits) == 1 and waits[0] in kept:  # nearly always
        return (kept[waits[0]],), 0.0
    inherited: set[int] = set()
    passed_s = 0.0
    for index in waits:
        if index in kept:
            inherited.add(kept[index])
        else:
            inherited.update(depends[index])
            passed_s = max(passed_s, extra[index])
    return tuple(sorted(inherited)), passed_s


def _claim_shared(firsts: Iterable[TraceRequest], contexts: Mapping[str, Context]) -> None:
    for request in firsts:
        context, prefix = contexts.get(request.session), request.prefix
        if context is None or context.ids is None or context.shared is None:
            continue
        if isinstance(prefix, BlockPrefix) and not prefix.keep:
            context.ids.claim(*context.shared, prefix.add)


def _root(context: Context, own: Mapping[str, Context], roots: dict[str, Context]) -> Context:
    """The root of `context` among the trace's `own` contexts; `roots` remembers those found before."""
    path: dict[str, None] = {}
    root = context
    while root.session.session not in roots:
        path[root.session.session] = None
        parent = root.session.parent
        if parent is None:
            roots[root.session.session] = root
        elif parent in path:
            raise BadRowError("cycle of parents", f"session {context.session.session!r} is its own ancestor")
        elif parent not in own:
            raise BadRowError("unknown parent", f"parent {parent!r} is no session of this trace")
        else:
            root = own[parent]
    root = roots[root.session.session]
    roots.update(dict.fromkeys(path, root))
    return root


def _check_shared(session: TraceSession) -> None:
    shared = session.shared_prefix
    if shared is None:
        return
    group, tokens = shared.get("group"), shared.get("tokens")
    if not isinstance(group, str) or not isinstance(tokens, int) or not 0 <= tokens <= MAX_TOKENS:
        raise BadRowError("bad value", 'shared_prefix needs {"group": text, "tokens": whole number >= 0}')


def _pattern(models: str | None) -> re.Pattern[str] | None:
    if models is None:
        return None
    try:
        return re.compile(models)
    except re.error as error:
        raise InputError(
            f"{models!r} is no regular expression: {error}",
            where="--models",
            remedy="For example: --models opus",
        ) from None
