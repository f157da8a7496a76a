"""What the engine notes of a request of a hybrid model, beside what it notes of any request."""

from __future__ import annotations

from replicast.sim.config import EngineConfig
from replicast.sim.engine.hybrid.block_hash import BlockHashes
from replicast.sim.engine.hybrid.groups.full import RequestBlocks
from replicast.sim.engine.request_state import RequestState
from replicast.sim.kv_groups import KVGroup, hash_block_size
from replicast.sim.request import Request


def blocks_of(request: Request, config: EngineConfig) -> RequestBlocks:
    """The blocks of a request, none yet; tokens that its output does not name are nobody else's."""
    groups = config.kv_groups or (KVGroup("full", config.block_size),)
    hashes = BlockHashes(
        request.prompt,
        request.output,
        request.max_tokens,
        hash_block_size(groups, config.enable_prefix_caching),
        private_stream=-1 - request.request_id,
    )
    return RequestBlocks(hashes, request.num_prompt_tokens)


class HybridState(RequestState):
    """A request with blocks in several groups, and the row of a chunk that may still be in flight."""

    __slots__ = ("blocks", "chunk", "computed", "last_clock", "last_tokens", "target")

    def __init__(self, request: Request, config: EngineConfig) -> None:
        super().__init__(request, config)
        self.blocks = blocks_of(request, config)
        # While its prompt is half-done: tokens to compute, those computed, those of the step being planned.
        self.target = 0
        self.computed = 0
        self.chunk = 0
        self.last_clock = -1  # step of its last chunk
        self.last_tokens = 0  # of that chunk
