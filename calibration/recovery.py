"""Servers with known truth: are their coefficients found again, and do intervals hold them?

    python -m replicast.calibration.recovery [FIRST [COUNT]] [--trace TRACE] [--out FILE]

A random server: coefficients drawn from the priors of physics, above the hardware's bounds; a random load; a
sweep simulated level by level and written as a collector's database. `calibrate` sees the database alone.
What is asked: how often the 95 % interval of each parameter holds the truth (drawn from the prior, it should
in 95 of 100: Talts et al., arXiv 1804.06788), how wide it is, and how far the value is off.

With a trace every level runs sessions of the trace in place of drawn ones, half of them; `calibrate` is given
the other half, as a trace of the same load.

FILE gets a line a server; servers that it holds are not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from replicast.calibration.calibrate import calibrate
from replicast.calibration.counters import collected_sweep
from replicast.calibration.generate import write_collector_db
from replicast.calibration.growth import CALLS_PER_SESSION, FAILED_SESSIONS, Endings
from replicast.calibration.harness import Draw, MakeEngine, ServerModel, simulated_level
from replicast.calibration.physics import FRONT_END, Prior
from replicast.calibration.profile import StepSeconds
from replicast.calibration.server import server_facts
from replicast.calibration.sweep import Given, Sweep
from replicast.calibration.trace_load import TraceLoad
from replicast.calibration.traced import TraceSessions
from replicast.calibration.workload import COMPUTED_SPREAD, LevelLoad, draw_sessions
from replicast.sim.engine.factory import make_engine
from replicast.sim.engine.step_time import StepTime
from replicast.sim.workload import Session
from replicast.traces.load import load_trace

MODELS = ("qwen3-coder-30b", "minicpm5-2b", "devstral-2-123b", "llama-3.1-8b", "llama-3.1-70b")
HARDWARE = {"minicpm5-2b": ("L40S", 1), "devstral-2-123b": ("H200", 4), "llama-3.1-70b": ("H200", 2)}
SCRAPE_S = 2.0
_TRUTH = 29  # random stream


class Recovered(NamedTuple):
    """One parameter of one server."""

    name: str
    truth: float
    value: float
    low: float
    high: float
    method: str

    @property
    def inside(self) -> bool:
        """Whether the interval holds the truth."""
        return self.low <= self.truth <= self.high

    @property
    def width(self) -> float:
        """Upper end over lower end."""
        return self.high / self.low

    @property
    def off(self) -> float:
        """Value over truth, less 1."""
        return self.value / self.truth - 1


@dataclass(frozen=True, slots=True)
class Bed:
    """A server with known truth, and the loads of its sweep."""

    given: Given
    steps: StepSeconds
    loads: tuple[LevelLoad, ...]
    server: ServerModel

    @property
    def truth(self) -> dict[str, float]:
        """What a calibration is to find, by name."""
        load = self.loads[0]
        return self.steps._asdict() | {
            "first_tokens": load.first_tokens,
            "output_spread": load.output_spread,
            "computed_spread": load.computed_spread,
            "calls_per_session": load.endings.calls,
            "failed_sessions": load.endings.failed,
        }


def random_bed(
    seed: int, concurrencies: tuple[int, ...] = (1, 2, 5, 10, 20), load_s: float = 300.0,
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
    steps = StepSeconds(**{key: _drawn(prior, rng) for key, prior in facts.priors.items()})
    prompt, output = rng.uniform(25_000, 70_000), rng.uniform(150, 900)
    computed, first = rng.uniform(1_500, 12_000), rng.uniform(6_000, 14_000)
    spread = rng.uniform(0.9, 1.5)
    calls_z, failed_z, computed_z = rng.standard_normal(3).tolist()
    endings = Endings(
        CALLS_PER_SESSION * math.exp(0.4 * calls_z), min(FAILED_SESSIONS * math.exp(failed_z), 0.8)
    )
    a_request = 0.5 + computed * steps.compute_per_token_s + output * steps.memory_fixed_s
    loads = tuple(
        LevelLoad(
            concurrency=c, streams=c, prompt_tokens=prompt, output_tokens=output, computed_tokens=computed,
            first_tokens=first, shared_tokens=12_000, tool_s=0.3, endings=endings, load_s=load_s,
            window_s=load_s + 120, expected_requests=max(c * load_s / a_request / (1 + 0.15 * c), 3.0 * c),
            output_spread=spread, computed_spread=COMPUTED_SPREAD * math.exp(0.4 * computed_z),
        )
        for c in concurrencies
    )  # fmt: skip
    server = ServerModel(facts.config, StepTime.from_seconds(**steps._asdict()), FRONT_END, engines)
    return Bed(given, steps, loads, server)


def _drawn(prior: Prior, rng: np.random.Generator) -> float:
    """From the prior, above the hardware's bound."""
    while True:
        value = prior.value * math.exp(prior.spread * float(rng.standard_normal()))
        if value > prior.low:
            return value


