"""Which replica gets a request: five rules.

Replicas may come and go (`joined`, `left`): a new one gets the next number, and one that has left gets no
requests but may still answer those it has. A router is asked only while somebody is there.

A router sees a `RoutedRequest`, which holds no output, so no rule can use what is not known yet. It
knows the load as a proxy does: by counting what it sent and what came back.

  round-robin       in turn
  random            uniformly
  least-loaded      fewest outstanding requests, then outstanding prompt tokens, then requests sent so far
  session-affinity  a session stays where its first request went, which was the least loaded replica;
                    it moves only if that replica leaves
  prefix-aware      `prefix_router.py`
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import Protocol

import numpy as np
from replicast.sim.workload import Content

_DRAWS = 1024


class RoutedRequest(Protocol):
    """What a router may know of a request."""

    @property
    def prompt(self) -> Content: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def session_key(self) -> int: ...
    @property
    def priority(self) -> int: ...


class Router(Protocol):
    """Chooses replicas; told of every reply."""

    def route(self, request: RoutedRequest) -> int:
        """The replica that gets `request`."""

    def replied(self, request: RoutedRequest, replica: int) -> None:
        """`replica` has answered `request`."""

    def session_ended(self, session_key: int) -> None:
        """No more of this session will come."""

    def joined(self) -> None:
        """One more replica takes requests; its number is the next."""

    def left(self, replica: int) -> None:
        """`replica` takes no more requests."""


class Sessionless:
    """What routers do at the end of a session that they know nothing of."""

    def session_ended(self, session_key: int) -> None:
        """Nothing to forget."""


class RoundRobin(Sessionless):
    """In turn."""

    def __init__(self, replicas: int) -> None:
        self._present = list(range(replicas))
        self._number = replicas
        self._next = 0

    def route(self, request: RoutedRequest) -> int:
        """The next replica."""
        place = self._next
        self._next = (place + 1) % len(self._present)
        return self._present[place]

    def replied(self, request: RoutedRequest, replica: int) -> None:
        """Nothing to learn."""

    def joined(self) -> None:
        """At the end of the row."""
        self._present.append(self._number)
        self._number += 1

    def left(self, replica: int) -> None:
        """The turn goes on to who followed it."""
        place = self._present.index(replica)
        del self._present[place]
        if place < self._next:
            self._next -= 1
        if self._next >= len(self._present):
            self._next = 0


class RandomChoice(Sessionless):
    """Uniformly, from a generator of its own."""

    def __init__(self, replicas: int, rng: np.random.Generator) -> None:
        self._present = list(range(replicas))
        self._number = replicas
        self._rng = rng
        self._draws: list[int] = []

    def route(self, request: RoutedRequest) -> int:
        """Any replica. Drawn in batches, which costs a hundredth of single draws."""
        if not self._draws:
            places = self._rng.integers(len(self._present), size=_DRAWS).tolist()
            self._draws = [self._present[place] for place in places]
        return self._draws.pop()

    def replied(self, request: RoutedRequest, replica: int) -> None:
        """Nothing to learn."""

    def joined(self) -> None:
        """Draw among one more."""
        self._present.append(self._number)
        self._number += 1
        self._draws.clear()

    def left(self, replica: int) -> None:
        """Draw among the others."""
        self._present.remove(replica)
        self._draws.clear()


class LeastLoaded(Sessionless):
    """Fewest outstanding requests, by a heap in which a replica's place is at most its load.

    A load that grows stays where it is until it surfaces, one that falls below its place gets a new one.
    """

    def __init__(self, replicas: int) -> None:
        self._loads = [(0, 0, 0, replica) for replica in range(replicas)]
        self._places = list(self._loads)
        self._heap = list(self._loads)
        self._gone: set[int] = set()

    def route(self, request: RoutedRequest) -> int:
        """The least loaded replica, which takes `request`."""
        heap = self._heap
        while True:
            place = heap[0]
            replica = place[3]
            load = self._loads[replica]
            if place == load:
                break
            if place == self._places[replica]:
                self._places[replica] = load
                heapreplace(heap, load)
            else:
                heappop(heap)
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
        if load < self._places[replica] and replica not in self._gone:
            self._places[replica] = load
            heappush(self._heap, load)
            if len(self._heap) > 64 + 4 * len(self._loads):
                self._build_heap()

    def _build_heap(self) -> None:
        self._places = list(self._loads)
        self._heap = [load for load in self._loads if load[3] not in self._gone]
        heapify(self._heap)

    def joined(self) -> None:
        """Idle; it was sent as many as the one that was sent fewest, so ties do not all go to it."""
        sent = min((load[2] for load in self._loads if load[3] not in self._gone), default=0)
        load = (0, 0, sent, len(self._loads))
        self._loads.append(load)
        self._places.append(load)
        heappush(self._heap, load)

    def left(self, replica: int) -> None:
        """Not in the heap any more."""
        self._gone.add(replica)
        self._build_heap()


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

    def joined(self) -> None:
        """It gets the sessions that begin from now on, and those that lose their home."""
        self._least_loaded.joined()

    def left(self, replica: int) -> None:
        """Its sessions find another home at their next request."""
        self._least_loaded.left(replica)
        self._home = {session: home for session, home in self._home.items() if home != replica}
