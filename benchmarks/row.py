"""One row of the benchmarks in this process; one JSON line out. `run.py` calls it for every figure.

python benchmarks/row.py mooncake --engine reference --limit 300 --shared ../shared
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from replicast.sim.config import EngineConfig
from replicast.sim.engine import Engine
from replicast.sim.engine.compiled import compiled_class
from replicast.sim.engine.factory import make_engine
from replicast.sim.engine.step_time import StepTime
from replicast.sim.fleet.config import FleetConfig
from replicast.sim.fleet.run import simulate
from replicast.sim.kv_groups import parse_groups
from replicast.sim.planning.summary import summarise
from replicast.sim.workload import Session
from replicast.traces.load import load_trace
from sampling import Sampler
from workloads import STEP_TIME, chats

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from reference.engine import StepwiseEngine

MOONCAKE = "traces/mooncake/conversation_trace.jsonl"
SESSIONS = "traces/kv-cache-tester/sessions.canonical.jsonl.gz"
HYBRID_BLOCK = 1056  # tokens; 10 layers of attention, 2 KV heads x 256, states in fp32
Work = tuple[Sequence[Session], EngineConfig, FleetConfig]


def mooncake(shared: Path, limit: int | None) -> Work:
    """The conversation trace at its recorded arrivals."""
    sessions = load_trace([shared / MOONCAKE]).sessions[:limit]
    config = EngineConfig(num_gpu_blocks=40_001, max_num_batched_tokens=8192, max_model_len=1_000_000)
    return sessions, config, FleetConfig(replicas=4, router="round-robin")


def sessions(shared: Path, limit: int | None) -> Work:
    """Real sessions in a closed loop; `limit` counts sessions."""
    loaded = load_trace([shared / SESSIONS]).sessions[:limit]
    config = EngineConfig(num_gpu_blocks=60_001, max_num_batched_tokens=8192, max_model_len=200_000)
    return loaded, config, FleetConfig(replicas=4, sessions=40)


def hybrid(make: Callable[[Path, int | None], Work]) -> Callable[[Path, int | None], Work]:
    """The same work on a model that has 30 layers with states beside those of attention, in as many bytes."""

    def made(shared: Path, limit: int | None) -> Work:
        loaded, config, fleet = make(shared, limit)
        blocks = config.num_usable_blocks * config.block_size // HYBRID_BLOCK
        groups = parse_groups("full, 3 x mamba", HYBRID_BLOCK, config.max_model_len, align=True)
        config = replace(config, block_size=HYBRID_BLOCK, num_gpu_blocks=blocks + 1, kv_groups=groups)
        return loaded, config, fleet

    return made


def synthetic(prompts: int = 1, outputs: int = 1) -> Callable[[Path, int | None], Work]:
    """Made sessions; the pool grows as they do, so that as many are cached."""

    def make(_: Path, limit: int | None) -> Work:
        made = list(chats((limit or 8_000) // 4, 4, prompts, outputs))
        longest = max(prompts, outputs)
        config = EngineConfig(num_gpu_blocks=8_000 * longest + 1, max_model_len=8_000 * longest)
        return made, config, FleetConfig(replicas=4, sessions=40)

    return make


def replicas(number: int, router: str) -> Callable[[Path, int | None], Work]:
    """As many made sessions a replica, whatever the number of replicas."""

    def make(_: Path, limit: int | None) -> Work:
        made = list(chats((limit or 12_800) // 4))
        config = EngineConfig(num_gpu_blocks=8_001, max_model_len=8_000)
        return made, config, FleetConfig(replicas=number, sessions=10 * number, router=router)  # type: ignore[arg-type]

    return make


ROWS: dict[str, Callable[[Path, int | None], Work]] = {
    "mooncake": mooncake,
    "sessions": sessions,
    "mooncake-hybrid": hybrid(mooncake),
    "sessions-hybrid": hybrid(sessions),
    "short": synthetic(),
    "prompts-10x": synthetic(prompts=10),
    "outputs-10x": synthetic(outputs=10),
    "replicas-1": replicas(1, "session-affinity"),
    "replicas-64": replicas(64, "session-affinity"),
    "prefix-aware-1": replicas(1, "prefix-aware"),
    "prefix-aware-64": replicas(64, "prefix-aware"),
}


def engine_of(name: str) -> Callable[[EngineConfig, StepTime], Engine]:
    """The engine that jumps, in Python or compiled, or the one that walks every step and block."""
    if name == "compiled" and compiled_class() is None:
        raise SystemExit("build it first: python -m replicast.sim.engine.compiled")
    return StepwiseEngine if name == "reference" else make_engine


def main() -> None:
    """Run one row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("row", choices=list(ROWS))
    parser.add_argument("--engine", choices=["pure", "compiled", "reference"], default="pure")
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--limit", type=int, help="the first so many sessions (made ones: requests)")
    parser.add_argument("--repeat", type=int, default=1, help="the fastest of so many runs")
    parser.add_argument("--profile", action="store_true", help="where the time goes, by samples")
    args = parser.parse_args()
    os.environ["REPLICAST_COMPILED"] = "1" if args.engine == "compiled" else "0"  # the fleet's, too
    make = engine_of(args.engine)
    sampler = Sampler() if args.profile else None
    if sampler:
        sampler.start()
    trace, config, fleet = ROWS[args.row](args.shared, args.limit)
    best_cpu_s = float("inf")
    for _ in range(args.repeat):
        gc.collect()
        cpu_start = time.process_time()
        result = simulate(trace, config, STEP_TIME, fleet, seed=0, engines=make)
        best_cpu_s = min(best_cpu_s, time.process_time() - cpu_start)
        summarise(result, None, None)
    finished = result.counts.finished
    answer = {
        "row": args.row,
        "engine": args.engine,
        "finished": finished,
        "cpu_s": best_cpu_s,
        "us_per_request": best_cpu_s / finished * 1e6,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "last_finish_s": result.duration_s,
        "share": sampler.stop() if sampler else None,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
