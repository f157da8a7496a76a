"""Servers with known truth: are their coefficients found again, and do intervals hold them?

A random server (coefficients drawn around physics), a random load, a sweep simulated level by level and
counted as a collector counts. `calibrate` sees the counters alone. What is asked: how often the 95 % interval
of each fitted coefficient holds the truth, and how far the value is off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from replicast.calibration.calibrate import calibrate
from replicast.calibration.counters import collected_sweep
from replicast.calibration.generate import write_collector_db
from replicast.calibration.harness import MakeEngine, ServerModel, simulated_level
from replicast.calibration.model import ENGINE
from replicast.calibration.physics import FRONT_END
from replicast.calibration.profile import StepSeconds
from replicast.calibration.server import server_facts
from replicast.calibration.sweep import Given, Sweep
from replicast.calibration.workload import LevelLoad
from replicast.sim.engine.factory import make_engine
from replicast.sim.engine.step_time import StepTime

MODELS = ("qwen3-coder-30b", "minicpm5-2b", "devstral-2-123b", "llama-3.1-8b", "llama-3.1-70b")
HARDWARE = {"minicpm5-2b": ("L40S", 1), "devstral-2-123b": ("H200", 4), "llama-3.1-70b": ("H200", 2)}
_TRUTH = 29  # random stream


class Recovered(NamedTuple):
    """One coefficient of one server."""

    name: str
    truth: float
    value: float
    low: float
    high: float

    @property
    def inside(self) -> bool:
        """Whether the interval holds the truth."""
        return self.low <= self.truth <= self.high


@dataclass(frozen=True, slots=True)
class Bed:
    """A server with known truth, and the loads of its sweep."""

    given: Given
    steps: StepSeconds
    loads: tuple[LevelLoad, ...]
    server: ServerModel


def random_bed(
    seed: int, concurrencies: tuple[int, ...] = (1, 2, 5, 7, 10, 15, 20), load_s: float = 600.0,
    engines: MakeEngine = make_engine,
) -> Bed:  # fmt: skip
    """Server number `seed`."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_TRUTH,)))
    name = MODELS[int(rng.integers(len(MODELS)))]
    gpu, tp = HARDWARE.get(name, ("H200", 1))
    given = Given(
        model=name, gpu=gpu, tensor_parallel_size=tp, vllm_version="0.28.0", max_model_len=131_072,
        max_num_batched_tokens=int(rng.choice([2048, 8192])), kv_pool_tokens=900_000,
    )  # fmt: skip
    facts = server_facts(Sweep("bed", "bed", (), model=name, given=given))
    values = {}
    for key, prior in facts.priors.items():
        drawn = prior.value * math.exp(0.35 * float(rng.standard_normal()))
        values[key] = max(drawn, 1.05 * prior.low) if key in ENGINE else prior.value
    steps = StepSeconds(**values)
    prompt, output = rng.uniform(25_000, 70_000), rng.uniform(150, 900)
    computed, first = rng.uniform(1_500, 12_000), rng.uniform(6_000, 14_000)
    a_request = 0.5 + computed * steps.compute_per_token_s + output * steps.memory_fixed_s
    loads = tuple(
        LevelLoad(
            concurrency=c, streams=c, prompt_tokens=prompt, output_tokens=output, computed_tokens=computed,
            first_tokens=first, shared_tokens=12_000, tool_s=0.3, calls_per_session=66, load_s=load_s,
            window_s=load_s + 120, expected_requests=max(c * load_s / a_request / (1 + 0.15 * c), 3.0 * c),
        )
        for c in concurrencies
    )  # fmt: skip
    server = ServerModel(facts.config, StepTime.from_seconds(**values), FRONT_END, engines)
    return Bed(given, steps, loads, server)


def simulated_sweep(bed: Bed, seed: int) -> Sweep:
    """The sweep as a collector would have counted it."""
    levels = tuple(simulated_level(load, bed.server, 1000 + seed) for load in bed.loads)
    return Sweep("bed", "bed", levels, model=bed.given.model, given=bed.given)


def write_database(bed: Bed, seed: int, path: Path, interval_s: float = 1.0) -> None:
    """The same sweep as the collector's database."""
    sessions = collected_sweep(bed.loads, bed.server, 1000 + seed, interval_s=interval_s)
    write_collector_db(path, sessions, model=str(bed.given.model), max_model_len=131_072)


def recover(bed: Bed, sweep: Sweep, engines: MakeEngine = make_engine) -> list[Recovered]:
    """What a calibration makes of the sweep, against the truth."""
    found = calibrate(sweep, given=bed.given, loo=False, force=True, engines=engines)
    truth = bed.steps._asdict()
    return [
        Recovered(it.name, truth[it.name], it.value, it.low, it.high)
        for it in found.uncertainty.intervals
        if it.name in truth
    ]


def main(first: int, count: int) -> None:
    """Print how servers `first` … `first + count` fared."""
    rows: list[Recovered] = []
    for seed in range(first, first + count):
        bed = random_bed(seed)
        rows += recover(bed, simulated_sweep(bed, seed))
        for name in ENGINE:
            part = [row for row in rows if row.name == name]
            inside = sum(row.inside for row in part)
            off = float(np.median([abs(math.log(row.value / row.truth)) for row in part]))
            print(f"{len(part):4d} {name:24} inside {inside}, median off {off:.0%}", flush=True)


if __name__ == "__main__":
    import sys

    main(*(int(text) for text in (sys.argv[1:] + ["0", "10"][len(sys.argv) - 1 :])))
