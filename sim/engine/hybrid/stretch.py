"""Blocks in a row that are held and let go together: full attention without a look at each block.

A request of full attention holds every block of its path to its end, and lets go of all at once, last block
first. So neighbours on a path mostly share their fate: the same requests hold them, they stand next to each
other in the free queue, and one that goes on where another ended finds them all. A `Stretch` is such a
row. It is parted where a request hits only a part of it; what one request leaves idle is joined again.

All blocks of a stretch are the ones that look-ups find for their content, but for a later copy of a block
that is cached already: that is a stretch of its own.
"""

from __future__ import annotations


class Stretch:
    """The blocks of places `start` and on of a path; `holders` hold all of them, and nobody else any."""

    __slots__ = ("blocks", "holders", "is_copy", "key", "start")

    def __init__(self, start: int, blocks: list[int], is_copy: bool) -> None:
        self.start = start
        self.blocks = blocks
        self.is_copy = is_copy
        self.holders: dict[Chain, None] = {}
        self.key = 0  # in the free queue

    @property
    def end(self) -> int:
        """The place after its last block."""
        return self.start + len(self.blocks)


class Chain:
    """The blocks of one request: stretches, one after the other, then its own that have no hash yet."""

    __slots__ = ("own", "stretches")

    def __init__(self) -> None:
        self.stretches: list[Stretch] = []
        self.own: list[int] = []
