"""The longest prefix that all groups have cached (`vllm/v1/core/kv_cache_coordinator.py`).

Equal groups are looked up together. Each kind either accepts the length so far or gives a shorter one;
where one does, all are asked again. Full attention goes first and is asked once: any part of its run is
a hit too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reference.block_hash import BlockHashes
from reference.groups.full import FullGroup


class Hit(NamedTuple):
    """What a look-up found: each group's blocks (null where not needed), and tokens served.

    `longest` is the longest prefix that any kind had cached, at least `num_tokens`.
    """

    blocks: tuple[list[int], ...]
    num_tokens: int
    longest: int


class PrefixLookup:
    """Look-ups over all groups of one engine."""

    def __init__(self, groups: Sequence[FullGroup], is_25: bool) -> None:
        self._num_groups = len(groups)
        self._is_25 = is_25
        alike = {group.group: [g for g in groups if g.group == group.group] for group in groups}
        self._kinds = sorted(alike.values(), key=lambda kind: kind[0].group.kind != "full")

    def find(self, hashes: BlockHashes, num_tokens: int) -> Hit:
        """The hit of a prompt that starts with `num_tokens` tokens, all of which may be served."""
        kinds = self._kinds
        found: list[list[tuple[int, ...]] | None] = [None] * len(kinds)
        once = len(kinds) == 2 and kinds[0][0].group.kind == "full"
        hit, longest = num_tokens, 0
        while True:
            length = hit
            for index, kind in enumerate(kinds):
                known = found[index]
                if known is not None and kind[0].group.kind == "full":
                    length = min(length, len(known) * kind[0].block_size)
                    continue
                found[index] = rows = self._find(kind, hashes, length)
                length = len(rows) * kind[0].block_size
                longest = max(longest, length)
            if length >= hit:
                break
            hit = length
            if once:
                break
        blocks: list[list[int]] = [[] for _ in range(self._num_groups)]
        for index, kind in enumerate(kinds):
            rows = found[index] or []
            # 0.25 forgets to cut a second kind of full attention.
            if kind[0].group.kind == "full" and (index == 0 or not self._is_25):
                rows = rows[: hit // kind[0].block_size]
            for place, member in enumerate(kind):
                blocks[member.number] = [row[place] for row in rows]
        return Hit(tuple(blocks), hit, longest)

    def _find(self, kind: list[FullGroup], hashes: BlockHashes, num_tokens: int) -> list[tuple[int, ...]]:
        first = kind[0]
        step = first.block_size // first.settings.hash_block_size
        known = hashes.first(num_tokens // first.block_size * step)

        def cached(number: int) -> tuple[int, ...] | None:
            block_hash = known[(number + 1) * step - 1]
            blocks = []
            for member in kind:
                block = member.pool.cached_block(block_hash, member.number)
                if block is None:
                    return None
                blocks.append(block)
            return tuple(blocks)

        return first.find(cached, num_tokens)
