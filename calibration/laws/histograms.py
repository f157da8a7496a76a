"""Law 8: a quantile of a Prometheus histogram is the edge of a bucket, and needs requests enough.

* vLLM's queue and prefill buckets begin at 0.3 s: "p50 = 300 ms" says at most 0.3 s, possibly 0.
* A distribution-free two-sided 95 % interval of the q quantile exists from n requests on, where the larger of
  q^n and (1 - q)^n is below 2.5 %: 6 for p50, 36 for p90, 368 for p99. Requests of one session are alike, so
  the honest n is smaller still.
"""

from __future__ import annotations

from math import ceil, log

from replicast.calibration.laws.figures import requests
from replicast.calibration.laws.findings import Answer, Case, Finding, Row, label, listed, show
from replicast.calibration.lengths import lengths_of
from replicast.calibration.sweep import SweepLevel

LAW = 8
CHECK = "requests"
QUANTILES = (0.5, 0.9, 0.99)


def needed(q: float) -> int:
    """Requests from which the `q` quantile has a 95 % interval.

    >>> [needed(q) for q in QUANTILES]
    [6, 36, 368]
    """
    return ceil(log(0.025) / log(max(q, 1.0 - q)))


def histograms(case: Case) -> Answer:
    """Which quantiles the levels can give."""
    findings: list[Finding] = []
    cells = []
    counts = [requests(level) for level in case.levels]
    for at, (level, count) in enumerate(zip(case.levels, counts, strict=True)):
        guess = _estimated(case, level) if count is None else None
        cells.append(show(count) if count is not None else f"~{show(guess, 2)}" if guess is not None else "-")
        number = count if count is not None else guess
        if number is not None and 0 < number < needed(0.5):
            how = "" if count is not None else "about "
            findings.append(
                Finding(
                    LAW,
                    CHECK,
                    "warn",
                    f"it rests on {how}{show(number, 2)} requests: not even the median has an interval",
                    (("requests", number), ("needed_p50", needed(0.5))),
                    "Run the level longer.",
                    at,
                )
            )
    findings += _quantiles(case, counts)
    return Answer(
        tuple(findings), (Row(CHECK, "requests", tuple(cells), "a p50 needs 6, a p90 36, a p99 368"),)
    )


def _quantiles(case: Case, counts: list[float | None]) -> list[Finding]:
    findings = []
    bounds = [
        level
        for level in case.levels
        if level.ttft is not None and (bucket := level.ttft.quantile(0.5)) and bucket.low != bucket.high
    ]
    if bounds:
        first = bounds[0].ttft.quantile(0.5) if bounds[0].ttft is not None else None
        text = "its percentiles are bucket edges"
        if first is not None:
            text += f": TTFT p50 at {label(bounds[0])} is between {show(first.low)} and {show(first.high)} s"
        findings.append(
            Finding(LAW, "quantiles", "note", text + ". Means are exact", remedy="Compare in bucket terms.")
        )
    if any(count is None for count in counts):
        if bounds:
            text = "requests are not counted in this source: no quantile has an interval"
            remedy = "Give the collector's database, which counts them."
            findings.append(Finding(LAW, "quantiles", "note", text, remedy=remedy))
        return findings
    for q in QUANTILES[1:]:
        few = [
            level for level, n in zip(case.levels, counts, strict=True) if n is not None and 0 < n < needed(q)
        ]
        if few:
            findings.append(
                Finding(
                    LAW,
                    "quantiles",
                    "note",
                    f"p{100 * q:.0f} has no interval at {listed(few)}: fewer than {needed(q)} requests",
                    (("needed", needed(q)),),
                    f"Do not use p{100 * q:.0f} there.",
                )
            )
    return findings


def _estimated(case: Case, level: SweepLevel) -> float | None:
    """Requests by KV usage, where the pool is known well enough."""
    facts = case.facts
    if facts is None or not (facts.pool_is_given or case.sweep.given.tensor_parallel_size or case.gpus == 1):
        return None
    lengths = lengths_of(level, facts)
    return lengths.requests if lengths.source in ("counted", "kv") and level.prompt_tokens else None
