"""A made-up sweep with known truth: a profile's server, simulated level by level, written as a `sweep.csv`.

For tours and tests where no measured sweep is at hand. `leftover` requests of an earlier load stay in the
server at every level, as they do where a sweep starts without draining: checks must find them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from replicast.calibration.growth import Endings
from replicast.calibration.harness import ServerModel, simulated_level
from replicast.calibration.profile import Profile
from replicast.calibration.sweep import Histogram, SweepLevel
from replicast.calibration.workload import LevelLoad
from replicast.sim.config import EngineArgs
from replicast.sim.defaults import resolve
from replicast.sim.report.files import write_text

LOAD = LevelLoad(
    concurrency=1,
    streams=1,
    prompt_tokens=60_000,
    output_tokens=300,
    computed_tokens=4_000,
    first_tokens=10_000,
    shared_tokens=15_000,
    tool_s=2.0,
    endings=Endings(25.0, 0.0),
    load_s=150.0,
    window_s=180.0,
    expected_requests=30,
)
PLAIN = (
    "window_s", "load_s", "requests_finished", "first_tokens", "prompt_tokens", "cached_tokens",
    "generated_tokens", "preemptions",
)  # fmt: skip
TIMES = ("ttft", "queue", "prefill", "tpot")
GAUGES = ("running", "waiting", "kv_usage")


def made_levels(
    profile: Profile, concurrencies: Sequence[int], seed: int, *, leftover: int = 0
) -> tuple[SweepLevel, ...]:
    """Levels as a collector would have recorded them on the server of `profile`."""
    config = resolve(EngineArgs(), profile.engine_args()).config
    server = ServerModel(config, profile.to_step_time(), profile.front_end)
    loads = (
        replace(LOAD, concurrency=c, streams=c + leftover, expected_requests=30 * (c + leftover))
        for c in concurrencies
    )
    return tuple(simulated_level(load, server, seed) for load in loads)


def write_sweep_csv(levels: Sequence[SweepLevel], profile: Profile, path: Path) -> None:
    """A row a level; what the server was told stands in every row."""
    engine = resolve(EngineArgs(), profile.engine_args()).config
    facts = {
        "model": profile.model.split(" ")[0].lower(),
        "gpu": profile.gpu,
        "tensor_parallel_size": profile.tensor_parallel_size,
        "vllm_version": profile.vllm_version,
        "block_size": engine.block_size,
        "num_gpu_blocks": engine.num_gpu_blocks,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "max_num_seqs": engine.max_num_seqs,
        "max_model_len": engine.max_model_len,
    }
    rows = [{"concurrency": level.concurrency, **_figures(level), **facts} for level in levels]
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_text(path, text.getvalue())


def _figures(level: SweepLevel) -> dict[str, object]:
    row: dict[str, object] = {name: _short(getattr(level, name)) for name in PLAIN}
    for name in TIMES:
        histogram: Histogram | None = getattr(level, name)
        row[f"{name}_mean_s"] = _short(histogram.mean if histogram else None)
    for name in GAUGES:
        gauge = getattr(level, name)
        row[f"{name}_mean"], row[f"{name}_peak"] = _short(gauge.mean), _short(gauge.peak)
    return row


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}" if value != round(value) else f"{value:.0f}"
