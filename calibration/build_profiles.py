"""The shipped profiles, fitted to the published sweeps (`published.py`).

    python -m replicast.calibration.build_profiles [--only SLUG,...] [--rows FILE] [--jobs 2] [FOLDER]

A profile is written only where the fit passes its own checks: no coefficient beats the hardware, and the
held-out error of the time per token has a median of at most 30 %. `--rows` takes held-out rows that
`accuracy --raw` has just computed instead of computing them again.

A sweep may have served a shorter context than agents need; the profile then allows what the pool and the
model do (`LONGEST`), and its ranges say what was seen. Hybrid models name their KV groups.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from replicast.calibration.calibrate import Calibration, calibrate, validation_table
from replicast.calibration.pool import LONGEST, longest_request
from replicast.calibration.profile import SHIPPED, Profile, write_profile
from replicast.calibration.published import GIVEN, published_sweeps
from replicast.calibration.rows import Row
from replicast.calibration.validate import Validation

DATE = "2026-12-01"
SOURCE = "github.com/aws-samples/sample-agentic-coding-harness-benchmarks (MIT-0, July to September 2026)"
NAMES = {
    "qwen3.6-35b-g6e12xlarge": "qwen3.6-35b-l40s-tp4",
    "qwen3.6-35b-h200-tp1": "qwen3.6-35b-h200-tp1",
    "qwen3-coder-30b-g6e": "qwen3-coder-30b-l40s-tp4",
    "qwen3-coder-30b-h200-tp1": "qwen3-coder-30b-h200-tp1",
    "qwen3.8-27b-g6e": "qwen3.8-27b-l40s-tp1",
    "qwen3.8-27b-h200-tp1": "qwen3.8-27b-h200-tp1",
    "qwen3.8-27b-h200-tp1-seqs128": "qwen3.8-27b-h200-tp1-seqs128",
    "gemma-4-31b-g6e12xlarge": "gemma-4-31b-l40s-tp4",
    "minicpm5-2b": "minicpm5-2b-l40s-tp1",
    "devstral-2-123b": "devstral-2-123b-h200-tp4",
    "glm-5.2": "glm-5.2-h200-tp8",
    "glm-5.3": "glm-5.3-h200-tp8",
    "kimi-k2.7-code-earlier": "kimi-k2.7-code-h200-tp8",
    "kimi-k3": "kimi-k3-b300-tp8",
    "minimax-m3": "minimax-m3-h200-tp8",
    "qwen3-coder-480b": "qwen3-coder-480b-h200-tp4",
}


def build(slug: str, rows: dict[str, Any] | None = None) -> tuple[str, Profile | None, str]:
    """Calibrate one sweep: its profile if it passes, and a verdict."""
    known = None if rows is None else rows.get(slug)
    found = calibrate(published_sweeps()[slug], name=NAMES[slug], date=DATE, force=True, loo=known is None)
    if known is not None:
        held = Validation(slug, "leave one level out", True, tuple(Row(**row) for row in known["loo"]), ())
        tables = {**found.profile.tables, "validation": validation_table(held)}
        found = replace(found, held_out=held, profile=replace(found.profile, tables=tables))
    error = found.profile.tables.get("validation", {}).get("given_tpot_mean_s", {}).get("median_error")
    verdict = f"held-out time per token off by {error:.0%}" if error is not None else "no held-out error"
    if not found.passes:
        return slug, None, f"not shipped: {verdict}"
    return slug, shippable(found), verdict


def comments() -> dict[str, str]:
    """What stands above the keys."""
    return {
        "": (
            "Fitted profile, made by `python -m replicast.calibration.build_profiles`; edit that.\n"
            f"Sweep: {SOURCE}."
        ),
        "engine": "As given with the sweep; unset flags follow vLLM's defaults for the device.",
        "step_time": "Seconds. A step takes the larger of the memory and the compute side.",
        "front_end": "TTFT less queue and prefill of the levels without contention.",
        "ranges": "What was seen: sessions, and mean lengths of requests per level.",
        "intervals": "95 %, each by the method that it names.",
        "load": "Latents of the load: what the harness does, not the server.",
        "levels": "The fitted levels: lengths, what was measured, and what the simulation misses (log).",
        "covariance": "Of the logarithms of the fitted parameters (of computed_slope itself).",
        "validation": "Held-out: each level predicted from the others; medians of absolute errors.",
    }


def shippable(found: Calibration) -> Profile:
    """The profile with the context that agents need, where the sweep served less."""
    args = found.profile.engine
    if (args.max_model_len or 0) < LONGEST <= longest_request(args) and found.facts.model.hybrid:
        note = f"The sweep served {args.max_model_len:,} tokens of context."
        return replace(
            found.profile,
            engine=replace(args, max_model_len=LONGEST),
            notes=(*found.profile.notes, note),
        )
    return found.profile


def main() -> None:
    """Write the profiles that pass."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path, default=SHIPPED)
    parser.add_argument("--only", default="")
    parser.add_argument("--rows", type=Path, default=None)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    rows = json.loads(options.rows.read_text()) if options.rows else None
    slugs = [slug for slug in GIVEN if not options.only or slug in options.only.split(",")]
    with ProcessPoolExecutor(options.jobs) as pool:
        for slug, profile, verdict in pool.map(partial(build, rows=rows), slugs):
            path = options.folder / f"{NAMES[slug]}.toml"
            if profile is None:
                path.unlink(missing_ok=True)
            else:
                write_profile(profile, path, comments())
            print(f"{slug}: {verdict}", flush=True)


if __name__ == "__main__":
    main()
