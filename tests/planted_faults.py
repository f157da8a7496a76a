"""Faults planted in clean simulated sweeps: what a broken run leaves behind in gauges and counters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from replicast.calibration.readers.counters import merge_levels
from replicast.calibration.sweep import Gauge, Histogram, Sweep, SweepLevel
from sweep_bed import LOAD_S, Bed, make_level, make_sweep


class Fault(NamedTuple):
    """How to plant it, and the laws of which at least one must find it (fail or warn, or a note)."""

    plant: Callable[[Bed, int], Sweep]
    laws: tuple[int, ...]
    severity: str = "fail"


def stale_backlog(bed: Bed, seed: int) -> Sweep:
    """Clients of an earlier run keep asking in every level."""
    return make_sweep(replace(bed, outsiders=24, compute_per_token_s=1.5e-4), seed)


def stale_backlog_without_baseline(bed: Bed, seed: int) -> Sweep:
    """The same, and nobody ran c=1."""
    sweep = stale_backlog(bed, seed)
    return replace(sweep, levels=sweep.levels[1:])


def stale_queue(bed: Bed, seed: int) -> Sweep:
    """28 requests wait throughout and are never served."""
    sweep = make_sweep(bed, seed)
    return replace(sweep, levels=tuple(replace(lv, waiting=_raised(lv.waiting, 28.0)) for lv in sweep.levels))


def stale_level(bed: Bed, seed: int) -> Sweep:
    """Leftovers of something else in one level only."""
    sweep = make_sweep(bed, seed)
    return with_level(
        sweep, 1, make_level(replace(bed, outsiders=24), sweep.levels[1].concurrency or 1, seed)
    )


def counter_reset(bed: Bed, seed: int) -> Sweep:
    """The server restarts 250 s into c=5."""
    sweep = make_sweep(bed, seed)
    return with_level(sweep, 2, replace(sweep.levels[2], resets=1, reset_times_s=(250.0,)))


def merged_session(bed: Bed, seed: int) -> Sweep:
    """c=2 was run twice under one name, the second time with other sessions and another server load."""
    sweep = make_sweep(bed, seed)
    other = make_level(replace(bed, outsiders=3, new_tokens=3 * bed.new_tokens), 2, seed + 1)
    return with_level(sweep, 1, merge_levels([sweep.levels[1], other]))


def merged_window(bed: Bed, seed: int) -> Sweep:
    """The same as a summary shows it: one long window, the time between the runs included."""
    sweep = make_sweep(bed, seed)
    return with_level(sweep, 1, replace(sweep.levels[1], window_s=1481.0, load_s=None))


def busy_drain(bed: Bed, seed: int) -> Sweep:
    """Sessions are not killed at the deadline: the drain is as busy as the load."""
    return make_sweep(replace(bed, load_s=717.0), seed)


def not_drained(bed: Bed, seed: int) -> Sweep:
    """The next level begins while the last one still runs."""
    sweep = make_sweep(replace(bed, load_s=725.0), seed)
    begun = [sweep.levels[0]]
    for level in sweep.levels[1:]:
        begun.append(replace(level, running=_from_start(level.running)))
    return replace(sweep, levels=tuple(begun))


def dead_chat_template(bed: Bed, seed: int) -> Sweep:
    """Prompts go in, nothing comes out."""
    sweep = make_sweep(bed, seed)
    dead = tuple(
        replace(
            level,
            generated_tokens=0.0,
            first_tokens=0.0,
            requests_finished=0.0,
            ttft=Histogram(0.0, 0.0),
            tpot=None,
            queue=None,
            prefill=None,
            e2e=None,
        )
        for level in sweep.levels
    )
    return replace(sweep, levels=dead)


def clock_gap(bed: Bed, seed: int) -> Sweep:
    """The clock jumps by five minutes inside c=7."""
    sweep = make_sweep(bed, seed)
    level = sweep.levels[3]
    return with_level(
        sweep, 3, replace(level, window_s=(level.window_s or 0.0) + 300.0, load_s=None, largest_gap_s=301.0)
    )


def killed_server(bed: Bed, seed: int) -> Sweep:
    """The server dies 300 s into c=10; scrapes fail from then on."""
    sweep = make_sweep(bed, seed)
    level = make_level(replace(bed, load_s=300.0), 10, seed)
    return with_level(
        sweep,
        4,
        replace(
            level,
            window_s=302.0,
            load_s=None,
            scrapes=303,
            scrapes_failed=417,
            running=_until(level.running, 302.0),
            waiting=_until(level.waiting, 302.0),
            kv_usage=_until(level.kv_usage, 302.0),
        ),
    )


def cache_off(bed: Bed, seed: int) -> Sweep:
    """Prefix caching is off, and the source does not say so."""
    sweep = make_sweep(replace(bed, enable_prefix_caching=False, turns=20, compute_per_token_s=6e-5), seed)
    return replace(sweep, given=replace(sweep.given, enable_prefix_caching=None))


def evicted_prefixes(bed: Bed, seed: int) -> Sweep:
    """The pool holds a few contexts only."""
    return make_sweep(replace(bed, kv_pool_tokens=420_000, compute_per_token_s=4e-5, turns=60), seed)


def broken_prefix(bed: Bed, seed: int) -> Sweep:
    """A time stamp behind the system prompt."""
    return make_sweep(
        replace(bed, broken_prefix=True, compute_per_token_s=3e-5, kv_pool_tokens=8_000_000), seed
    )


def sub_agents(bed: Bed, seed: int) -> Sweep:
    """No fault: sessions fork five sub-agents."""
    return make_sweep(replace(bed, fan_out=5), seed)


FAULTS: dict[str, Fault] = {
    "stale backlog": Fault(stale_backlog, (1, 2, 3, 4)),
    "stale backlog without baseline": Fault(stale_backlog_without_baseline, (2,)),
    "stale queue": Fault(stale_queue, (2, 3)),
    "stale level": Fault(stale_level, (2,), "warn"),
    "counter reset": Fault(counter_reset, (7,)),
    "merged session": Fault(merged_session, (7, 11)),
    "merged window": Fault(merged_window, (7,)),
    "busy drain": Fault(busy_drain, (6,), "warn"),
    "not drained": Fault(not_drained, (2,), "warn"),
    "dead chat template": Fault(dead_chat_template, (7,)),
    "clock gap": Fault(clock_gap, (7,)),
    "killed server": Fault(killed_server, (7,)),
    "cache off": Fault(cache_off, (10,), "warn"),
    "broken prefix": Fault(broken_prefix, (10,), "warn"),
    "evicted prefixes": Fault(evicted_prefixes, (10,), "warn"),
}


def with_level(sweep: Sweep, at: int, level: SweepLevel) -> Sweep:
    """The sweep with one level replaced."""
    return replace(sweep, levels=(*sweep.levels[:at], level, *sweep.levels[at + 1 :]))


def _raised(gauge: Gauge | None, by: float) -> Gauge:
    assert gauge is not None
    return Gauge.over_time(gauge.times_s, [value + by for value in gauge.values])


def _from_start(gauge: Gauge | None) -> Gauge:
    assert gauge is not None
    return Gauge.over_time(
        gauge.times_s,
        [max(gauge.values[5], 1.0) if t < 3 else v for t, v in zip(gauge.times_s, gauge.values, strict=True)],
    )


def _until(gauge: Gauge | None, end_s: float) -> Gauge:
    assert gauge is not None
    times = [t for t in gauge.times_s if t <= end_s]
    return Gauge.over_time(times, gauge.values[: len(times)])


__all__ = ["FAULTS", "LOAD_S", "Fault", "sub_agents"]
