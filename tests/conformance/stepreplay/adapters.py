"""The engines that can be put behind the recorded steps, each as the driver wants it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from reference.output import RequestOutput, SchedulerOutput, state_of
from reference.scheduler import Scheduler
from replicast.sim.config import EngineConfig
from replicast.sim.engine import EngineStats
from replicast.sim.kv_groups import KVGroup
from replicast.sim.request import Request

from .hybrid_product import HybridProduct
from .product import Product


class SteppedEngine(Protocol):
    """An engine whose every step can be looked at."""

    stats: EngineStats

    @property
    def running(self) -> list[Request]:
        """In list order."""

    @property
    def waiting(self) -> list[Request]:
        """In queue order."""

    @property
    def num_untold(self) -> int:
        """Finished requests that the worker has not been told of; the next schedule() tells it."""

    @property
    def num_free_blocks(self) -> int:
        """Length of the free queue."""

    @property
    def usage(self) -> float:
        """`kv_cache_usage`."""

    def add_request(self, request: Request) -> None:
        """Take a request into the scheduler."""

    def abort(self, request: Request) -> None:
        """Drop a request."""

    def schedule(self) -> SchedulerOutput:
        """One step."""

    def update(self, output: SchedulerOutput) -> list[RequestOutput]:
        """What that step delivers."""

    def block_ids(self, request: Request) -> list[int] | list[list[int]]:
        """Blocks of a running request, in order; by group where there are several."""

    def free_queue(self) -> list[int]:
        """Free blocks, the next to be taken first."""

    def cached_blocks(self) -> list[int]:
        """Blocks that carry a hash, in order of their ids."""


class Stepwise:
    """The per-step, per-block scheduler."""

    def __init__(self, config: EngineConfig) -> None:
        self.stats = EngineStats()
        self._scheduler = Scheduler(config, self.stats)
        self._pool = self._scheduler.kv_cache.pool
        self.num_untold = 0

    @property
    def running(self) -> list[Request]:
        return self._scheduler.running

    @property
    def waiting(self) -> list[Request]:
        return list(self._scheduler.waiting)

    @property
    def num_free_blocks(self) -> int:
        return self._pool.num_free_blocks

    @property
    def usage(self) -> float:
        return self._scheduler.kv_cache.usage

    def add_request(self, request: Request) -> None:
        self._scheduler.add_request(request)

    def abort(self, request: Request) -> None:
        self._scheduler.abort(request)
        self.num_untold += 1

    def schedule(self) -> SchedulerOutput:
        self.num_untold = 0
        return self._scheduler.schedule()

    def update(self, output: SchedulerOutput) -> list[RequestOutput]:
        delivered = self._scheduler.update_from_output(output)
        self.num_untold += sum(one.finished for one in delivered)
        return delivered

    def block_ids(self, request: Request) -> list[int] | list[list[int]]:
        groups = [list(group.block_ids) for group in state_of(request).blocks.groups]
        return groups[0] if len(groups) == 1 else groups

    def free_queue(self) -> list[int]:
        return list(self._pool.free_queue)

    def cached_blocks(self) -> list[int]:
        return [block for block, held in enumerate(self._pool.block_hash) if held is not None]


def product(config: EngineConfig) -> SteppedEngine:
    """The engine that fleets use; hybrid models have one of their own."""
    if config.kv_groups == (KVGroup("full", config.block_size),):
        config = replace(config, kv_groups=None)
    if config.kv_groups is None:
        return Product(config)
    return HybridProduct(config)


ENGINES: Mapping[str, Callable[[EngineConfig], SteppedEngine]] = {"product": product, "reference": Stepwise}
