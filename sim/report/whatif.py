"""A what-if and a comparison on the screen, in the grammar of cost reviews, and as `replicast/whatif/1`.

~ TTFT p90   +16 s [+14, +18]  (2.9 s → 19 s)     changed: the interval leaves zero out
= TPOT p50   +1 ms [-2, +4]                        no clear change
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

from replicast.sim.planning.compare import Comparison
from replicast.sim.planning.quantiles import Estimate
from replicast.sim.planning.whatif import Arm, Difference, WhatIf
from replicast.sim.report.numbers import UNKNOWN, fixed, significant
from replicast.sim.report.text import plural

WHATIF_SCHEMA = "replicast/whatif/1"
KEY = "Key: ~ changed, = no clear change"
_SMALL_S = 0.2  # below, times are written in milliseconds


def answer(whatif: WhatIf) -> str:
    """The first line: replicas before and after."""
    slos = " and ".join(map(str, whatif.slos))
    if not whatif.searched:
        return f"{plural(whatif.replicas, 'replica')}, {plural(len(whatif.arms), 'variant')}        {KEY}"
    before = _needed(whatif.replicas_needed, whatif)
    ways = [f"{before} → {_needed(arm.replicas_needed, whatif)}" for arm in whatif.arms]
    if len(ways) == 1:
        return f"Replicas for {slos}: {ways[0]}        {KEY}"
    after = ", ".join(way.partition("→ ")[2] for way in ways)
    return f"Replicas for {slos}: {before} → {after}        {KEY}"


def _needed(replicas: int | None, whatif: WhatIf) -> str:
    return "none is enough" if replicas is None else str(replicas)


def whatif_text(whatif: WhatIf, assumptions: Sequence[str], *, quiet: bool = False) -> str:
    """The answer as printed."""
    parts = [answer(whatif)]
    if not quiet:
        parts.append("\n".join(assumptions))
    for arm in whatif.arms:
        parts.append(arm_text(arm, whatif))
    if not quiet:
        parts.append(
            f"Same sessions, same gaps in both (paired, {plural(whatif.replications, 'replication')}); "
            "95% intervals of the difference."
        )
    return "\n\n".join(parts) + "\n"


def arm_text(arm: Arm, whatif: WhatIf) -> str:
    """One arm: its changes, the replicas it needs, and each figure's difference."""
    head = arm.name
    if whatif.searched:
        needed = (_needed(count, whatif) for count in (whatif.replicas_needed, arm.replicas_needed))
        head += f"   replicas for the SLO: {' → '.join(needed)}"
    return "\n".join([head, *lines(arm.differences, pinned=arm.pinned_hit_rate is not None)])


def lines(differences: Sequence[Difference], *, pinned: bool = False) -> list[str]:
    """One line a figure, aligned."""
    width = max((len(d.name) for d in differences), default=0)
    rows = [(d, *_parts(d)) for d in differences]
    middle = max((len(change) for _, change, _ in rows), default=0)
    out = []
    for difference, change, values in rows:
        if pinned and difference.name == "hit rate":
            values = f"{values[:-1]}, pinned: not what these sessions would produce)"
        mark = "~" if difference.is_clear else "="
        out.append(f" {mark} {difference.name:<{width}}  {change:<{middle}}  {values}".rstrip())
    return out


def _parts(d: Difference) -> tuple[str, str]:
    """`+16 s [+14, +18]` and `(2.9 s → 19 s)`."""
    factor, unit = _unit(d)
    e = d.difference
    if e.value is None or d.before is None or d.after is None:
        return UNKNOWN, ""
    places = _places(e, factor)
    change = _signed(e.value * factor, places) + unit
    if e.low is not None and e.high is not None and e.low != e.high:
        change += f" [{_signed(e.low * factor, places)}, {_signed(e.high * factor, places)}]"
    if d.kind == "dollars":
        change = _dollar(e, places)
    return change, f"({_value(d, d.before)} → {_value(d, d.after)})"


