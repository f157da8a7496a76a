"""`prefix-aware`: the longest cached prefix, weighed against load.

The router remembers what it sent where, in one tree of content for all replicas: a node is a run of one
stream, hung at a token of its parent's run, and holds for each replica how many tokens of the run that
replica was sent. Per replica the memory is as large as its KV pool and forgets the least recently sent,
deepest first. It estimates the replica's prefix cache and never hears of evictions.

    score = matched prompt tokens / prompt tokens - (L - min L) / (mean L + 1)
    L     = outstanding requests + recent requests (a count that fades over the last 32 per replica)

A wholly cached prompt is worth one mean load more than the idlest replica has. It must not be worth more:
with k - 1 of k replicas in use the load term comes to k / (k - 1) at most, so a heavier match would never
let the last replica be warmed. `recent` counts because sessions that all share a system prompt would
otherwise follow it to one replica whenever nothing is outstanding, and fill that replica's cache while others
stay empty. 32 makes 2 % of the later turns of real sessions leave their replica, 8 makes it 7 %, at the same
balance (200 sessions, 40 live, 4 replicas). Ties: lowest `L`, then lowest index.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from math import inf

import numpy as np
from replicast.sim.config import EngineConfig
from replicast.sim.fleet.config import FleetConfig
from replicast.sim.fleet.routers import (
    LeastLoaded,
    RandomChoice,
    RoundRobin,
    RoutedRequest,
    Router,
    SessionAffinity,
    Sessionless,
)
from replicast.sim.workload import Content

_RECENT_PER_REPLICA = 32
_LEAST_UNIT = 1e-100


class _Node:
    """A run of one stream below `parent`; `lengths[replica]` tokens of it were sent to `replica`."""

    __slots__ = ("children", "key", "lengths", "parent")

    def __init__(self, parent: _Node | None, key: tuple[int, int, int]) -> None:
        self.parent = parent
        self.key = key  # (token of the parent's run where it hangs, stream, offset)
        self.children: dict[tuple[int, int, int], _Node] = {}
        self.lengths: dict[int, int] = {}


class PrefixIndex:
    """What each replica was sent, bounded to `capacity_tokens` a replica."""

    def __init__(self, replicas: int, capacity_tokens: int) -> None:
        self._capacity = capacity_tokens
        self._root = _Node(None, (0, 0, 0))
        self._recency: list[OrderedDict[_Node, None]] = [OrderedDict() for _ in range(replicas)]
        self._tokens = [0] * replicas

    def joined(self) -> None:
        """One more replica, which was sent nothing."""
        self._recency.append(OrderedDict())
        self._tokens.append(0)

    def left(self, replica: int) -> None:
        """Forget all that `replica` was sent."""
        recency = self._recency[replica]
        while recency:
            self._forget(recency.popitem(last=False)[0], replica)

    @property
    def tokens(self) -> tuple[int, ...]:
        """Tokens remembered for each replica."""
        return tuple(self._tokens)

    def path(self, prompt: Content) -> list[tuple[_Node, int]]:
        """The nodes that `prompt` runs along, each with the length of its run."""
        node, attach = self._root, 0
        found = []
        for stream, offset, length in prompt:
            child = node.children.get((attach, stream, offset))
            if child is None:
                break
            found.append((child, length))
            node, attach = child, length
        return found

    def matched(self, path: list[tuple[_Node, int]], replica: int) -> int:
        """Leading tokens of the path's prompt that `replica` was sent."""
        total = 0
        for node, length in path:
            sent = node.lengths.get(replica, 0)
            if sent < length:
                return total + sent
            total += length
        return total

    def match(self, prompt: Content) -> list[int]:
        """Leading tokens of `prompt` that each replica was sent."""
        path = self.path(prompt)
        return [self.matched(path, replica) for replica in range(len(self._tokens))]

    def insert(self, prompt: Content, replica: int) -> None:
        """Remember that `replica` was sent `prompt`."""
        node, attach = self._root, 0
        path = []
        for stream, offset, length in prompt:
            key = (attach, stream, offset)
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = _Node(node, key)
            known = child.lengths.get(replica, 0)
            if length > known:
                child.lengths[replica] = length
                self._tokens[replica] += length - known
            path.append(child)
            node, attach = child, length
        recency = self._recency[replica]
        for child in reversed(path):
            recency[child] = None
            recency.move_to_end(child)
        while self._tokens[replica] > self._capacity and recency:
            self._forget(recency.popitem(last=False)[0], replica)

    def _forget(self, node: _Node, replica: int) -> None:
        # A child is never more recent than its parent on the same replica, so it has been forgotten before.
        self._tokens[replica] -= node.lengths.pop(replica)
        if not node.lengths:
            assert not node.children, "a prefix is forgotten after what continues it"
            assert node.parent is not None
            del node.parent.children[node.key]


