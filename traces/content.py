"""Names for tokens: from the prefixes of canonical requests to content segments.

Identity comes from the trace, never from what a server's cache did. Two forms:

- *Block ids*: chain id `i` names tokens `i * block_size …` of one stream per session tree (per
  file where ids are global). The whole blocks that a session's first request opens below its
  `shared_prefix` name tokens of the group's stream instead, so that sessions of a group share
  them; a group's position is claimed once a tree, because inside a tree the ids themselves say
  what is shared.
- *Counts*: the first `keep_tokens` of the base, then new tokens of the context's own stream. New
  tokens always follow the last ones minted, so that plain growth stays one segment.

Replies and tails are found backwards. Where the next turn of the context keeps all ids (or tokens)
of a turn and is no shorter, its prompt says what the tokens behind the turn's last whole block
were, and its first `min(output - reasoning, growth)` new tokens are the reply. All else is private
to the context: nobody will ever ask for it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

from replicast.sim.workload import Content, Segment, cut, join
from replicast.traces.canonical import BlockPrefix, CountPrefix, Header, TraceRequest, TraceSession


class Streams:
    """Mints stream numbers; groups keep theirs over all files of a workload."""

    def __init__(self) -> None:
        self._next = count(1)
        self._groups: dict[str, int] = {}

    def fresh(self) -> int:
        return next(self._next)

    def group(self, name: str) -> int:
        if name not in self._groups:
            self._groups[name] = self.fresh()
        return self._groups[name]


class Growing:
    """A stream of which ever more tokens are handed out."""

    __slots__ = ("_stream", "_streams", "_used")

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._stream: int | None = None
        self._used = 0

    def take(self, length: int) -> Segment:
        if self._stream is None:
            self._stream = self._streams.fresh()
        segment = Segment(self._stream, self._used, length)
        self._used += length
        return segment


class Claim:
    """Ids `first … stop` whose content is the group's, from `offset` on."""

    __slots__ = ("first", "offset", "stop", "stream")

    def __init__(self, first: int, stop: int, stream: int, offset: int) -> None:
        self.first, self.stop, self.stream, self.offset = first, stop, stream, offset


class IdSpace:
    """The chain ids of one tree (or file) and the tokens they name."""

    def __init__(self, block_size: int, streams: Streams) -> None:
        self.block_size = block_size
        self._streams = streams
        self._stream = streams.fresh()
        self._claims: list[Claim] = []
        self._groups: set[str] = set()

    def claim(self, group: str, tokens: int, runs: Iterable[tuple[int, int]]) -> None:
        """The ids that `runs` put at the front, whole blocks below `tokens`, are `group`'s content."""
        if group in self._groups:
            return
        self._groups.add(group)
        stream = self._streams.group(group)
        position, end = 0, tokens // self.block_size
        for first, length in runs:
            taken = min(length, end - position)
            if taken <= 0:
                break
            if any(claim.first < first + taken and first < claim.stop for claim in self._claims):
                break  # another group's session opened this chain before
            self._claims.append(Claim(first, first + taken, stream, position * self.block_size))
            position += taken
        self._claims.sort(key=lambda claim: claim.first)

    def name(self, first: int, length: int, parts: list[Segment]) -> None:
        """Add what `length` ids from `first` on name."""
        size, stop = self.block_size, first + length
        for claim in self._claims:
            if claim.first >= stop:
                break
            if claim.stop <= first:
                continue
            if first < claim.first:
                _add(parts, self._stream, first * size, (claim.first - first) * size)
                first = claim.first
            end = min(stop, claim.stop)
            _add(parts, claim.stream, claim.offset + (first - claim.first) * size, (end - first) * size)
            first = end
        if first < stop:
            _add(parts, self._stream, first * size, (stop - first) * size)


