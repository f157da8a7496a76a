"""The fast engine's scheduler and its cache of runs make vLLM's recorded steps with no jump at all.

Block ids it does not have: all else of a recording must be equal. With jumps, `conformance/` checks them.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from reference import output as stepwise
from replicast.sim.config import EngineConfig
from replicast.sim.engine import EngineStats
from replicast.sim.engine.request_state import RequestState, SchedulerOutput
from replicast.sim.engine.scheduler import Scheduler
from replicast.sim.request import Request, RequestStatus

CONFORMANCE = Path(__file__).parent / "conformance"
sys.path.insert(0, str(CONFORMANCE))
BLOCK_IDS = ("blocks", "freeq", "cached")
HYBRID = ("35_", "36_", "37_", "38_")


class RowByRow:
    """The scheduler as the driver of recordings wants it."""

    def __init__(self, config: EngineConfig) -> None:
        self.stats = EngineStats()
        self.num_untold = 0
        self._scheduler = Scheduler(config, self.stats)
        self._outputs: dict[int, SchedulerOutput] = {}

    @property
    def running(self) -> list[Request]:
        return [state.request for state in self._scheduler.running]

    @property
    def waiting(self) -> list[Request]:
        waiting = self._scheduler.waiting
        ordered = reversed(waiting) if isinstance(waiting, list) else waiting
        return [state.request for state in ordered]

    @property
    def num_free_blocks(self) -> int:
        return self._scheduler.kv_cache.num_free

    @property
    def usage(self) -> float:
        return self._scheduler.kv_cache.usage

    def add_request(self, request: Request) -> None:
        self._scheduler.add_request(request)

    def abort(self, request: Request) -> None:
        assert isinstance(request.state, RequestState)
        self._scheduler.abort(request.state)
        self.num_untold += 1

    def schedule(self) -> stepwise.SchedulerOutput:
        self.num_untold = 0
        waited = {request.request_id: request.status for request in self.waiting}
        made = self._scheduler.schedule()
        rows = []
        for state, n, c, drafts, sampled in made.rows:
            request = state.request
            was = waited.get(request.request_id)
            admitted: Any = None if was is None else "new" if was == RequestStatus.WAITING else "resumed"
            rows.append(stepwise.ScheduledRow(request, n, c, request.num_tokens, drafts, sampled, admitted))
        told = stepwise.SchedulerOutput(rows, [state.request for state in made.preempted])
        self._outputs[id(told)] = made
        return told

    def update(self, output: stepwise.SchedulerOutput) -> list[stepwise.RequestOutput]:
        before = {row.request.request_id: row.request.num_output_tokens for row in output.rows}
        delivered, finished = self._scheduler.update_from_output(self._outputs.pop(id(output)))
        self.num_untold += len(finished)
        return [
            stepwise.RequestOutput(
                state.request,
                state.request.num_output_tokens - before[state.request.request_id],
                state in finished,
            )
            for state in delivered
        ]

    def block_ids(self, request: Request) -> list[int]:
        return []

    def free_queue(self) -> list[int]:
        return []

    def cached_blocks(self) -> list[int]:
        return []


def recordings() -> list[Any]:
    """(scenario, recorded steps, version), hybrid models left out."""
    found = []
    for folder, scenarios in ((CONFORMANCE, CONFORMANCE / "scenarios"), (CONFORMANCE / "extra",) * 2):
        for version in ("0.25.1", "0.33.0"):
            for steps in sorted((folder / f"golden-{version}").glob("*.steps.jsonl.gz")):
                name = steps.name.removesuffix(".steps.jsonl.gz")
                if not name.startswith(HYBRID):
                    scenario = scenarios / f"{name}.scenario.json"
                    found.append(pytest.param(scenario, steps, version, id=f"{name}-{version}"))
    return found


@pytest.mark.parametrize(("scenario", "steps", "version"), recordings())
def test_steps_equal_the_recorded_ones(scenario: Path, steps: Path, version: str) -> None:
    compare = importlib.import_module("stepreplay.compare")
    driver = importlib.import_module("stepreplay.driver")
    loaded = importlib.import_module("stepreplay.scenario").load_scenario(scenario, version)
    ours, recorded = driver.Driver(loaded, RowByRow).run(), compare.load_recording(steps)
    for line in (*ours, *recorded):
        for key in BLOCK_IDS:
            line.pop(key, None)
    assert compare.first_difference(ours, recorded) is None
