"""Which replica gets a request: five rules.

A router sees a `RoutedRequest`, which holds no output, so no rule can use what is not known yet. It
knows the load as a proxy does: by counting what it sent and what came back.

  round-robin       in turn
  random            uniformly
  least-loaded      fewest outstanding requests, then outstanding prompt tokens, then requests sent so far
  session-affinity  a session stays where its first request went, which was the least loaded replica
  prefix-aware      `prefix_router.py`
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import NamedTuple, Protocol

import numpy as np
from replicast.sim.workload import Content

_DRAWS = 1024


class RoutedRequest(NamedTuple):
    """What a router may know of a request."""

    prompt: Content
    num_prompt_tokens: int
    session_key: int
    priority: int


class Router(Protocol):
    """Chooses replicas; told of every reply."""

    def route(self, request: RoutedRequest) -> int:
        """The replica that gets `request`."""

    def replied(self, request: RoutedRequest, replica: int) -> None:
        """`replica` has answered `request`."""

    def session_ended(self, session_key: int) -> None:
        """No more of this session will come."""


class Sessionless:
    """What routers do at the end of a session that they know nothing of."""

    def session_ended(self, session_key: int) -> None:
        """Nothing to forget."""


class RoundRobin(Sessionless):
    """In turn."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._next = 0

    def route(self, request: RoutedRequest) -> int:
        """The next replica."""
        replica = self._next
        self._next = (replica + 1) % self._replicas
        return replica

    def replied(self, request: RoutedRequest, replica: int) -> None:
        """Nothing to learn."""


class RandomChoice(Sessionless):
    """Uniformly, from a generator of its own."""

    def __init__(self, replicas: int, rng: np.random.Generator) -> None:
        self._replicas = replicas
        self._rng = rng
        self._draws: list[int] = []

    def route(self, request: RoutedRequest) -> int:
        """Any replica. Drawn in batches, which costs a hundredth of single draws."""
        if not self._draws:
            self._draws = self._rng.integers(self._replicas, size=_DRAWS).tolist()
        return self._draws.pop()

    def replied(self, request: RoutedRequest, replica: int) -> None:
        """Nothing to learn."""


class LeastLoaded(Sessionless):
    """Fewest outstanding requests, kept in a heap whose outdated entries are dropped when they surface."""

    def __init__(self, replicas: int) -> None:
        self._loads = [(0, 0, 0, replica) for replica in range(replicas)]
        self._heap = list(self._loads)

    def route(self, request: RoutedRequest) -> int:
        """The least loaded replica, which takes `request`."""
        heap = self._heap
        while heap[0] != self._loads[heap[0][3]]:
            heappop(heap)
        replica = heap[0][3]
        self.sent(request, replica)
        return replica

    def sent(self, request: RoutedRequest, replica: int, placed: int = 1) -> None:
        """Count `request` as outstanding at `replica`; `placed` counts in the last tie-break."""
        self._change(replica, 1, request.num_prompt_tokens, placed)

    def replied(self, request: RoutedRequest, replica: int) -> None:
        """Count `request` as answered."""
        self._change(replica, -1, -request.num_prompt_tokens, 0)

    def _change(self, replica: int, requests: int, tokens: int, placed: int) -> None:
        was = self._loads[replica]
        load = (was[0] + requests, was[1] + tokens, was[2] + placed, replica)
        self._loads[replica] = load
        heappush(self._heap, load)
        if len(self._heap) > 64 + 4 * len(self._loads):
            self._heap = list(self._loads)
            heapify(self._heap)


class SessionAffinity:
    """Sticky sessions. Loads count all requests; ties at placement go to the replica with fewest sessions."""

    def __init__(self, replicas: int) -> None:
        self._least_loaded = LeastLoaded(replicas)
        self._home: dict[int, int] = {}

    def route(self, request: RoutedRequest) -> int:
        """The session's replica; the least loaded for its first request."""
        home = self._home.get(request.session_key)
        if home is None:
            home = self._home[request.session_key] = self._least_loaded.route(request)
        else:
            self._least_loaded.sent(request, home, placed=0)
        return home

    def replied(self, request: RoutedRequest, replica: int) -> None:
        """One outstanding request fewer."""
        self._least_loaded.replied(request, replica)

    def session_ended(self, session_key: int) -> None:
        """Forget its home."""
        self._home.pop(session_key, None)