@dataclass(slots=True, eq=False)
class Context:
    """A session line at work: its place in the tree, its streams, its turns so far."""

    session: TraceSession
    place: str
    own: Growing
    private: Growing
    root: Context | None = None  # None: this is the root
    ids: IdSpace | None = None
    nodes: list[Node] = field(default_factory=list)

    @property
    def shared(self) -> tuple[str, int] | None:
        """Group and tokens of the prefix shared with other sessions."""
        shared = self.session.shared_prefix
        return (str(shared["group"]), int(shared["tokens"])) if shared else None


@dataclass(slots=True, eq=False)
class Node:
    """A request at work. `named` is what its ids or counts name; `prompt` adds the tail."""

    request: TraceRequest
    context: Context
    base: Node | None
    named: Content
    num_ids: int
    keeps_base: bool  # all of the base, and no shorter: growth
    prompt: Content | None = None
    output: Content = ()
    index: int = 0  # in its tree
    waits_for: list[int] = field(default_factory=list)  # indices in its tree


class PrefixError(ValueError):
    """What is wrong with a request's prefix; the caller adds the place."""


def open_node(
    request: TraceRequest, context: Context, base: Node | None, header: Header, streams: Streams
) -> Node:
    """The request with everything that its own line and earlier ones say about its prompt."""
    prefix = request.prefix
    if isinstance(prefix, BlockPrefix):
        return _from_ids(request, prefix, context, base, header)
    prompt = request.prompt_tokens
    if prefix is None:
        prefix = _assumed(request, base)
    keep, how = prefix.keep_tokens, prefix.how
    if keep > prompt:
        raise PrefixError(f"keep_tokens {keep} is more than prompt_tokens {prompt}")
    if base is not None and how != "shared_prefix" and keep:
        if keep > base.request.prompt_tokens:
            raise PrefixError(
                f"keep_tokens {keep} is more than the {base.request.prompt_tokens} tokens of its base"
                f" {base.request.id!r}"
            )
        kept = head(whole_prompt(base, None), keep)
        named = join((*kept, context.own.take(prompt - keep)))
        grows = keep == base.request.prompt_tokens
    else:
        front = _group_front(request, prefix, context, streams)
        named = join((front, context.own.take(prompt - front.length)))
        grows = False
    return Node(request, context, base, named, 0, grows, named)


def _assumed(request: TraceRequest, base: Node | None) -> CountPrefix:
    """Without a prefix: growth if the model is the same and the prompt at least half the last one."""
    if base is not None and base.request.model == request.model:
        last = base.request.prompt_tokens
        if 2 * request.prompt_tokens >= last:
            return CountPrefix(base.request.id, min(last, request.prompt_tokens), "prompt_growth")
    return CountPrefix(None, 0, "none")


def _group_front(request: TraceRequest, prefix: CountPrefix, context: Context, streams: Streams) -> Segment:
    if context.shared is None or (request.turn and prefix.how != "shared_prefix"):
        return Segment(0, 0, 0)
    group, tokens = context.shared
    if prefix.how == "shared_prefix" and prefix.keep_tokens:
        tokens = min(tokens, prefix.keep_tokens)
    return Segment(streams.group(group), 0, min(tokens, request.prompt_tokens))


