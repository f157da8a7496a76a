"""What an engine notes of each request it holds, and what passes between its scheduler and its loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from replicast.sim.config import EngineConfig
from replicast.sim.engine.block_pool import RequestBlocks
from replicast.sim.request import Request


class RequestState(RequestBlocks):
    """A request in `waiting` or `running`: its blocks, and counts that only the engine knows.

    The scheduler (one step, row by row) reads and writes the first group. A jump (`macro.py`) keeps
    the second instead: while a request decodes in every step, its computed tokens are
    `base` + the engine's step counter (`decodes.py`).
    """

    __slots__ = ("__dict__", "base", "leave", "max_tokens", "num_outputs", "request", "runs_past_eos", "seat")

    # Row by row; in a jump they are not looked at.
    num_draft_tokens = 0  # proposed for its next step
    num_verifications = 0
    num_output_placeholders = 0  # tokens that steps in flight will give it
    num_in_flight_tokens = 0
    num_stale_output_tokens = 0  # those in flight since before its preemption
    is_prefill_chunk = False  # its last step sampled nothing

    def __init__(self, request: Request, config: EngineConfig) -> None:
        self.nodes = []
        self.ends = []
        self.num_blocks = 0
        self.num_published = 0
        self.index = -1
        self.copies = None

        self.request = request
        room = config.max_model_len - request.num_prompt_tokens
        wanted = request.max_tokens
        self.num_outputs = wanted if wanted <= room else max(room, 1)  # that it will generate
        if request.stops_at_eos:
            # It was sent with a limit that it does not reach.
            self.max_tokens = max(room, 1)
            self.runs_past_eos = config.async_scheduling and wanted < room
        else:
            self.max_tokens = wanted
            self.runs_past_eos = False
        self.base = 0
        self.leave = -1  # the first step without it
        self.seat = 0  # its place in the order of `running`

    def num_accepted(self, num_drafts: int, accept: tuple[int, ...]) -> int:
        """How many of a step's drafts the model confirms; `accept` goes round."""
        if not num_drafts:
            return 0
        accepted = accept[self.num_verifications % len(accept)]
        self.num_verifications += 1
        return min(accepted, num_drafts)


class ScheduledRow(NamedTuple):
    """What one request does in a step."""

    state: RequestState
    num_scheduled_tokens: int
    num_computed_tokens: int  # before the step, prefix hits included
    num_draft_tokens: int  # among the scheduled tokens
    num_sampled_tokens: int  # that the step will give it, 0 for a chunk that is not the last


@dataclass(slots=True)
class SchedulerOutput:
    """One step: rows in vLLM's order, and the requests preempted to make room, in that order."""

    rows: list[ScheduledRow]
    preempted: list[RequestState]
