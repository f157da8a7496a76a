"""Ten million short requests through four replicas, records to disk: does memory stay where it was?

    python benchmarks/streaming.py --requests 10000000 --out /tmp/run.records

Sessions are made while the run goes on and dropped at their ends. Prints requests/s and the peak of
resident memory, then quantiles read from the file column by column, and the peak after that.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
from replicast.sim.config import EngineConfig
from replicast.sim.engine.factory import make_engine
from replicast.sim.fleet.config import FleetConfig
from replicast.sim.fleet.run import simulate
from workloads import STEP_TIME, chats

TURNS = 4


def peak_mb() -> float:
    """Most resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, help="keep the records here")
    args = parser.parse_args()
    config = EngineConfig(num_gpu_blocks=20_001, max_model_len=8_192)
    fleet = FleetConfig(replicas=4, sessions=160, stagger_s=10.0)
    with tempfile.TemporaryDirectory() as scratch:
        path = args.out or Path(scratch) / "run.records"
        before, start, cpu_start = peak_mb(), time.perf_counter(), time.process_time()
        result = simulate(
            chats(args.requests // TURNS, TURNS), config, STEP_TIME, fleet, seed=0, record_file=path
        )
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu_start
        number = result.counts.finished
        print(f"engine {type(make_engine(config, STEP_TIME)).__module__}")
        print(f"{number:,} requests in {wall:,.1f} s, {cpu:,.1f} s of CPU: {number / cpu:,.0f} requests/s")
        print(
            f"peak {peak_mb():.0f} MB, {before:.0f} MB before; {path.stat().st_size / 1e6:,.0f} MB of records"
        )
        start = time.perf_counter()
        records = result.records
        ttft = records.ttft_s[records.measured]
        quantiles = ", ".join(f"p{q} {np.nanpercentile(ttft, q):.3f} s" for q in (50, 90, 99))
        hits = records.cached_tokens.sum() / records.prompt_tokens.sum()
        print(f"TTFT {quantiles}; hit rate {hits:.3f}; read in {time.perf_counter() - start:.1f} s")
        print(f"peak {peak_mb():.0f} MB")


if __name__ == "__main__":
    main()
