"""The waiting queue, by policy (`vllm/v1/core/sched/request_queue.py`).

fcfs keeps the order in which requests were added to the scheduler; a preempted request goes to
the front. priority orders by (priority, arrival, id), small first, preempted requests included.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import TYPE_CHECKING

from replicast.sim.config import Policy
from replicast.sim.request import Request

if TYPE_CHECKING:
    from replicast.sim.engine.request_state import RequestState


class FCFSQueue(deque["RequestState"]):
    """`waiting`, first come, first served; a preempted request goes to the front."""

    add = deque.append
    prepend = deque.appendleft
    take = deque.popleft

    def peek(self) -> RequestState:
        """The head."""
        return self[0]

    def would_lead(self, request: Request) -> bool:
        """Whether `request` would be the head if it came now."""
        return not self


def _urgency(state: RequestState) -> tuple[int, int, int]:
    return _urgency_of(state.request)


def _urgency_of(request: Request) -> tuple[int, int, int]:
    return (-request.priority, -request.arrival_tick, -request.request_id)


class PriorityQueue(list["RequestState"]):
    """`waiting` by (priority, arrival, id), small first; kept sorted with the head at the end."""

    def add(self, state: RequestState) -> None:
        """Take in a request, new or preempted."""
        insort(self, state, key=_urgency)

    prepend = add

    def peek(self) -> RequestState:
        """The head."""
        return self[-1]

    def take(self) -> RequestState:
        """Remove the head."""
        return self.pop()

    def would_lead(self, request: Request) -> bool:
        """Whether `request` would be the head if it came now."""
        return not self or _urgency_of(request) > _urgency(self[-1])


Waiting = FCFSQueue | PriorityQueue


def waiting_queue(policy: Policy) -> Waiting:
    """An empty `waiting` for `policy`."""
    return PriorityQueue() if policy == "priority" else FCFSQueue()