class PrefixAware(Sessionless):
    """See the module; `pool_tokens` is the KV pool of one replica in tokens.

    Not every replica is scored. Below the first node of a prompt's path are those who were sent it or a
    prompt that forked from it: few, and scored one by one. Nobody else matches more than the first node's
    run; if the least loaded replica has all of that, it beats the others, and if not, all are scored. What is
    left to do for each replica is to add up its load. Fading counts are kept as multiples of what a count of
    now weighs, so that nothing is to be done to fade them.
    """

    def __init__(self, replicas: int, pool_tokens: int) -> None:
        self._index = PrefixIndex(replicas, pool_tokens)
        self._outstanding = [0] * replicas
        self._recent = [0.0] * replicas  # in units of `_unit`, which shrink
        self._unit = 1.0
        self._present = list(range(replicas))
        self._set_fade()

    def _set_fade(self) -> None:
        self._fade = 1 - 1 / (_RECENT_PER_REPLICA * max(len(self._present), 1))

    def route(self, request: RoutedRequest) -> int:
        """The replica with the best score."""
        outstanding, recent, unit, present = self._outstanding, self._recent, self._unit, self._present
        lowest, idlest, total = inf, -1, 0.0
        for i in present:
            load = outstanding[i] + recent[i] * unit
            total += load
            if load < lowest:
                lowest, idlest = load, i
        scale = total / len(present) + 1
        path = self._index.path(request.prompt)
        replica, best = -1, (0.0, 0.0, 0)
        for candidate in self._candidates(path, idlest):
            load = outstanding[candidate] + recent[candidate] * unit
            match = self._index.matched(path, candidate) / request.num_prompt_tokens
            score = (match - (load - lowest) / scale, -load, -candidate)
            if replica < 0 or score > best:
                replica, best = candidate, score
        self._index.insert(request.prompt, replica)
        self._outstanding[replica] += 1
        self._send_recent(replica)
        return replica

    def _candidates(self, path: list[tuple[_Node, int]], idlest: int) -> Iterable[int]:
        if not path:
            return (idlest,)
        first, length = path[0]
        if first.lengths.get(idlest, 0) < length:
            return self._present
        return (idlest, *(path[1][0].lengths if len(path) > 1 else ()))

    def _send_recent(self, replica: int) -> None:
        self._unit *= self._fade
        self._recent[replica] += 1 / self._unit
        if self._unit < _LEAST_UNIT:
            self._recent = [recent * self._unit for recent in self._recent]
            self._unit = 1.0

    def replied(self, request: RoutedRequest, replica: int) -> None:
        """One outstanding request fewer."""
        self._outstanding[replica] -= 1

    def joined(self) -> None:
        """As recently used as the mean of the others: it is not to take all that comes."""
        present = self._present
        mean = sum([self._recent[i] for i in present]) / len(present) if present else 0.0
        present.append(len(self._outstanding))
        self._outstanding.append(0)
        self._recent.append(mean)
        self._index.joined()
        self._set_fade()

    def left(self, replica: int) -> None:
        """Not scored any more, and what it was sent is forgotten."""
        self._present.remove(replica)
        self._index.left(replica)
        self._set_fade()


def make_router(fleet: FleetConfig, config: EngineConfig, rng: np.random.Generator) -> Router:
    """The router that `fleet` names."""
    replicas = fleet.replicas
    match fleet.router:
        case "round-robin":
            return RoundRobin(replicas)
        case "random":
            return RandomChoice(replicas, rng)
        case "least-loaded":
            return LeastLoaded(replicas)
        case "session-affinity":
            return SessionAffinity(replicas)
        case "prefix-aware":
            return PrefixAware(replicas, config.num_usable_blocks * config.block_size)
