"""What passes between the scheduler and the loop, and what the scheduler notes of each request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

from replicast.sim.config import EngineConfig
from replicast.sim.kv_groups import KVGroup, hash_block_size
from replicast.sim.request import Request

from reference.block_hash import BlockHashes
from reference.kv_cache import RequestBlocks

Admission = Literal["new", "resumed"]


class ScheduledRow(NamedTuple):
    """What one request does in a step."""

    request: Request
    num_scheduled_tokens: int
    num_computed_tokens: int  # before the step, prefix hits included
    num_tokens: int  # known before the step
    num_draft_tokens: int  # among the scheduled tokens
    num_sampled_tokens: int  # that the step will give it, 0 for a chunk that is not the last
    admitted: Admission | None  # it came out of `waiting` in this step


@dataclass(slots=True)
class SchedulerOutput:
    """One step: rows in vLLM's order, and the requests preempted to make room, in that order."""

    rows: list[ScheduledRow]
    preempted: list[Request]

    @property
    def total_num_scheduled_tokens(self) -> int:
        """Tokens of all rows."""
        return sum(row.num_scheduled_tokens for row in self.rows)


class RequestOutput(NamedTuple):
    """Tokens delivered to one request by one update."""

    request: Request
    num_new_tokens: int
    finished: bool


@dataclass(slots=True)
class SchedulingState:
    """What only the scheduler knows of a request."""

    blocks: RequestBlocks
    max_tokens: int  # the length limit it can foresee
    num_draft_tokens: int = 0  # proposed for its next step
    num_verifications: int = 0
    num_output_placeholders: int = 0  # tokens that steps in flight will give it
    num_in_flight_tokens: int = 0
    num_stale_output_tokens: int = 0  # those in flight since before its preemption
    is_prefill_chunk: bool = False  # its last step sampled nothing

    def num_accepted(self, num_drafts: int, accept: tuple[int, ...]) -> int:
        """How many of a step's drafts the model confirms; `accept` goes round."""
        if not num_drafts:
            return 0
        accepted = accept[self.num_verifications % len(accept)]
        self.num_verifications += 1
        return min(accepted, num_drafts)


def new_state(request: Request, config: EngineConfig) -> SchedulingState:
    """The record of a request that enters the scheduler."""
    groups = config.kv_groups or (KVGroup("full", config.block_size),)
    hashes = BlockHashes(
        request.prompt,
        request.output,
        request.max_tokens,
        hash_block_size(groups, config.enable_prefix_caching),
        private_stream=-1 - request.request_id,
    )
    # A request that will end by EOS was sent with a limit it does not reach.
    room = max(config.max_model_len - request.num_prompt_tokens, 1)
    blocks = RequestBlocks(hashes, request.num_prompt_tokens, len(groups))
    return SchedulingState(blocks, room if request.stops_at_eos else request.max_tokens)


def state_of(request: Request) -> SchedulingState:
    """The scheduler's own record of a request it holds."""
    return cast(SchedulingState, request.state)
