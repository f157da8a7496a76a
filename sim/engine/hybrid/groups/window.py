"""Sliding-window attention: a token looks at the last `sliding_window` tokens only, itself included.

Blocks wholly before the window are freed at the next allocation and replaced by null. So a hit needs
the blocks of the last `sliding_window - 1` tokens before its end, and only those. The admission check
counts no more blocks than a request holds at one time.

What is published: blocks that a hit can end with. Hits end on multiples of the alignment (all of them
with dense retention), with sparse retention (0.33) once per interval, at the prompt's last boundary and
where another prompt was seen to branch off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from replicast.sim.engine.hybrid.block_pool import Path, Table, key_of
from replicast.sim.engine.hybrid.groups.blocks import GroupBlocks, PlaceBlocks
from replicast.sim.engine.hybrid.groups.full import Found, FullGroups, Parts
from replicast.sim.engine.hybrid.spans import Span, SpanTable
from replicast.sim.engine.kv_cache import cdiv

if TYPE_CHECKING:
    from replicast.sim.engine.hybrid.state import HybridState


class FoundPlaces(Found):
    """A hit of the places `start … end` of a request's path, in all groups."""

    __slots__ = ("end", "path")

    def __init__(self, path: Path, start: int, end: int) -> None:
        super().__init__(start, [])
        self.path = path
        self.end = end

    @property
    def num_places(self) -> int:
        return self.end

    def part(self, first: int, count: int) -> Found:
        return self


