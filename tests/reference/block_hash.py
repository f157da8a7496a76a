"""What a KV block holds, as one number: the chained hash of its content.

A block's hash covers its own tokens and, through the previous block's hash, all tokens before
(`vllm/v1/core/kv_cache_utils.py`, `hash_block_tokens`). Tokens are never written out: a block is
the few runs `(stream, offset, length)` that it is cut from, neighbours merged, so equal tokens
give equal runs however a prompt was put together.

vLLM compares hashes and not tokens, and so do we: 64-bit hashes of tuples of integers (the same
in every process), which live only as long as a request or a cached block names them.
"""

from __future__ import annotations

from replicast.sim.workload import Content, Segment, join, num_tokens

ROOT = 0


class BlockHashes:
    """The hashes of one request's blocks, computed as far as they are asked for.

    Generated tokens count like prompt tokens. Where `output` names fewer tokens than
    `num_output_tokens`, the missing ones are tokens nobody else has (`private_stream`).
    """

    def __init__(
        self, prompt: Content, output: Content, num_output_tokens: int, block_size: int, private_stream: int
    ) -> None:
        missing = num_output_tokens - num_tokens(output)
        self._content = join((*prompt, *output, Segment(private_stream, 0, missing)))
        self._block_size = block_size
        self._hashes: list[int] = []
        self._segment = 0  # the first token not hashed yet is
        self._used = 0  # token `_used` of `_content[_segment]`

    def first(self, num_blocks: int) -> list[int]:
        """The hashes, of which at least the first `num_blocks` are there (do not change the list)."""
        while len(self._hashes) < num_blocks:
            self._append_next()
        return self._hashes

    def _append_next(self) -> None:
        previous = self._hashes[-1] if self._hashes else ROOT
        stream, offset, length = self._content[self._segment]
        if length - self._used >= self._block_size:
            key: tuple[int, ...] = (previous, stream, offset + self._used, self._block_size)
            self._used += self._block_size
        else:
            key = (previous, *self._runs_of_next_block())
        self._hashes.append(hash(key))

    def _runs_of_next_block(self) -> list[int]:
        runs: list[int] = []
        wanted = self._block_size
        while wanted:
            stream, offset, length = self._content[self._segment]
            taken = min(length - self._used, wanted)
            if taken:
                runs += (stream, offset + self._used, taken)
            wanted -= taken
            self._used += taken
            if self._used == length and wanted:
                self._segment += 1
                self._used = 0
        return runs
