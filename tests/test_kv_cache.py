"""The cache in runs equals the cache in blocks: same hits, same room, same order of eviction."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.block_hash import BlockHashes
from reference.kv_cache import KVCacheManager
from reference.kv_cache import RequestBlocks as Blocks
from replicast.sim.engine.block_pool import RequestBlocks
from replicast.sim.engine.kv_cache import KVCache
from replicast.sim.workload import Content, Segment, cut, join, num_tokens


class Pair:
    """One request in both caches."""

    def __init__(self, content: Content, block_size: int, cache: KVCache) -> None:
        self.total = num_tokens(content)
        self.runs = RequestBlocks()
        cache.name(self.runs, content)
        self.hashes = BlockHashes(content, (), 0, block_size, -1)
        self.blocks = Blocks(self.hashes)
        self.computed = 0


class Both:
    """Random operations on both caches, which must not differ afterwards."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.block_size = rng.choice([1, 2, 3, 4])
        num_blocks = rng.randint(4, 40)
        args = (num_blocks, self.block_size, 10**6, True, rng.choice([0.0, 0.1]), 0)
        self.fast, self.slow = KVCache(*args), KVCacheManager(*args)
        self.running: list[Pair] = []
        self.fast.holders = []
        self.known: list[Content] = []
        self.hash_of: dict[tuple[object, int], int] = {}

    def content(self) -> Content:
        rng = self.rng
        length = rng.randint(1, 8 * self.block_size)
        if rng.random() < 0.5:
            length = rng.randint(1, 6) * self.block_size
        base: Content = ()
        if self.known and rng.random() < 0.8:
            base = rng.choice(self.known)
            base = cut(base, 0, rng.randint(1, num_tokens(base)))
        stream = rng.randint(1, 4)
        made = join((*base, Segment(stream, rng.choice([0, 0, 3]), length)))
        if rng.random() < 0.3 and base:
            made = base
        self.known.append(made)
        return made

    def admit(self) -> None:
        pair = Pair(self.content(), self.block_size, self.fast)
        if not pair.total:
            return
        self.learn(pair)
        place = self.fast.look_up(pair.runs, pair.total)
        hit = self.slow.get_computed_blocks(pair.blocks, pair.total)
        hits = hit.blocks[0]
        assert place[1] == len(hits)
        idle = sum(self.slow.pool.ref_cnt[block] == 0 for block in hits)
        assert self.fast.num_idle(pair.runs, *place) == idle
        new = self.rng.randint(1, pair.total - len(hits) * self.block_size)
        options = {
            "reserve_full_isl": self.rng.random() < 0.5,
            "use_watermark": self.rng.random() < 0.5,
        }
        done = self.fast.admit(pair.runs, place, new, pair.total, **options)
        assert done == self.slow.admit(pair.blocks, hit, new, pair.total, **options)
        if done:
            pair.computed = len(hits) * self.block_size + new
            self.running.append(pair)
            self.fast.holders.append(pair.runs)
        else:
            self.fast.forget(pair.runs)

    def grow(self) -> None:
        pair = self.rng.choice(self.running)
        if pair.computed < pair.total:
            new = self.rng.randint(1, pair.total - pair.computed)
            done = self.fast.allocate(pair.runs, pair.computed, new, pair.total)
            assert done == self.slow.allocate_slots(pair.blocks, pair.computed, new, pair.total)
            if done:
                pair.computed += new

    def free(self) -> None:
        pair = self.running.pop(self.rng.randrange(len(self.running)))
        self.fast.holders.remove(pair.runs)
        self.fast.free(pair.runs)
        self.fast.forget(pair.runs)
        self.slow.free(pair.blocks)

    def learn(self, pair: Pair) -> None:
        full = pair.total // self.block_size
        for block, value in enumerate(pair.hashes.first(full)[:full]):
            i = next(i for i, end in enumerate(pair.runs.ends) if end > block)
            self.hash_of[pair.runs.nodes[i].key, block] = value  # a dropped node may come back

    def check(self) -> None:
        pool = self.slow.pool
        assert self.fast.num_free == pool.num_free_blocks
        slow = [pool.block_hash[block] for block in pool.free_queue]
        fast: list[int | None] = [None] * self.fast.unhashed
        for entry in self.fast.queue:
            fast += [self.hash_of[entry.node.key, b] for b in range(entry.high - 1, entry.low - 1, -1)]
        assert fast == slow
        for pair in self.running:
            assert pair.runs.num_published == pair.blocks.num_published
            assert pair.runs.num_blocks == len(pair.blocks.block_ids)

    def run(self, num_steps: int) -> None:
        for _ in range(num_steps):
            action = self.rng.random()
            if not self.running or action < 0.4:
                self.admit()
            elif action < 0.7:
                self.grow()
            else:
                self.free()
            self.check()
        while self.running:
            self.free()
            self.check()
        assert self.fast.num_free == self.fast.num_usable
        assert self.fast.duplicates.count or all(n.copies is None for n in self.fast.tree._nodes.values())


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**9))
def test_runs_equal_blocks(seed: int) -> None:
    Both(random.Random(seed)).run(60)


def test_nothing_is_kept_of_what_is_not_cached() -> None:
    cache = KVCache(11, 4, 10**6, True, 0.0, 0)
    for i in range(200):
        pair = Pair((Segment(0, 0, 6), Segment(i, 0, 20)), 4, cache)
        assert cache.admit(
            pair.runs, cache.look_up(pair.runs, 26), 20, 26, reserve_full_isl=True, use_watermark=False
        )
        cache.free(pair.runs)
        cache.forget(pair.runs)
    assert len(cache.tree) <= 11


@pytest.mark.parametrize("caching", [False, True])
def test_a_request_gives_back_all_it_took(caching: bool) -> None:
    cache = KVCache(11, 4, 10**6, caching, 0.0, 0)
    pair = Pair((Segment(0, 0, 18),), 4, cache)
    assert cache.admit(
        pair.runs, cache.look_up(pair.runs, 18), 18, 18, reserve_full_isl=True, use_watermark=False
    )
    assert cache.num_free == 5
    cache.free(pair.runs)
    assert (cache.num_free, cache.unhashed) == (10, 6 if caching else 10)