def simulated_sweep(bed: Bed, seed: int) -> Sweep:
    """The sweep as a collector would have counted it."""
    levels = tuple(simulated_level(load, bed.server, 1000 + seed) for load in bed.loads)
    return Sweep("bed", "bed", levels, model=bed.given.model, given=bed.given)


def write_database(
    bed: Bed, seed: int, path: Path, interval_s: float = SCRAPE_S, draw: Draw = draw_sessions
) -> None:
    """The same sweep as the collector's database; levels run what `draw` gives."""
    sessions = collected_sweep(bed.loads, bed.server, 1000 + seed, interval_s=interval_s, draw=draw)
    write_collector_db(path, sessions, model=str(bed.given.model), max_model_len=131_072)


def recover(
    bed: Bed, sweep: Sweep, engines: MakeEngine = make_engine, trace: TraceLoad | None = None
) -> list[Recovered]:
    """What a calibration makes of the sweep, against the truth."""
    found = calibrate(sweep, given=bed.given, trace=trace, loo=False, force=True, engines=engines)
    return [
        Recovered(it.name, bed.truth[it.name], it.value, it.low, it.high, it.method)
        for it in found.uncertainty.intervals
        if it.name in bed.truth
    ]


def recover_server(seed: int, sessions: Sequence[Session] = ()) -> list[Recovered]:
    """Server number `seed`, by way of its database; of `sessions` half is run and half is told."""
    from replicast.calibration.readers.duckdb_collector import read_duckdb

    bed = random_bed(seed)
    trace: TraceLoad | None = None
    draw: Draw = draw_sessions
    if sessions:
        trace = TraceLoad.of(sessions[1::2], "trace")
        draw = TraceSessions.of(sessions[::2], shares=trace.sessions.shares).draw
        bed = replace(bed, loads=tuple(replace(load, tool_s=0.0) for load in bed.loads))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "throughput-metrics.duckdb"
        write_database(bed, seed, path, draw=draw)
        return recover(bed, read_duckdb(path), trace=trace)


def known_servers(path: Path | None) -> dict[int, list[Recovered]]:
    """Servers that `path` holds; a line cut short is none."""
    found: dict[int, list[Recovered]] = {}
    for line in path.read_text().splitlines() if path and path.exists() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[row["server"]] = [Recovered(**item) for item in row["parameters"]]
    return found


def table(servers: Sequence[Sequence[Recovered]]) -> list[str]:
    """Markdown: a line a parameter."""
    lines = [
        "| parameter | the interval holds the truth | upper over lower end, median | value off, median "
        "| by profile likelihood |",
        "|---|---|---|---|---|",
    ]
    rows = [row for server in servers for row in server]
    for name in dict.fromkeys(row.name for row in rows):
        part = [row for row in rows if row.name == name]
        width = float(np.median([row.width for row in part]))
        off = float(np.median([abs(row.off) for row in part]))
        profiled = sum(row.method != "covariance" for row in part)
        inside = sum(row.inside for row in part)
        lines.append(f"| `{name}` | {inside} of {len(part)} | {width:.2f} | {off:.0%} | {profiled} |")
    return lines


def main() -> None:
    """Recover servers and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("first", type=int, nargs="?", default=0)
    parser.add_argument("count", type=int, nargs="?", default=10)
    parser.add_argument("--trace", type=Path, help="levels run its sessions")
    parser.add_argument("--out", type=Path, help="a line a server; what it holds is not run again")
    options = parser.parse_args()
    known = known_servers(options.out)
    sessions = load_trace([options.trace]).sessions if options.trace else ()
    wanted = range(options.first, options.first + options.count)
    for seed in wanted:
        if seed in known:
            continue
        began = time.process_time()
        known[seed] = recover_server(seed, sessions)
        seconds = time.process_time() - began
        missed = ", ".join(f"{row.name} {row.off:+.0%}" for row in known[seed] if not row.inside)
        print(f"server {seed}: {seconds:.0f} s, missed: {missed or 'nothing'}", flush=True)
        if options.out is not None:
            parameters = [row._asdict() for row in known[seed]]
            with options.out.open("a") as file:
                file.write(json.dumps({"server": seed, "parameters": parameters}) + "\n")
    print("\n".join(table([known[seed] for seed in wanted])))


if __name__ == "__main__":
    main()
