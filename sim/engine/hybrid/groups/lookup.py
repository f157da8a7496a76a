"""The longest prefix that all groups have cached (`vllm/v1/core/kv_cache_coordinator.py`).

Equal groups are looked up together. Each kind either accepts the length so far or gives a shorter one;
where one does, all are asked again. Full attention goes first and is asked once: any part of its run is
a hit too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from replicast.sim.engine.hybrid.groups.full import Found, FullGroups

if TYPE_CHECKING:
    from replicast.sim.engine.hybrid.state import HybridState


class Hit:
    """What a look-up found: blocks of each unit of equal groups, and tokens served.

    `longest` is the longest prefix that any kind had cached, at least `num_tokens`.
    """

    __slots__ = ("found", "longest", "num_tokens")

    def __init__(self, found: list[Found], num_tokens: int, longest: int) -> None:
        self.found = found
        self.num_tokens = num_tokens
        self.longest = longest


class _Kind:
    """All groups that are equal, wherever they stand."""

    def __init__(self, units: list[tuple[int, FullGroups]]) -> None:
        self.units = units
        self.first = units[0][1]
        self.is_full = self.first.group.kind == "full"
        self.tables = [table for _, unit in units for table in unit.tables]

    def find(self, held: HybridState, num_tokens: int) -> Found:
        return self.first.find(self.tables, held, num_tokens)


class PrefixLookup:
    """Look-ups over all groups of one engine."""

    def __init__(self, units: Sequence[FullGroups], is_25: bool) -> None:
        self._num_units = len(units)
        self._is_25 = is_25
        kinds: list[_Kind] = []
        for group in dict.fromkeys(unit.group for unit in units):
            kinds.append(_Kind([(at, unit) for at, unit in enumerate(units) if unit.group == group]))
        kinds.sort(key=lambda kind: not kind.is_full)
        self._kinds = kinds
        self._once = len(kinds) == 2 and kinds[0].is_full

    def find(self, held: HybridState, num_tokens: int) -> Hit:
        """The hit of a prompt that starts with `num_tokens` tokens, all of which may be served."""
        kinds = self._kinds
        found: list[Found | None] = [None] * len(kinds)
        hit, longest = num_tokens, 0
        while True:
            length = hit
            for index, kind in enumerate(kinds):
                size = kind.first.block_size
                known = found[index]
                if known is not None and kind.is_full:
                    length = min(length, known.num_places * size)
                    continue
                found[index] = known = kind.find(held, length)
                length = known.num_places * size
                longest = max(longest, length)
            if length >= hit:
                break
            hit = length
            if self._once:
                break
        return Hit(self._by_unit(found, hit), hit, longest)

    def _by_unit(self, found: list[Found | None], hit: int) -> list[Found]:
        kinds = self._kinds
        by_unit: list[Found | None] = [None] * self._num_units
        for index, kind in enumerate(kinds):
            known = found[index]
            assert known is not None, "every kind was asked"
            # 0.25 forgets to cut a second kind of full attention.
            if kind.is_full and (index == 0 or not self._is_25):
                known.cut(hit // kind.first.block_size)
            if len(kind.units) == 1:
                by_unit[kind.units[0][0]] = known
                continue
            start = 0
            for at, unit in kind.units:
                by_unit[at] = Found(known.start, known.blocks[start : start + unit.count])
                start += unit.count
        return [one for one in by_unit if one is not None]
