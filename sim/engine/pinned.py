"""A pinned prefix-cache hit rate: what-ifs only, never what sessions would produce.

The first admission of a request with P prompt tokens hits floor(h x (P - 1) / B) x B tokens, whatever is
cached, B the block size. Blocks for them are allocated like any others, so they occupy the pool and
nothing is shared; content look-up is off, and a preempted request starts anew without hits. Hybrid models
are run as one group of full attention.

All that the engine knows of hits is `look_up` and `admit` of its cache, so a cache of another kind does it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from replicast.sim.config import EngineConfig
from replicast.sim.engine import Engine
from replicast.sim.engine.kv_cache import KVCache, RequestBlocks, cdiv
from replicast.sim.engine.macro import MacroEngine
from replicast.sim.engine.request_state import RequestState
from replicast.sim.engine.step_time import StepTime
from replicast.sim.errors import InputError


def pinned_hit_tokens(rate: float, num_prompt_tokens: int, block_size: int) -> int:
    """Tokens that the first admission hits.

    >>> pinned_hit_tokens(0.6, 1001, 16), pinned_hit_tokens(1.0, 1600, 16)
    (592, 1584)
    """
    return int(rate * (num_prompt_tokens - 1) // block_size) * block_size


class PinnedKVCache(KVCache):
    """A pool without content look-up, whose new requests find a fixed share of their prompt computed."""

    def __init__(self, config: EngineConfig, rate: float) -> None:
        super().__init__(
            config.num_gpu_blocks,
            config.block_size,
            config.max_model_len,
            False,
            config.watermark,
            config.num_lookahead_tokens,
        )
        self._rate = rate

    def look_up(self, held: RequestBlocks, num_tokens: int) -> tuple[int, int]:
        """The pinned hits of a request that was never admitted; index -1: nobody else holds them."""
        assert isinstance(held, RequestState)
        if held.request.num_preemptions:
            return -1, 0
        return -1, pinned_hit_tokens(self._rate, num_tokens, self.block_size) // self.block_size

    def admit(
        self,
        held: RequestBlocks,
        place: tuple[int, int],
        num_new: int,
        num_tokens: int,
        *,
        reserve_full_isl: bool,
        use_watermark: bool,
    ) -> bool:
        """New blocks for hits and first chunk alike; False, and nothing changed: no room."""
        need = self.blocks_for(place[1] * self.block_size + num_new)
        wanted = need
        if reserve_full_isl:
            wanted = max(need, cdiv(min(num_tokens, self.max_model_len), self.block_size))
        if use_watermark:
            wanted += self.watermark_blocks
        if wanted > self.num_free:
            return False
        self.take(need)
        held.num_blocks = need
        return True


def pinned_engines(rate: float) -> Callable[[EngineConfig, StepTime], Engine]:
    """A factory of engines whose hit rate is pinned to `rate`."""
    if not 0 <= rate <= 1:
        raise InputError(
            f"prefix-cache-hit-rate is {rate:g}, must lie between 0 and 1",
            remedy="Give a share of the prompt, such as 0.14.",
        )

    def make(config: EngineConfig, step_time: StepTime) -> Engine:
        engine = MacroEngine(replace(config, enable_prefix_caching=False, kv_groups=None), step_time)
        _replace_cache(engine, PinnedKVCache(config, rate))
        return engine

    return make


def _replace_cache(engine: MacroEngine, cache: PinnedKVCache) -> None:
    """Put `cache` where a fresh engine keeps its own."""
    scheduler = engine.scheduler
    cache.sync = scheduler.kv_cache.sync
    cache.holders = scheduler.running
    scheduler.kv_cache = cache
    engine.cache = cache