def _from_ids(
    request: TraceRequest, prefix: BlockPrefix, context: Context, base: Node | None, header: Header
) -> Node:
    if context.ids is None or header.block_size is None:
        raise PrefixError("the prefix has block ids, but the header has no block_size and block_scope")
    size, prompt, keep = header.block_size, request.prompt_tokens, prefix.keep
    num_base_ids = base.num_ids if base is not None else 0
    if keep and base is not None and base.context.ids is not context.ids:
        raise PrefixError(f"its base {base.request.id!r} has ids of another session tree")
    if keep > num_base_ids:
        name = repr(base.request.id) if base is not None else "no base"
        raise PrefixError(f"keep {keep} is more than the {num_base_ids} ids of {name}")
    parts: list[Segment] = []
    if base is not None and keep:
        parts.extend(base.named if keep == num_base_ids else head(base.named, keep * size))
    num_ids = keep
    for first, length in prefix.add:
        if first < 0 or length < 1:
            raise PrefixError(f"a run of ids must be [first >= 0, count >= 1], not [{first}, {length}]")
        context.ids.name(first, length, parts)
        num_ids += length
    own_id = header.partial_block == "own_id"
    expected = -(-prompt // size) if own_id else prompt // size
    if num_ids != expected:
        raise PrefixError(f"{num_ids} block ids, but {prompt} tokens have {expected} blocks of {size}")
    grows = base is not None and keep == num_base_ids and prompt >= base.request.prompt_tokens
    named = tuple(parts)
    whole = head(named, prompt) if own_id else named if num_ids * size == prompt else None
    return Node(request, context, base, named, num_ids, grows, whole)


def _add(parts: list[Segment], stream: int, offset: int, length: int) -> None:
    """Add a segment behind the others, merged with the last where it continues that one."""
    if parts:
        last = parts[-1]
        if last.stream == stream and last.offset + last.length == offset:
            parts[-1] = Segment(stream, last.offset, last.length + length)
            return
    parts.append(Segment(stream, offset, length))


def head(content: Content, length: int) -> Content:
    """The first `length` tokens of `content`, which has at least as many.

    >>> head((Segment(1, 0, 5), Segment(2, 7, 5)), 6)
    (Segment(stream=1, offset=0, length=5), Segment(stream=2, offset=7, length=1))
    """
    for position, segment in enumerate(content):
        size = segment.length
        if length <= size:
            if length == size:
                return content[: position + 1]
            cut_off = (Segment(segment.stream, segment.offset, length),) if length else ()
            return content[:position] + cut_off
        length -= size
    return content


def whole_prompt(node: Node, grown: Node | None) -> Content:
    """The node's prompt; `grown`, the next turn, repeats all of it, where there is one."""
    if node.prompt is None:
        length = node.request.prompt_tokens
        if grown is not None and grown.prompt is not None:
            node.prompt = head(grown.prompt, length)
        else:
            ids = node.context.ids
            assert ids is not None, "only ids leave a tail unnamed"
            tail = node.context.private.take(length - node.num_ids * ids.block_size)
            node.prompt = (*node.named, tail)
    return node.prompt


def close_nodes(nodes: Iterable[Node], *, reply_reuse: bool) -> None:
    """Tails and replies of a tree; `nodes` come last first."""
    for node in nodes:
        request, context = node.request, node.context
        turns, following = context.nodes, request.turn + 1
        grown = turns[following] if following < len(turns) else None
        if grown is not None and (not grown.keeps_base or grown.base is not node):
            grown = None
        whole_prompt(node, grown)
        length = max(request.output_tokens, 1)
        reused = 0
        if reply_reuse and grown is not None and grown.prompt is not None:
            growth = grown.request.prompt_tokens - request.prompt_tokens
            reused = min(length - (request.reasoning_tokens or 0), growth)
        if reused <= 0 or grown is None or grown.prompt is None:
            node.output = (context.private.take(length),)
            continue
        reply = cut(grown.prompt, request.prompt_tokens, request.prompt_tokens + reused)
        node.output = reply if reused == length else join((*reply, context.private.take(length - reused)))


def scaled(content: Content, factor: float) -> Content:
    """`content` in another tokenizer's tokens: every position of every stream moves alike.

    >>> scaled((Segment(1, 0, 5), Segment(2, 5, 3)), 1.5)
    (Segment(stream=1, offset=0, length=8), Segment(stream=2, offset=8, length=4))
    """
    out = []
    for stream, offset, length in content:
        start, stop = round(offset * factor), round((offset + length) * factor)
        out.append(Segment(stream, start, stop - start))
    found = join(out)
    if not found and content:
        stream, offset, _ = content[0]
        return (Segment(stream, round(offset * factor), 1),)
    return found