class WindowGroups(FullGroups):
    """Equal groups of sliding-window attention."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        group, settings = parts.group, parts.settings
        assert group.sliding_window is not None, "a sliding-window group has a window"
        self.window: int = group.sliding_window
        self.num_needed = cdiv(self.window - 1, self.block_size)
        most_tokens = min(self.window - 1 + settings.max_in_flight_tokens, settings.max_model_len)
        # It may start inside a block.
        self.most_admission_tokens = (cdiv(most_tokens, self.block_size) + 1) * self.block_size
        assert isinstance(parts.table, SpanTable)
        self.spans = parts.table

    def find(self, tables: Sequence[Table], held: HybridState, num_tokens: int) -> Found:
        """From right to left: the first run long enough, else what run there is from the start."""
        path = held.paths[self.tree]
        nodes, per_hit = path[0], self.alignment // self.block_size
        needed = max(self.num_needed, 1)
        end = 0  # of the run, 0: none
        index, place = len(nodes) - 1, num_tokens // self.block_size - 1
        while place >= 0:
            while nodes[index].first_block > place:
                index -= 1
            low, is_cached = 0, True
            for table in tables:
                assert isinstance(table, SpanTable)
                answer, start = table.stretch(nodes[index], place)
                if not answer:
                    low, is_cached = start, False
                    break
                low = max(low, start)
            if not is_cached:
                end = 0
                place = low - 1
                continue
            if not end:
                end = (place + 1) // per_hit * per_hit
                if end <= low:
                    end = 0
            if end - low >= needed:
                return FoundPlaces(path, end - needed, end)
            place = low - 1
        return FoundPlaces(path, 0, end)

    def kept(self, found: Found, num_hit_tokens: int) -> Found:
        if not isinstance(found, FoundPlaces) or not num_hit_tokens:
            return found
        return FoundPlaces(found.path, max(self.num_skipped(num_hit_tokens), found.start), found.end)

    def num_idle(self, found: Found, num_hit_tokens: int) -> int:
        kept = self.kept(found, num_hit_tokens)
        if not isinstance(kept, FoundPlaces):
            return 0
        number = 0
        for span in self.spans.spans_in(kept.path, kept.start, kept.end):
            if span.entry is not None:
                number += (span.high - span.low) * self.count
        if self.spans.first:
            for place in range(kept.start, kept.end):
                for block in self.spans.first.get(key_of(kept.path, place), ()):
                    number += block is not None and not block.holders
        return number

    def adopt(self, held: HybridState, found: Found, num_hit_tokens: int) -> GroupBlocks:
        path = held.paths[self.tree] if held.paths else None
        if not num_hit_tokens:
            return WindowBlocks(self, path, 0, 0)
        kept = self.kept(found, num_hit_tokens)
        return WindowBlocks(self, path, kept.start, kept.num_places)

    def num_skipped(self, num_computed: int) -> int:
        return max(0, num_computed - self.window + 1) // self.block_size

    def after_drop(self, num_dropped: int) -> int:
        return (num_dropped + 1) * self.block_size + self.window - 1

    def reachable(self, first: int, end: int, held: HybridState) -> list[tuple[int, int]]:
        """The runs of places in this range that a look-up can need; others are never published."""
        interval, alignment, needed = self.settings.retention_interval, self.alignment, self.num_needed
        per_segment = (alignment if interval is None else interval) // self.block_size
        if interval is None and per_segment <= needed:
            return [(first, end)]
        wanted: list[tuple[int, int]] = []
        if interval is not None:
            for tokens in (held.request.num_prompt_tokens - 1, held.shared_prefix_boundary):
                stop = tokens // alignment * alignment // self.block_size
                wanted.append((stop - needed, stop))
        if per_segment:
            for start in range(first // per_segment * per_segment, end, per_segment):
                stop = start + per_segment
                wanted.append((max(start, stop - needed), stop))
        runs: list[tuple[int, int]] = []
        for low, high in sorted(wanted):
            low, high = max(low, first), min(high, end)
            if runs and low <= runs[-1][1]:
                runs[-1] = runs[-1][0], max(high, runs[-1][1])
            elif low < high:
                runs.append((low, high))
        return runs


class WindowBlocks(PlaceBlocks):
    """Those of one request: the published ones stand in `runs` of places, copies in `cached`."""

    __slots__ = ("path", "runs", "window")

    def __init__(self, unit: WindowGroups, path: Path | None, start: int, end: int) -> None:
        super().__init__(unit, start, [])
        self.num_places = self.num_published = end
        self._note()
        self.window = unit
        self.path = path
        self.runs: list[tuple[int, int]] = []
        if path is None or start >= end:
            return
        spans = unit.spans
        for span in spans.spans_in(path, start, end):
            spans.hold(span)
        if spans.first:
            for place in range(start, end):
                row = spans.first.get(key_of(path, place))
                if row is not None:
                    self.cached[place] = [block for block in row if block is not None]
                    unit.pool.hold_row(self.cached[place])
        self._add_run(start, end)

    def _add_run(self, low: int, high: int) -> None:
        """Note published places, but for those that are told apart."""
        for place in self.cached:
            if low <= place < high:
                self._extend(low, place)
                low = place + 1
        self._extend(low, high)

    def _extend(self, low: int, high: int) -> None:
        runs = self.runs
        if runs and runs[-1][1] == low:
            runs[-1] = runs[-1][0], high
        elif low < high:
            runs.append((low, high))

    def publish(self, held: HybridState, num_tokens: int) -> None:
        unit = self.window
        first, end = self.num_published, num_tokens // unit.block_size
        if end <= first:
            return
        self.num_published = end
        assert self.path is not None
        for low, high in unit.reachable(max(first, self.num_dropped), end, held):
            own_end = self.runs[-1][1] if self.runs else -1
            unit.spans.publish(self.path, low, high, own_end, self.cached)
            self._add_run(low, high)

    def _let_go(self, end: int) -> None:
        cached, table = self.cached, self.window.spans
        spans = self._leave(end)
        number = sum(span.high - span.low for span in spans)
        number += sum(place < end for place in cached)
        self.unit.pool.let_go_unnamed((end - self.num_dropped - number) * self.unit.count)
        self.num_dropped = end
        if any(place < end for place in cached):
            table.let_go_apart(spans, cached)
            self.unit.pool.let_go([cached.pop(place) for place in sorted(cached) if place < end])
        else:
            table.let_go(spans)

    def _leave(self, end: int) -> list[Span]:
        """The spans of the runs before place `end`, the last first; what is left of the runs is behind it."""
        spans: list[Span] = []
        runs, path = self.runs, self.path
        while runs and runs[0][0] < end:
            assert path is not None
            low, high = runs[0]
            spans = self.window.spans.spans_in(path, low, min(high, end)) + spans
            if high > end:
                runs[0] = end, high
                break
            del runs[0]
        return spans
