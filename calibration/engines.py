"""Counters of several engines together (data parallel ranks, replicas behind one scrape), for a fit of one.

A fit simulates one engine with one engine's pool. What was counted is shared out evenly: counts, sums,
running and waiting are divided by the number of engines, and so are the sessions; means, bounds and KV usage
(a mean over engines already) stay. An engine that had fewer sessions than one (c = 1 on two engines) has one,
which is away half the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from replicast.calibration.sweep import HISTOGRAM_FIELDS, Gauge, Histogram, SweepLevel

COUNTS = (
    "requests_finished", "requests_failed", "requests_unfinished", "first_tokens", "prompt_tokens",
    "cached_tokens", "generated_tokens", "preemptions", "prefix_queries", "prefix_hits",
    "given_prompt_tokens_per_s", "given_output_tokens_per_s", "given_requests_per_s", "request_rate",
)  # fmt: skip


def engines_of(level: SweepLevel, data_parallel_size: int | None) -> int:
    """How many engines the level's counters are of: as labelled, else as told."""
    return level.engines or data_parallel_size or 1


def of_one_engine(
    levels: Sequence[SweepLevel], data_parallel_size: int | None
) -> tuple[list[SweepLevel], list[str]]:
    """The levels as one engine had them, and what to say of it."""
    counts = [engines_of(level, data_parallel_size) for level in levels]
    if max(counts, default=1) == 1:
        return list(levels), []
    told = ", ".join(
        f"{n} at {level.name or level.concurrency}" for n, level in zip(counts, levels, strict=True)
    )
    if len(set(counts)) == 1:
        told = str(counts[0])
    return [shared_out(level, n) for n, level in zip(counts, levels, strict=True)], [
        f"counters of several engines together ({told}): shared out evenly, sessions too; what is learnt is "
        "one engine"
    ]


def shared_out(level: SweepLevel, engines: int) -> SweepLevel:
    """What one of `engines` equal engines had of the level.

    >>> one = shared_out(SweepLevel(10, prompt_tokens=600.0, running=Gauge(4.0, 8.0), engines=2), 2)
    >>> one.concurrency, one.prompt_tokens, one.running.mean, one.engines
    (5, 300.0, 2.0, 1)
    """
    if engines == 1:
        return level
    changed: dict[str, object] = {
        name: value / engines for name in COUNTS if (value := getattr(level, name)) is not None
    }
    for name in HISTOGRAM_FIELDS:
        found: Histogram | None = getattr(level, name)
        if found is not None:
            changed[name] = replace(
                found,
                sum=None if found.sum is None else found.sum / engines,
                count=None if found.count is None else found.count / engines,
                counts=tuple(n / engines for n in found.counts),
            )
    for name in ("running", "waiting"):
        gauge: Gauge | None = getattr(level, name)
        if gauge is not None:
            changed[name] = Gauge(
                None if gauge.mean is None else gauge.mean / engines,
                None if gauge.peak is None else gauge.peak / engines,
                gauge.times_s,
                tuple(value / engines for value in gauge.values),
            )
    if level.concurrency is not None:
        changed["concurrency"] = max(round(level.concurrency / engines), 1)
    return replace(level, engines=1, **changed)  # type: ignore[arg-type]
