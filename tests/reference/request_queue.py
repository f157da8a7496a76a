"""The waiting queue, by policy (`vllm/v1/core/sched/request_queue.py`).

fcfs keeps the order in which requests were added to the scheduler; a preempted request goes to
the front. priority orders by (priority, arrival, id), small first, preempted requests included.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from replicast.sim.config import Policy
from replicast.sim.request import Request


class RequestQueue(Protocol):
    """What the scheduler asks of a waiting queue."""

    def add(self, request: Request) -> None:
        """Take in a new request."""

    def prepend(self, request: Request) -> None:
        """Take back a preempted request."""

    def peek(self) -> Request:
        """The head."""

    def pop(self) -> Request:
        """Remove the head."""

    def remove(self, request: Request) -> None:
        """Remove a request from anywhere."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...


class FCFSRequestQueue:
    """First come, first served."""

    def __init__(self) -> None:
        self._queue: deque[Request] = deque()

    def add(self, request: Request) -> None:
        self._queue.append(request)

    def prepend(self, request: Request) -> None:
        self._queue.appendleft(request)

    def peek(self) -> Request:
        return self._queue[0]

    def pop(self) -> Request:
        return self._queue.popleft()

    def remove(self, request: Request) -> None:
        self._queue.remove(request)

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)


def _urgency(request: Request) -> tuple[int, int, int]:
    return (-request.priority, -request.arrival_tick, -request.request_id)


class PriorityRequestQueue:
    """The most urgent request first; kept sorted with the head at the end of the list."""

    def __init__(self) -> None:
        self._queue: list[Request] = []

    def add(self, request: Request) -> None:
        insort(self._queue, request, key=_urgency)

    prepend = add

    def peek(self) -> Request:
        return self._queue[-1]

    def pop(self) -> Request:
        return self._queue.pop()

    def remove(self, request: Request) -> None:
        self._queue.remove(request)

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return reversed(self._queue)


def create_request_queue(policy: Policy) -> RequestQueue:
    """An empty queue for `policy`."""
    return PriorityRequestQueue() if policy == "priority" else FCFSRequestQueue()
