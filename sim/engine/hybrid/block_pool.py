"""All blocks of one engine: which are free, which are cached, which goes next.

The rules, as in `vllm/v1/core/block_pool.py`:

1. One pool for all groups. Block 0 is the null block and never used. New blocks are taken from the head
   of the free queue; taking a block drops the hash it carries: the only eviction.
2. A free block may keep its hash. It is then cached *and* free.
3. Several blocks of a group may carry one hash; a look-up takes the one published first.
4. Freeing walks the blocks from last to first. Those nobody holds any more go, without hash, to the front
   of the queue (the last block becomes its head), with hash to the back (last block first).

So the free queue is always blocks without hash, then cached ones, oldest freed first: a stack and a queue.
Neighbours in full attention are one entry of the queue (`stretch.py`).
"""

from __future__ import annotations

from collections import OrderedDict

from replicast.sim.engine.hybrid.stretch import Chain, Stretch

NULL_BLOCK = 0


class BlockPool:
    """Reference counts, hashes and the free queue."""

    __slots__ = (
        "_copies",
        "_front",
        "_group",
        "_next_key",
        "block_hash",
        "cached",
        "idle",
        "num_free",
        "ref_cnt",
        "stretch_of",
        "unhashed",
    )

    def __init__(self, num_gpu_blocks: int, num_groups: int) -> None:
        self.ref_cnt = [0] * num_gpu_blocks
        self.block_hash: list[int | None] = [None] * num_gpu_blocks
        self.num_free = num_gpu_blocks - 1  # cached ones included
        self.unhashed = list(range(num_gpu_blocks - 1, NULL_BLOCK, -1))  # free; the next to be taken is last
        # Free and cached, the next to be taken first: a block, or (by its key) a stretch, last block first.
        self.idle: OrderedDict[int, Stretch | None] = OrderedDict()
        self._next_key = num_gpu_blocks
        self._front: Stretch | None = None  # the one before all others, of which blocks are being taken
        self.stretch_of: list[Stretch | None] = [None] * num_gpu_blocks
        # By group: hash -> the block published first, and hash -> those published later.
        self.cached: list[dict[int, int]] = [{} for _ in range(num_groups)]
        self._copies: list[dict[int, list[int]]] = [{} for _ in range(num_groups)]
        self._group = [0] * num_gpu_blocks  # whose hash a block carries

    @property
    def free_queue(self) -> list[int]:
        """Free blocks, the next to be taken first."""
        queue = self.unhashed[::-1]
        if self._front is not None:
            queue += reversed(self._front.blocks)
        for block, stretch in self.idle.items():
            queue += [block] if stretch is None else reversed(stretch.blocks)
        return queue

    def take(self, num_blocks: int, blocks: list[int]) -> None:
        """Append new blocks from the head of the free queue to `blocks`; what they cached is lost."""
        unhashed, ref_cnt = self.unhashed, self.ref_cnt
        self.num_free -= num_blocks
        while num_blocks:
            if unhashed:
                block = unhashed.pop()
            elif self._front is not None:
                num_blocks -= self._take_from(self._front, num_blocks, blocks)
                continue
            else:
                block, self._front = self.idle.popitem(last=False)
                if self._front is not None:
                    continue
                self._evict(block)
            ref_cnt[block] = 1
            blocks.append(block)
            num_blocks -= 1

    def _take_from(self, stretch: Stretch, num_blocks: int, blocks: list[int]) -> int:
        """Take up to `num_blocks` of the stretch in front; how many."""
        left, block_hash, stretch_of, ref_cnt = stretch.blocks, self.block_hash, self.stretch_of, self.ref_cnt
        group = self._group[left[0]]
        cached, copies = self.cached[group], self._copies[group]
        number = min(num_blocks, len(left))
        for _ in range(number):
            block = left.pop()
            name = block_hash[block]
            assert name is not None, "what is idle is cached"
            if copies and name in copies:
                self._evict(block)
            else:
                del cached[name]
                block_hash[block] = None
            stretch_of[block] = None
            ref_cnt[block] = 1
            blocks.append(block)
        if not left:
            self._front = None
        return number

    def touch(self, blocks: list[int]) -> None:
        """Hold cached blocks, so that they cannot be taken."""
        ref_cnt, idle = self.ref_cnt, self.idle
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            holders = ref_cnt[block]
            if holders == 0:
                del idle[block]
                self.num_free -= 1
            ref_cnt[block] = holders + 1

    def num_idle(self, blocks: list[int]) -> int:
        """How many of the cached `blocks` nobody holds."""
        ref_cnt, number = self.ref_cnt, 0
        for block in blocks:
            if block != NULL_BLOCK and ref_cnt[block] == 0:
                number += 1
        return number

    def free(self, blocks: list[int]) -> None:
        """Let go of blocks that a request holds, given first to last (rule 4)."""
        ref_cnt, block_hash, idle = self.ref_cnt, self.block_hash, self.idle
        unhashed: list[int] = []
        freed = 0
        for block in reversed(blocks):
            if block == NULL_BLOCK:
                continue
            holders = ref_cnt[block] - 1
            ref_cnt[block] = holders
            if holders:
                continue
            freed += 1
            if block_hash[block] is None:
                unhashed.append(block)
            else:
                idle[block] = None
        self.num_free += freed
        if unhashed:
            unhashed.reverse()
            self.unhashed += unhashed

    def free_each(self, blocks: list[int]) -> None:
        """Let go of blocks one by one, as `free` of each would."""
        for block in blocks:
            holders = self.ref_cnt[block] - 1
            self.ref_cnt[block] = holders
            if holders:
                continue
            self.num_free += 1
            if self.block_hash[block] is None:
                self.unhashed.append(block)
            else:
                self.idle[block] = None

    def publish(self, block: int, name: int, group: int) -> None:
        """Let look-ups of hash `name` for a group find `block`."""
        self.block_hash[block] = name
        self._group[block] = group
        cached = self.cached[group]
        if name in cached:
            self._copies[group].setdefault(name, []).append(block)
        else:
            cached[name] = block

    def _evict(self, block: int) -> None:
        block_hash = self.block_hash[block]
        assert block_hash is not None, "what is idle is cached"
        self.block_hash[block] = None
        group = self._group[block]
        cached, copies = self.cached[group], self._copies[group]
        if not copies or block_hash not in copies:
            del cached[block_hash]
            return
        later = copies[block_hash]
        if cached[block_hash] == block:
            first = cached[block_hash] = later.pop(0)
            stretch = self.stretch_of[first]
            if stretch is not None:
                stretch.is_copy = False
        else:
            later.remove(block)
        if not later:
            del copies[block_hash]

    # Stretches

    def hold(self, chain: Chain, stretches: list[Stretch], num_places: int) -> None:
        """A request without blocks holds cached ones up to a place, of each stretch those up to the next."""
        end = num_places
        for stretch in reversed(stretches):
            if stretch.start >= end:
                continue
            holders = stretch.holders
            if stretch.end > end:
                self._part(stretch, end)
            elif stretch is self._front:
                self._front = None
            elif not holders:
                del self.idle[stretch.key]
            if not holders:
                self.num_free -= len(stretch.blocks)
            holders[chain] = None
            chain.stretches.append(stretch)
            end = stretch.start
        chain.stretches.reverse()

    def _part(self, stretch: Stretch, place: int) -> None:
        """Cut off what comes from `place` on; it stays where it is in the queue, or held as it was."""
        kept = place - stretch.start
        rest = Stretch(place, stretch.blocks[kept:], stretch.is_copy)
        del stretch.blocks[kept:]
        for block in rest.blocks:
            self.stretch_of[block] = rest
        if stretch is self._front:
            self._front = rest
        elif not stretch.holders:
            rest.key = stretch.key
            self.idle[rest.key] = rest
        for chain in stretch.holders:
            rest.holders[chain] = None
            chain.stretches.insert(chain.stretches.index(stretch) + 1, rest)

    def publish_own(self, chain: Chain, names: list[int], start: int, group: int) -> None:
        """Let look-ups find a request's first own blocks, of places `start` and on."""
        cached, own, stretches = self.cached[group], chain.own, chain.stretches
        block_hash, stretch_of = self.block_hash, self.stretch_of
        last = stretches[-1] if stretches else None
        if last is not None and (last.is_copy or len(last.holders) > 1):
            last = None
        place = start
        for name in names:
            block = own[place - start]
            is_copy = name in cached
            if last is None or is_copy:
                last = Stretch(place, [], is_copy)
                last.holders[chain] = None
                stretches.append(last)
            last.blocks.append(block)
            stretch_of[block] = last
            block_hash[block] = name
            self._group[block] = group
            if is_copy:
                self._copies[group].setdefault(name, []).append(block)
                last = None
            else:
                cached[name] = block
            place += 1
        del own[: len(names)]

    def let_go(self, chain: Chain) -> None:
        """Let go of all blocks of a request (rule 4)."""
        freed = len(chain.own)
        self.unhashed += chain.own
        later: Stretch | None = None  # to be put at the back of the queue
        for stretch in reversed(chain.stretches):
            holders = stretch.holders
            del holders[chain]
            if holders:
                continue
            freed += len(stretch.blocks)
            if later is not None and not self._join(stretch, later):
                self._push(later)
            later = stretch
        if later is not None:
            self._push(later)
        self.num_free += freed

    def _join(self, stretch: Stretch, later: Stretch) -> bool:
        """Whether `later` was made a part of `stretch`: where it goes on there, and is the smaller one."""
        if stretch.is_copy or later.is_copy or stretch.end != later.start:
            return False
        if len(later.blocks) > len(stretch.blocks):
            return False
        for block in later.blocks:
            self.stretch_of[block] = stretch
        stretch.blocks += later.blocks
        return True

    def _push(self, stretch: Stretch) -> None:
        key = stretch.key = self._next_key
        self._next_key = key + 1
        self.idle[key] = stretch
