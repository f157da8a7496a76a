"""The requests that decode in every step, as sums: what one more step of them computes and takes.

Between two changes of this set each of its requests computes one token a step. So its computed
tokens are `base` plus the step counter (`clock`), and sums over the set follow from the sum of the
bases. A request needs a new block in exactly those steps before which its computed tokens are a
multiple of the block size: counting requests by residue of the counter gives the blocks of any run
of steps, without asking who takes them (inside a run nobody frees, so only their number matters).
"""

from __future__ import annotations

from heapq import heappop, heappush

from replicast.sim.engine.request_state import RequestState


class Decodes:
    """Requests that have a row of one token in every step."""

    __slots__ = ("base_sum", "block_size", "count", "leaving", "residues")

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.count = 0
        self.base_sum = 0
        self.residues = [0] * (2 * block_size)  # twice over, so that a slice never wraps
        self.leaving: list[tuple[int, int, RequestState]] = []  # heap of (first step without it, seat, …)

    def add(self, state: RequestState, num_tokens: int, clock: int, leave: int) -> None:
        """`state`, with `num_tokens` computed, has a row in every step from `clock` until `leave`."""
        base = num_tokens - clock
        state.base = base
        state.leave = leave
        self.count += 1
        self.base_sum += base
        block_size = self.block_size
        at = -base % block_size
        self.residues[at] += 1
        self.residues[at + block_size] += 1
        heappush(self.leaving, (leave, state.seat, state))

    def pop(self) -> RequestState:
        """The request that leaves first; of those that leave together the one admitted first."""
        state = heappop(self.leaving)[2]
        base = state.base
        self.count -= 1
        self.base_sum -= base
        block_size = self.block_size
        at = -base % block_size
        self.residues[at] -= 1
        self.residues[at + block_size] -= 1
        return state

    def num_new_blocks(self, clock: int, k: int) -> int:
        """Blocks that steps `clock … clock + k` take."""
        block_size = self.block_size
        at = clock % block_size
        if k == 1:
            return self.residues[at]
        blocks = k // block_size * self.count
        for i in range(at, at + k % block_size):
            blocks += self.residues[i]
        return blocks
