"""Figures that several laws read off a level, and how much such figures vary by themselves.

Rates and gauge means are over a window that ends with an idle drain; *in load* means over the time in which
load was offered: from scrapes where there are any, else mean x window / load.

`NOISE` is the standard deviation of the logarithm of a figure between two runs of one level with the same
server and the same kind of sessions: the upper end of what simulations of levels of public sweeps gave
(docs/check.md). `SESSION_CV` is the coefficient of variation of the requests that one session has in the
server, averaged over a level: sub-agents come in bursts, and 1 (as for an exponential) is more than any
public sweep shows. The mean over c sessions varies by SESSION_CV / sqrt(c).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log, sqrt
from typing import NamedTuple

from replicast.calibration.sweep import Gauge, Histogram, SweepLevel

NOISE: Mapping[str, float] = {
    "tpot": 0.17,
    "ttft": 0.39,
    "prefill": 0.44,
    "queue": 0.99,
    "output_tokens_per_s": 0.17,
    "prompt_tokens_per_s": 0.27,
}
SESSION_CV = 1.0
# Limits in standard deviations. A sweep has about 7 levels and 12 laws: at 3, chance breaks one of 84
# one-sided tests of a clean sweep in a tenth of them if each sat at its limit; the noise above is an upper
# end.
FAIL_SD = 3.0
WARN_SD = 2.0
HARNESS_LEAD_S = 2.0  # the collector starts so long before the load
KV_FULL = 0.95  # above this peak some request has waited for blocks


class Peak(NamedTuple):
    """Between what the largest number of requests in the system lies."""

    low: float
    high: float


def mean_of(histogram: Histogram | None) -> float | None:
    """Its mean, where it is known."""
    return histogram.mean if histogram is not None else None


def in_load(gauge: Gauge | None, level: SweepLevel) -> float | None:
    """The mean of a gauge while load was offered."""
    if gauge is None or gauge.mean is None:
        return None
    if gauge.times_s and level.load_s and level.sessions == 1:
        inside = [
            v for t, v in zip(gauge.times_s, gauge.values, strict=True) if t <= level.load_s + HARNESS_LEAD_S
        ]
        if inside:
            return sum(inside) / len(inside)
    return gauge.mean * (level.dilution or 1.0)


def in_system(level: SweepLevel) -> float | None:
    """Requests running or waiting, mean while load was offered."""
    running = in_load(level.running, level)
    if running is None:
        return None
    return running + (in_load(level.waiting, level) or 0.0)


def in_system_at(level: SweepLevel) -> tuple[tuple[float, float], ...]:
    """(time, running + waiting) at every scrape that has both; empty where there are no scrapes."""
    if level.running is None or level.waiting is None or not level.running.times_s:
        return ()
    waiting = dict(zip(level.waiting.times_s, level.waiting.values, strict=True))
    pairs = zip(level.running.times_s, level.running.values, strict=True)
    return tuple((t, running + waiting[t]) for t, running in pairs if t in waiting)


def peak_in_system(level: SweepLevel) -> Peak | None:
    """The peak of running + waiting: exact from scrapes; from two peaks only the larger and their sum."""
    series = in_system_at(level)
    if series:
        top = max(n for _, n in series)
        return Peak(top, top)
    peaks = [g.peak for g in (level.running, level.waiting) if g is not None and g.peak is not None]
    return Peak(max(peaks), sum(peaks)) if peaks else None


def requests(level: SweepLevel) -> float | None:
    """Requests that got a first token, or finished ones; None where the source does not count them."""
    ttft = level.ttft.count if level.ttft is not None else None
    counted = next((n for n in (level.first_tokens, ttft, level.requests_finished) if n is not None), None)
    prompt = mean_of(level.prompt_per_request)
    return level.prompt_tokens / prompt if counted is None and level.prompt_tokens and prompt else counted


def prompt_length(level: SweepLevel) -> float | None:
    """Mean prompt of a request."""
    count = requests(level)
    return level.prompt_tokens / count if level.prompt_tokens and count else None


def alive(level: SweepLevel) -> float:
    """Requests in the system: their mean in load, the peak where no mean is known, at least one a session."""
    peak = peak_in_system(level)
    held = in_system(level)
    if held is None:
        held = peak.low if peak is not None else 0.0
    return max(held, float(level.concurrency or 1))


def rate_noise(level: SweepLevel) -> float:
    """Relative sampling noise of a rate: 1/sqrt(requests), a tenth where they are not counted."""
    count = requests(level)
    return 1.0 / sqrt(count) if count and count > 0 else 0.1


def deviation(ratio: float, noise: float) -> float:
    """How many standard deviations a ratio is above 1, on the scale of logarithms."""
    return log(ratio) / noise if ratio > 0 else 0.0


def kv_full(level: SweepLevel) -> bool:
    """Whether requests can have waited for KV blocks."""
    return level.kv_usage is not None and (level.kv_usage.peak or 0.0) >= KV_FULL


def scrape_interval(level: SweepLevel) -> float | None:
    """Usual time between two scrapes."""
    if level.window_s and level.scrapes and level.scrapes > 1:
        return level.window_s / (level.scrapes + (level.scrapes_failed or 0) - 1)
    return None


def seats_full(level: SweepLevel, max_num_seqs: int | None) -> bool:
    """Whether requests can have waited for a seat."""
    peak = level.running.peak if level.running is not None else None
    return peak is not None and max_num_seqs is not None and peak >= max_num_seqs
