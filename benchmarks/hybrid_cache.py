"""What a hybrid model's cache costs an agentic fleet: hit rate and computed tokens, plain against hybrid.

    python benchmarks/hybrid_cache.py SESSIONS.jsonl[.gz] [--out FOLDER]
    python benchmarks/hybrid_cache.py hybrid_cache.json            (only draws)

One replica with 40 GiB of cache. The hybrid model has 10 full-attention layers and 30 with states (blocks
of 1,056 tokens, 1,985 of them); the plain one has the same 10 layers and nothing else (2.1 million
tokens in blocks of 16). Same sessions, same step times, so that only the cache differs. Writes
hybrid_cache.json and hybrid_cache.png.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from replicast.sim.config import EngineConfig
from replicast.sim.engine.step_time import StepTime
from replicast.sim.fleet.config import FleetConfig
from replicast.sim.fleet.run import simulate
from replicast.sim.kv_groups import parse_groups
from replicast.sim.report.files import write_atomically
from replicast.sim.workload import Session
from replicast.traces.load import load_trace

POOL_BYTES, KV_BYTES, BLOCK = 40 * 2**30, 20_480, 1056
MODEL_LEN = 200_000
STEPS = StepTime.from_seconds(
    memory_fixed_s=4.18e-3,
    memory_per_kv_token_s=5.08e-9,
    memory_per_seq_s=3.62e-4,
    compute_per_token_s=2.0e-5,
    compute_per_pair_s=2.17e-10,
)
PLAIN = EngineConfig(num_gpu_blocks=POOL_BYTES // KV_BYTES // 16, block_size=16, max_model_len=MODEL_LEN)
HYBRID = EngineConfig(
    num_gpu_blocks=POOL_BYTES // (KV_BYTES * BLOCK),
    block_size=BLOCK,
    max_model_len=MODEL_LEN,
    kv_groups=parse_groups("full, 3 x mamba", BLOCK, MODEL_LEN, align=True),
)
MODELS = {
    "plain": PLAIN,
    "hybrid 0.25": replace(HYBRID, rules="0.25.1", prefix_cache_retention_interval=None),
    "hybrid 0.33": HYBRID,
    "hybrid 0.33, every 8 blocks": replace(HYBRID, prefix_cache_retention_interval=8 * BLOCK),
    "hybrid 0.33, dense": replace(HYBRID, prefix_cache_retention_interval=None),
}
COLOURS = ("#999999", "#E69F00", "#0072B2", "#56B4E9", "#009E73")
BUDGETS = (2048, 8192)


def pick(sessions: tuple[Session, ...], count: int) -> tuple[Session, ...]:
    """The first sessions of middling length."""
    return tuple(s for s in sessions if 5 <= len(s.turns) <= 60)[:count]


def run(sessions: tuple[Session, ...], config: EngineConfig, live: int) -> dict[str, Any]:
    """One row."""
    fleet = FleetConfig(replicas=1, sessions=live, over_length="truncate-session", think_cap_s=60.0)
    started = time.process_time()
    result = simulate(sessions, config, STEPS, fleet, seed=0)
    cpu_s = time.process_time() - started
    frame = result.records.to_frame()
    frame = frame[frame["status"] == "finished"]
    prompt, cached = float(frame["prompt_tokens"].sum()), float(frame["cached_tokens"].sum())
    stats = result.replicas[0].stats
    return {
        "requests": len(frame),
        "prompt_tokens_per_request": round(prompt / len(frame)),
        "computed_tokens_per_request": round((prompt - cached) / len(frame)),
        "hit_rate": round(cached / prompt, 4),
        "preemptions": stats.num_preemptions,
        "steps": stats.num_steps,
        "busy_s": round(stats.busy_ticks / 1e15, 1),
        "ttft_mean_s": round(float(frame["ttft_s"].mean()), 3),
        "requests_per_cpu_s": round(len(frame) / cpu_s),
    }


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Computed tokens a request, by load and budget."""
    from matplotlib.figure import Figure

    loads = sorted({row["live_sessions"] for row in rows})
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    panels = figure.subplots(1, len(loads), squeeze=False)[0]
    for axes, live in zip(panels, loads, strict=True):
        for at, name in enumerate(MODELS):
            values = [
                next(
                    row["computed_tokens_per_request"]
                    for row in rows
                    if (row["live_sessions"], row["model"], row["budget"]) == (live, name, budget)
                )
                for budget in BUDGETS
            ]
            places = [i + 0.16 * (at - 2) for i in range(len(BUDGETS))]
            axes.bar(places, values, 0.15, color=COLOURS[at], label=name)
        axes.set_xticks(range(len(BUDGETS)), [f"budget {budget:,}" for budget in BUDGETS])
        axes.set_title("1 live session" if live == 1 else f"{live} live sessions")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("computed prompt tokens a request")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    figure.suptitle("One replica, 40 GiB of cache: the same sessions with a plain and a hybrid model")
    figure.savefig(path, dpi=110, metadata={"Software": None})


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def main() -> None:
    """All rows, the table on the screen, and the two files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--loads", type=int, nargs="+", default=[1, 10, 20])
    parser.add_argument("--sessions", type=int, default=60)
    args = parser.parse_args()
    if args.trace.name == "hybrid_cache.json":
        draw(json.loads(args.trace.read_text(encoding="utf-8")), args.out / "hybrid_cache.png")
        return
    sessions = pick(load_trace([args.trace]).sessions, args.sessions)
    rows: list[dict[str, Any]] = []
    for live in args.loads:
        for name, config in MODELS.items():
            for budget in BUDGETS:
                row = run(sessions, replace(config, max_num_batched_tokens=budget), live)
                rows.append({"live_sessions": live, "model": name, "budget": budget, **row})
                print(*rows[-1].values(), sep="  ", flush=True)
    text = json.dumps(rows, indent=1) + "\n"
    write_atomically(args.out / "hybrid_cache.json", lambda path: _write(path, text))
    draw(rows, args.out / "hybrid_cache.png")


if __name__ == "__main__":
    main()
