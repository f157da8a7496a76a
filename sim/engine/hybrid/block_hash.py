"""What a KV block holds, as one number: the chained hash of its content.

A block's hash covers its own tokens and, through the previous block's hash, all tokens before
(`vllm/v1/core/kv_cache_utils.py`, `hash_block_tokens`). Tokens are never written out: a block is
the few runs `(stream, offset, length)` that it is cut from, neighbours merged, so equal tokens
give equal runs however a prompt was put together.

vLLM compares hashes and not tokens, and so do we: 64-bit hashes of tuples of integers (the same
in every process), which live only as long as a request or a cached block names them.

A session's next prompt starts with the last one. The hashes of a long run follow from where it starts, so
they are kept with that, and a prompt costs as many steps as it has segments.
"""

from __future__ import annotations

from replicast.sim.workload import Content, Segment, num_tokens

ROOT = 0
LONG_RUN = 8  # blocks
MOST_KEPT = 200_000  # hashes


class KnownRuns:
    """Hashes of the blocks of long runs, by (hash before, stream, offset); only to save time."""

    __slots__ = ("_num_kept", "_runs")

    def __init__(self) -> None:
        self._runs: dict[tuple[int, int, int], list[int]] = {}
        self._num_kept = 0

    def first(self, previous: int, stream: int, offset: int, block_size: int, num_blocks: int) -> list[int]:
        """The hashes of `num_blocks` blocks of a run after the block of hash `previous`."""
        key = (previous, stream, offset)
        run = self._runs.get(key)
        if run is None:
            run = self._runs[key] = []
        known = len(run)
        if known > num_blocks:
            return run[:num_blocks]
        if known < num_blocks:
            last = run[-1] if run else previous
            for start in range(offset + known * block_size, offset + num_blocks * block_size, block_size):
                last = hash((last, stream, start, block_size))
                run.append(last)
            self._num_kept += num_blocks - known
            if self._num_kept > MOST_KEPT:
                self._runs.clear()
                self._num_kept = 0
        return run


class BlockHashes:
    """The hashes of one request's blocks, computed as far as they are asked for.

    Generated tokens count like prompt tokens. Where `output` names fewer tokens than
    `num_output_tokens`, the missing ones are tokens nobody else has (`private_stream`).
    """

    __slots__ = ("_block_size", "_content", "_hashes", "_known", "_segment", "_used")

    def __init__(
        self,
        prompt: Content,
        output: Content,
        num_output_tokens: int,
        block_size: int,
        private_stream: int,
        known: KnownRuns,
    ) -> None:
        missing = num_output_tokens - num_tokens(output)
        self._content = prompt + output
        if missing > 0:
            self._content += (Segment(private_stream, 0, missing),)
        self._block_size = block_size
        self._known = known
        self._hashes: list[int] = []
        self._segment = 0  # the first token not hashed yet is
        self._used = 0  # token `_used` of `_content[_segment]`

    def first(self, num_blocks: int) -> list[int]:
        """The hashes, of which at least the first `num_blocks` are there (do not change the list)."""
        hashes, size = self._hashes, self._block_size
        while len(hashes) < num_blocks:
            previous = hashes[-1] if hashes else ROOT
            stream, offset, length = self._content[self._segment]
            used = self._used
            blocks = min((length - used) // size, num_blocks - len(hashes))
            if blocks >= LONG_RUN:
                hashes += self._known.first(previous, stream, offset + used, size, blocks)
                self._used = used + blocks * size
            elif blocks:
                hashes.append(hash((previous, stream, offset + used, size)))
                self._used = used + size
            else:
                hashes.append(hash((previous, *self._runs_of_next_block())))
        return hashes

    def _runs_of_next_block(self) -> list[int]:
        runs: list[int] = []
        wanted = self._block_size
        now, due = 0, -1  # the last run goes on if the next segment is stream `now` at `due`
        while wanted:
            stream, offset, length = self._content[self._segment]
            used = self._used
            taken = length - used
            if taken > wanted:
                taken = wanted
            if taken:
                offset += used
                if stream == now and offset == due:
                    runs[-1] += taken
                else:
                    runs += (stream, offset, taken)
                now, due = stream, offset + taken
            wanted -= taken
            self._used = used + taken
            if self._used == length and wanted:
                self._segment += 1
                self._used = 0
        return runs
