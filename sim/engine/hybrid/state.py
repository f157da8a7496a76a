"""What the engine notes of a request of a hybrid model, beside what it notes of any request."""

from __future__ import annotations

from replicast.sim.config import EngineConfig
from replicast.sim.engine.hybrid.block_hash import BlockHashes, KnownRuns
from replicast.sim.engine.hybrid.groups.full import RequestBlocks
from replicast.sim.engine.request_state import RequestState
from replicast.sim.request import Request


class HybridState(RequestState):
    """A request with blocks in several groups, and the row of a chunk that may still be in flight."""

    __slots__ = ("blocks", "chunk", "computed", "last_clock", "last_tokens", "target")

    def __init__(
        self, request: Request, config: EngineConfig, hash_block_size: int, known: KnownRuns
    ) -> None:
        super().__init__(request, config)
        hashes = BlockHashes(
            request.prompt,
            request.output,
            hash_block_size,
            -1 - request.request_id,  # what its output does not name is nobody else's
            known,
        )
        self.blocks = RequestBlocks(hashes, request.num_prompt_tokens)
        # While its prompt is half-done: tokens to compute, those computed, those of the step being planned.
        self.target = 0
        self.computed = 0
        self.chunk = 0
        self.last_clock = -1  # step of its last chunk
        self.last_tokens = 0  # of that chunk