def _dollar(e: Estimate, places: int) -> str:
    def sign(value: float) -> str:
        text = _signed(value, places)
        return f"{text[0]}${text[1:]}"

    assert e.value is not None
    if e.low is None or e.high is None or e.low == e.high:
        return sign(e.value)
    return f"{sign(e.value)} [{sign(e.low)}, {sign(e.high)}]"


def _unit(d: Difference) -> tuple[float, str]:
    if d.kind == "time":
        small = max(abs(d.before or 0.0), abs(d.after or 0.0)) < _SMALL_S
        return (1000.0, " ms") if small else (1.0, " s")
    return (100.0, " points") if d.kind == "share" else (1.0, "")


def _places(e: Estimate, factor: float) -> int:
    """Decimals that the interval supports, at most three significant digits of the difference."""
    value = abs((e.value or 0.0) * factor)
    if e.low is None or e.high is None or e.high <= e.low:
        return _digits(value, 3)
    quarter = (e.high - e.low) * factor / 4
    most = -math.floor(math.log10(quarter) + 1e-9) if quarter > 0 else 3
    largest = max(value, abs(e.low * factor), abs(e.high * factor))
    return max(min(most, 6, _digits(largest, 3)), -3)


def _digits(value: float, kept: int) -> int:
    return kept - 1 - math.floor(math.log10(value)) if value > 0 else 0


def _signed(value: float, places: int) -> str:
    text = fixed(abs(value), places)
    return ("-" if value < 0 else "+") + text


def _value(d: Difference, value: float) -> str:
    factor, unit = _unit(d)
    if d.kind == "share":
        return f"{100 * value:.0f}%"
    if d.kind == "dollars":
        return f"${significant(value)}"
    return significant(value * factor) + unit


def comparison_text(comparison: Comparison) -> str:
    """Two saved results as printed."""
    old, new = comparison.answers
    first = KEY
    if old is not None or new is not None:
        ways = (UNKNOWN if count is None else str(count) for count in (old, new))
        first = f"Replicas for the SLO: {' → '.join(ways)}        {KEY}"
    parts = [first]
    for row in comparison.rows:
        how = "paired" if row.paired else "independent"
        parts.append("\n".join([f"{row.name} ({how})", *lines(row.differences)]))
    if comparison.changed_inputs:
        parts.append(f"Not paired, because these differ: {', '.join(comparison.changed_inputs)}.")
    if comparison.only:
        parts.append(f"Not compared: {', '.join(comparison.only)}.")
    return "\n\n".join(parts) + "\n"


def differences_object(differences: Sequence[Difference]) -> list[dict[str, object]]:
    """Differences as documents hold them; times in seconds, shares from 0 to 1."""
    return [
        {
            "name": d.name,
            "kind": d.kind,
            "before": d.before,
            "after": d.after,
            "difference": d.difference,
            "clear": d.is_clear,
        }
        for d in differences
    ]


def whatif_object(whatif: WhatIf) -> dict[str, object]:
    """The part of the document that is the what-if's."""
    return {
        "slos": [str(slo) for slo in whatif.slos],
        "replicas": whatif.replicas,
        "replications": whatif.replications,
        "replicas_needed": whatif.replicas_needed,
        "replicas_searched": whatif.searched,
        "arms": [
            {
                "name": arm.name,
                "set": [str(change) for change in arm.variant],
                "replicas": arm.replicas,
                "pinned_hit_rate": arm.pinned_hit_rate,
                "replicas_needed": arm.replicas_needed,
                "differences": differences_object(arm.differences),
                "runs": [asdict(run) for run in arm.runs],
            }
            for arm in whatif.arms
        ],
        "base_runs": [asdict(run) for run in whatif.base_runs],
        "exit_code": whatif.exit_code,
    }


def comparison_object(comparison: Comparison) -> dict[str, object]:
    """A comparison as a document."""
    return {
        "schema": "replicast/compare/1",
        "replicas_needed": list(comparison.answers),
        "changed_inputs": list(comparison.changed_inputs),
        "not_compared": list(comparison.only),
        "rows": [
            {"name": row.name, "paired": row.paired, "differences": differences_object(row.differences)}
            for row in comparison.rows
        ],
    }
