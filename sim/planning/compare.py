"""Two saved results, difference by difference.

Plans and what-ifs keep the figures of every run. Where both documents rest on the same seed, trace and
population, their runs with the same number are pairs and the interval is that of paired differences;
otherwise the arms are independent and the interval is Welch's. Replays hold one run each: only figures with
ranges can be compared, as independent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from replicast.sim.errors import InputError
from replicast.sim.planning.distributions import t_quantile
from replicast.sim.planning.quantiles import Estimate
from replicast.sim.planning.whatif import Difference, paired

SCHEMAS = ("replicast/plan/1", "replicast/whatif/1", "replicast/replay/1")
# field of a run, name, kind
_RUN_FIGURES = (
    ("hit_rate", "hit rate", "share"),
    ("ttft_p50_s", "TTFT p50", "time"),
    ("ttft_p90_s", "TTFT p90", "time"),
    ("queue_share", "queue share", "share"),
    ("tpot_p50_s", "TPOT p50", "time"),
    ("utilisation", "utilisation", "share"),
    ("requests_per_hour", "requests/h", "rate"),
)
_MONEY = (("usd_per_hour", "$/h"), ("usd_per_developer_hour", "$/developer-hour"), ("usd_per_task", "$/task"))


class Compared(NamedTuple):
    """One replica count (or arm) that both documents have."""

    name: str
    paired: bool
    differences: tuple[Difference, ...]


class Comparison(NamedTuple):
    """The answers of both, and what they have in common; `only` names rows that one of them lacks."""

    answers: tuple[int | None, int | None]
    rows: tuple[Compared, ...]
    only: tuple[str, ...]
    changed_inputs: tuple[str, ...]


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Comparison:
    """Rows with the same replica count (the same arm, of what-ifs) against each other."""
    for document in (before, after):
        if document.get("schema") not in SCHEMAS:
            raise InputError(
                f"the document's schema is {document.get('schema')!r}",
                remedy=f"Give documents written with --json: {', '.join(SCHEMAS)}.",
            )
    if before["schema"] != after["schema"]:
        raise InputError(f"a {before['schema']} cannot be compared with a {after['schema']}")
    changed = _changed(before, after)
    old, new = _rows(before), _rows(after)
    rows = [
        Compared(name, *_differences(old[name], new[name], may_pair=not changed))
        for name in old
        if name in new
    ]
    if not rows:
        raise InputError(
            f"the documents have no row in common: {', '.join(old)} against {', '.join(new)}",
            remedy="Plan the same replica counts in both (--counts).",
        )
    only = [f"{name} (first only)" for name in old if name not in new]
    only += [f"{name} (second only)" for name in new if name not in old]
    answers = (before.get("replicas_needed"), after.get("replicas_needed"))
    return Comparison(answers, tuple(rows), tuple(only), tuple(changed))


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What must be equal for runs of the same number to be pairs: seed, traces, population, clock."""
    names = []
    if before.get("seed") != after.get("seed"):
        names.append("seed")
    if [i.get("sha256") for i in before.get("inputs", [])] != [
        i.get("sha256") for i in after.get("inputs", [])
    ]:
        names.append("trace")
    for key in ("population", "clock"):
        if before.get("config", {}).get(key) != after.get("config", {}).get(key):
            names.append(key)
    return names


def _rows(document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    if document["schema"] == "replicast/whatif/1":
        return {arm["name"]: arm for arm in document["arms"]}
    rows = document["rows"]
    if "max_developers" in document:
        return {f"{row['developers']} developers": row for row in rows}
    return {f"{row['replicas']} replica{'s' if row['replicas'] != 1 else ''}": row for row in rows}


def _differences(
    before: Mapping[str, Any], after: Mapping[str, Any], *, may_pair: bool
) -> tuple[bool, tuple[Difference, ...]]:
    old, new = before.get("runs"), after.get("runs")
    out: list[Difference] = []
    pairs = False
    if old and new:
        pairs = may_pair and len(old) > 1 and len(new) > 1
        common = min(len(old), len(new))
        for field, name, kind in _RUN_FIGURES:
            a, b = ([_number(run.get(field)) for run in runs] for runs in (old, new))
            if pairs:
                a, b = a[:common], b[:common]
            estimate = paired(a, b) if pairs else welch(a, b)
            out.append(Difference(name, kind, _mean(a), _mean(b), estimate))
    else:
        for field, name, kind in _RUN_FIGURES:
            if field in before and field in after:
                out.append(_of_ranges(name, kind, before[field], after[field]))
    for field, name in _MONEY:
        a0, b0 = _value(before.get(field)), _value(after.get(field))
        if a0 is not None and b0 is not None:
            out.append(Difference(name, "dollars", a0, b0, Estimate(b0 - a0, b0 - a0, b0 - a0, 1)))
    return pairs, tuple(out)


def welch(a: Sequence[float], b: Sequence[float], alpha: float = 0.05) -> Estimate:
    """Difference of the means of two independent samples, with Welch's interval."""
    a, b = ([x for x in values if math.isfinite(x)] for values in (a, b))
    if not a or not b:
        return Estimate(None, None, None, 0)
    value = math.fsum(b) / len(b) - math.fsum(a) / len(a)
    if len(a) < 2 or len(b) < 2:
        return Estimate(value, None, None, min(len(a), len(b)))
    parts = [_variance(values) / len(values) for values in (a, b)]
    total = sum(parts)
    if total == 0:
        return Estimate(value, value, value, len(a) + len(b))
    freedom = total**2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(parts, (a, b), strict=True) if part
    )
    half = t_quantile(freedom, 1 - alpha / 2) * math.sqrt(total)
    return Estimate(value, value - half, value + half, len(a) + len(b))


def _variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1)


def _of_ranges(name: str, kind: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Difference:
    """Independent estimates with 95 % ranges: half widths add in squares."""
    a, b = before.get("value"), after.get("value")
    if a is None or b is None:
        return Difference(name, kind, a, b, Estimate(None, None, None, 0))
    ends = [_number(e.get(side)) for e in (before, after) for side in ("low", "high")]
    if any(math.isnan(end) for end in ends):
        return Difference(name, kind, a, b, Estimate(b - a, None, None, 1))
    half = math.hypot((ends[1] - ends[0]) / 2, (ends[3] - ends[2]) / 2)
    return Difference(name, kind, a, b, Estimate(b - a, b - a - half, b - a + half, 2))


def _value(figure: Any) -> float | None:
    if isinstance(figure, Mapping):
        figure = figure.get("value")
    return float(figure) if isinstance(figure, int | float) else None


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _mean(values: Sequence[float]) -> float | None:
    known = [value for value in values if math.isfinite(value)]
    return math.fsum(known) / len(known) if known else None
