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
    """What a look-up found: rows of blocks of each unit of equal groups, and tokens served.

    `longest` is the longest prefix that any kind had cached, at least `num_tokens`. A run of content ends in
    node `index` of the request's path.
    """

    __slots__ = ("found", "index", "longest", "num_tokens")

    def __init__(self, found: list[Found], num_tokens: int, longest: int) -> None:
        self.found = found
        self.num_tokens = num_tokens
        self.longest = longest
        self.index = -1


class _Kind:
    """All groups that are equal, wherever they stand."""

    def __init__(self, units: list[tuple[int, FullGroups]]) -> None:
        self.units = units
        self.first = units[0][1]
        self.is_full = self.first.group.kind == "full"
        self.tables = [unit.table for _, unit in units]


class PrefixLookup:
    """Look-ups over the groups of one engine but for a run of content, which goes before."""

    def __init__(self, units: Sequence[FullGroups], is_25: bool, has_run: bool) -> None:
        self._num_units = len(units)
        self._is_25 = is_25
        kinds: list[_Kind] = []
        for group in dict.fromkeys(unit.group for unit in units):
            kinds.append(_Kind([(at, unit) for at, unit in enumerate(units) if unit.group == group]))
        kinds.sort(key=lambda kind: not kind.is_full)
        self._kinds = kinds
        self._only = units[0] if has_run and len(units) == 1 else None
        self._once = len(kinds) == 1 if has_run else len(kinds) == 2 and kinds[0].is_full

    def find(self, held: HybridState, num_tokens: int) -> Hit:
        """The hit of a prompt that starts with `num_tokens` tokens, all of which may be served."""
        kinds, only = self._kinds, self._only
        if only is not None:
            one = only.find(self._kinds[0].tables, held, num_tokens)
            hit = one.num_places * only.block_size
            return Hit([one], hit, hit)
        found: list[Found] = []
        hit, longest = num_tokens, 0
        while True:
            length = hit
            for index, kind in enumerate(kinds):
                first = kind.first
                if index == len(found):
                    found.append(first.find(kind.tables, held, length))
                elif kind.is_full:
                    length = min(length, found[index].num_places * first.block_size)
                    continue
                else:
                    found[index] = first.find(kind.tables, held, length)
                length = found[index].num_places * first.block_size
                if length > longest:
                    longest = length
            is_agreed = length >= hit
            hit = length
            if is_agreed or self._once:
                return Hit(self._by_unit(found, hit), hit, longest)

    def _by_unit(self, found: list[Found], hit: int) -> list[Found]:
        by_unit: dict[int, Found] = {}
        for index, kind in enumerate(self._kinds):
            known = found[index]
            # 0.25 forgets to cut a second kind of full attention.
            if kind.is_full and (index == 0 or not self._is_25):
                del known.rows[hit // kind.first.block_size :]
            start = 0
            for at, unit in kind.units:
                by_unit[at] = known.part(start, unit.count)
                start += unit.count
        return [by_unit[at] for at in range(self._num_units)]
