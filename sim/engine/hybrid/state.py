"""What the engine notes of a request of a hybrid model, beside what it notes of any request."""

from __future__ import annotations

from replicast.sim.config import EngineConfig
from replicast.sim.engine.hybrid.block_pool import Path
from replicast.sim.engine.hybrid.groups.blocks import GroupBlocks
from replicast.sim.engine.request_state import RequestState
from replicast.sim.request import Request


class HybridState(RequestState):
    """A request with blocks in several groups, and the row of a chunk that may still be in flight.

    `shared_prefix_boundary`: to where another request's prompt was seen to be the same, though not
    all groups have it cached; 0 if nowhere. Fewer than `next_publish` tokens fill no further block,
    all groups have room for `room` tokens, none drops anything before `next_drop` are processed.
    """

    __slots__ = (
        "chunk",
        "computed",
        "groups",
        "last_clock",
        "last_tokens",
        "next_drop",
        "next_publish",
        "paths",
        "room",
        "shared_prefix_boundary",
        "target",
    )

    def __init__(self, request: Request, config: EngineConfig) -> None:
        super().__init__(request, config)
        self.paths: list[Path] = []  # of its content, in blocks of each size
        self.groups: list[GroupBlocks] = []  # its blocks that are no run of content, while it runs
        self.room = 0
        self.next_drop = 0
        self.next_publish = 0
        self.shared_prefix_boundary = 0
        # While its prompt is half-done: tokens to compute, those computed, those of the step being planned.
        self.target = 0
        self.computed = 0
        self.chunk = 0
        self.last_clock = -1  # step of its last chunk
        self.last_tokens = 0  # of that chunk
