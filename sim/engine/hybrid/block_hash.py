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

from replicast.sim.workload import Content, Segment

ROOT = 0
LONG_RUN = 8  # blocks
MOST_KEPT = 200_000  # hashes
ENDLESS = 1 << 60  # tokens


class KnownRuns:
    """Hashes of the blocks of long runs, by (hash before, stream, offset); only to save time."""

    __slots__ = ("_num_kept", "_runs")

    def __init__(self) -> None:
        self._runs: dict[tuple[int, int, int], list[int]] = {}
        self._num_kept = 0

    def first(self, previous: int, stream: int, offset: int, block_size: int, num_blocks: int) -> list[int]:
        """The hashes of at least `num_blocks` blocks of a run after the block of hash `previous`."""
        key = (previous, stream, offset)
        run = self._runs.get(key)
        if run is None:
            run = self._runs[key] = []
        known = len(run)
        if known < num_blocks:
            last = run[-1] if run else previous
            start = offset + known * block_size
            for _ in range(num_blocks - known):
                last = hash((last, stream, start, block_size))
                run.append(last)
                start += block_size
            self._num_kept += num_blocks - known
            if self._num_kept > MOST_KEPT:
                self._runs.clear()
                self._num_kept = 0
        return run


class BlockHashes:
    """The hashes of one request's blocks, computed as far as they are asked for.

    Generated tokens count like prompt tokens. What `output` does not name are tokens nobody else has
    (`private_stream`). Hashes stand in parts, each up to the number in `_ends`, so that those of a known run
    need no copy.
    """

    __slots__ = (
        "_block_size",
        "_content",
        "_ends",
        "_flat",
        "_goes_on",
        "_known",
        "_last",
        "_number",
        "_parts",
        "_private_stream",
        "_segment",
        "_used",
    )

    def __init__(
        self, prompt: Content, output: Content, block_size: int, private_stream: int, known: KnownRuns
    ) -> None:
        self._content = prompt + output
        self._private_stream = private_stream
        self._block_size = block_size
        self._known = known
        self._parts: list[list[int]] = []
        self._ends: list[int] = []
        self._goes_on = False  # whether the last part is its own, and no known run
        self._flat: list[int] = []
        self._number = 0
        self._last = ROOT
        self._segment = 0  # the first token not hashed yet is
        self._used = 0  # token `_used` of `_content[_segment]`

    def name(self, block: int) -> int:
        """The hash of a block that was reached."""
        ends, parts = self._ends, self._parts
        at = len(ends) - 1
        while at and ends[at - 1] > block:
            at -= 1
        return parts[at][block - ends[at - 1] if at else block]

    def first(self, num_blocks: int) -> list[int]:
        """At least the first `num_blocks` in one list (do not change it)."""
        self.reach(num_blocks)
        flat = self._flat
        if len(flat) < num_blocks:
            start = 0
            for part, end in zip(self._parts, self._ends, strict=True):
                if end > len(flat):
                    flat += part[len(flat) - start : end - start]
                start = end
        return flat

    def reach(self, num_blocks: int) -> None:
        """Compute the first `num_blocks` hashes."""
        size = self._block_size
        while self._number < num_blocks:
            number = self._number
            previous = self._last
            stream, offset, length = self._content[self._segment]
            used = self._used
            blocks = min((length - used) // size, num_blocks - number)
            if blocks >= LONG_RUN:
                run = self._known.first(previous, stream, offset + used, size, blocks)
                self._used = used + blocks * size
                self._last = run[blocks - 1]
                self._goes_on = False
                self._parts.append(run)
                self._number = number + blocks
                self._ends.append(self._number)
                continue
            if blocks:
                name = hash((previous, stream, offset + used, size))
                self._used = used + size
            else:
                name = hash((previous, *self._runs_of_next_block()))
            self._last = name
            self._number = number + 1
            if self._goes_on:
                self._parts[-1].append(name)
                self._ends[-1] = self._number
            else:
                self._goes_on = True
                self._parts.append([name])
                self._ends.append(self._number)

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
                if self._segment == len(self._content):
                    self._content += (Segment(self._private_stream, 0, ENDLESS),)
        return runs
