"""The section of docs/accuracy.md on published replica sweeps (not redistributed).

nemotron (NVFP4, 8 x H100 a replica, taken for nemotron-ultra-550b): fitted on 4 replicas, both routers at
once; 8 replicas predicted. deepseek (one server): fitted up to 256 sessions; where does it fall over?
haproxy is taken for round-robin, the cache-aware router for `prefix-aware`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from replicast.calibration.readers.flat_csv import read_flat_csv
from replicast.calibration.replicas import (
    RATES,
    Arm,
    Fleet,
    Floats,
    Load,
    fit_arms,
    matched,
    measured,
    predict_row,
    residuals_of,
    rival_row,
)
from replicast.calibration.server import ServerFacts, server_facts
from replicast.calibration.sweep import Given, Sweep, SweepLevel
from replicast.sim.fleet.config import RouterName

FILE = "agentic-sweeps-published/sweeps.csv"
ROUTERS: Sequence[tuple[str, RouterName]] = (("haproxy", "round-robin"), ("router", "prefix-aware"))
FITTED_REPLICAS, PREDICTED_REPLICAS = 4, 8
FREE = 256  # sessions up to which the deepseek rows are fitted
LONGER = 1.25  # prompts, to see what the assumption costs
BETWEEN = (320, 384, 448)  # where the cliff is looked for between rows
GIVEN = Given(tensor_parallel_size=8, max_model_len=262_144)
SHOWN = (*RATES, "missed", "itl_s", "ttft_s")
LABELS = {
    "prompt_tokens_per_s": "prompt tok/s",
    "output_tokens_per_s": "output tok/s",
    "missed": "not hit",
    "itl_s": "time between tokens",
    "ttft_s": "TTFT",
    "kv_usage": "KV usage",
}


class RowError(NamedTuple):
    """A predicted row beside the measured one and the rival's, by metric."""

    router: RouterName
    concurrency: int
    measured: dict[str, float]
    predicted: dict[str, float]
    rival: dict[str, float]


class CliffRow(NamedTuple):
    """A level of the one server; `measured` is None between published rows."""

    concurrency: int
    predicted: dict[str, float]
    measured: dict[str, float] | None


def published_section(shared: Path) -> list[str]:
    """The section; nothing where the rows are not there."""
    path = shared / FILE
    if not path.is_file():
        return []
    single = read_flat_csv(path, model="WK").levels
    prompt_tokens = statistics.mean(
        row.prompt_per_request.mean or 0.0 for row in single if row.prompt_per_request
    )
    rows = scaling_errors(path, prompt_tokens)
    longer = scaling_errors(path, LONGER * prompt_tokens)
    cliff = cliff_rows(single, prompt_tokens)
    return [
        "## Replicas and routers (published sweeps)",
        "",
        "These rows lack lengths, window and gauges. Assumed: sessions of kv-cache-tester's corpus (preset "
        f"`fresh`) from a random turn on, gaps of at most {Load().longest_gap_s:.0f} s, prompts of "
        f"{prompt_tokens:,.0f} tokens (mean of the rows of this collection that state them), outputs by the "
        f"ratio of the rates, a window of {Load().window_s:.0f} s. Whether TTFT is a mean or a median is not "
        "stated; it is taken for a mean. haproxy is taken for round-robin.",
        "",
        f"Fitted on the rows of {FITTED_REPLICAS} replicas, both routers at once; errors on those of "
        f"{PREDICTED_REPLICAS} in percent, in brackets those of the rival: the row of half the replicas at "
        "half the sessions, rates doubled.",
        "",
        *scaling_lines(rows),
        "",
        f"What the lengths cost: with prompts {LONGER - 1:.0%} longer the same medians are "
        f"{'; '.join(_medians(longer, router) for _, router in ROUTERS)}. "
        "At 64 sessions a replica the cache-aware router lost its hits on 4 replicas and kept two thirds of "
        "them on 8: the edge of a cliff, where a row is one draw and no rule for a replica gives both.",
        "",
        f"deepseek on one server, fitted up to {FREE} sessions. Predicted / measured:",
        "",
        *cliff_lines(cliff),
        "",
        f"{cliff_text(cliff)} Published: between 256 and 512. How slow it is beyond is not met: token "
        "budget, data parallelism and window are not stated.",
        "",
    ]


def scaling_errors(path: Path, prompt_tokens: float) -> list[RowError]:
    """Every row of 8 replicas, as those of 4 predict it."""
    arms = [_arm(path, FITTED_REPLICAS, name, router) for name, router in ROUTERS]
    targets = [_arm(path, PREDICTED_REPLICAS, name, router) for name, router in ROUTERS]
    facts = _facts("nemotron-ultra-550b", (), "H100")
    count = max(level.concurrency or 1 for arm in targets for level in arm.levels)
    fleet = matched(facts, arms, prompt_tokens, Load(), count + count // 2)
    x = fit_arms(fleet, arms)
    return [
        row for arm, target in zip(arms, targets, strict=True) for row in errors_of(fleet, x, arm, target)
    ]


def errors_of(fleet: Fleet, x: Floats, arm: Arm, target: Arm) -> list[RowError]:
    """Rows of `target` as the fit and the rows of `arm` predict them."""
    known = residuals_of(fleet, x, arm)
    return [
        RowError(
            target.router,
            c,
            measured(level),
            predict_row(fleet, x, target.replicas, target.router, c, known),
            rival_row(arm, target.replicas, c),
        )
        for level in target.levels
        if (c := level.concurrency) is not None
    ]


def scaling_lines(rows: Sequence[RowError]) -> list[str]:
    """Markdown: a line a row, medians of absolute errors below each router."""
    lines = ["| router | sessions | " + " | ".join(LABELS[name] for name in SHOWN) + " |"]
    lines.append("|---" * (len(SHOWN) + 2) + "|")
    for router in dict.fromkeys(row.router for row in rows):
        part = [row for row in rows if row.router == router]
        for row in part:
            cells = [f"{_off(row, n):+.0f} ({_off(row, n, rival=True):+.0f})" for n in SHOWN]
            lines.append(f"| {router} | {row.concurrency} | " + " | ".join(cells) + " |")
        cells = [f"**{_median(part, n):.0f}** ({_median(part, n, rival=True):.0f})" for n in SHOWN]
        lines.append(f"| {router} | median, absolute | " + " | ".join(cells) + " |")
    return lines


def cliff_rows(levels: Sequence[SweepLevel], prompt_tokens: float) -> list[CliffRow]:
    """Levels from the last fitted one on, predicted."""
    arm = Arm(1, "round-robin", tuple(row for row in levels if (row.concurrency or 1) <= FREE))
    published = {row.concurrency: measured(row) for row in levels if (row.concurrency or 1) >= FREE}
    steps = tuple(replace(row, tpot=row.itl) for row in arm.levels)  # what an unknown model is sized by
    facts = _facts("deepseek-v4.1-flash", steps, "H200")
    count = max(c for c in published if c is not None)
    fleet = matched(facts, [arm], prompt_tokens, Load(), count + count // 8)
    x = fit_arms(fleet, [arm])
    known = residuals_of(fleet, x, arm)
    return [
        CliffRow(c, predict_row(fleet, x, 1, arm.router, c, known), published.get(c))
        for c in sorted({*BETWEEN, *(c for c in published if c is not None)})
    ]


def cliff_lines(rows: Sequence[CliffRow]) -> list[str]:
    """Markdown: a line a level."""
    lines = ["| sessions | not hit | TTFT, s | time between tokens, s | KV usage | output tok/s |"]
    lines.append("|---" * 6 + "|")
    for row in rows:
        cells = [
            f"{row.predicted[name]:{form}} / {format(row.measured[name], form) if row.measured else '-'}"
            for name, form in (("missed", ".2f"), ("ttft_s", ".1f"), ("itl_s", ".2f"), ("kv_usage", ".2f"))
        ]
        rate = f"{row.predicted[RATES[1]]:,.0f} / -"
        lines.append(f"| {row.concurrency} | " + " | ".join([*cells, rate]) + " |")
    return lines


def cliff_text(rows: Sequence[CliffRow]) -> str:
    """Where throughput is largest, and where most of the hits are lost."""
    best = max(rows, key=lambda row: row.predicted[RATES[1]])
    lost = [i for i, row in enumerate(rows) if row.predicted["missed"] > 0.5]
    where = "nowhere"
    if lost:
        before = rows[max(lost[0] - 1, 0)].concurrency
        where = f"between {before} and {rows[lost[0]].concurrency} sessions"
    return f"Predicted: output tok/s are largest at {best.concurrency}, most hits are lost {where}."


def _medians(rows: Sequence[RowError], router: RouterName) -> str:
    part = [row for row in rows if row.router == router]
    return f"{router} " + ", ".join(f"{LABELS[name]} {_median(part, name):.0f} %" for name in SHOWN)


def _arm(path: Path, replicas: int, name: str, router: RouterName) -> Arm:
    return Arm(replicas, router, read_flat_csv(path, model=f"arm-scaling-r{replicas}-{name}").levels)


def _facts(model: str, levels: tuple[SweepLevel, ...], hardware: str) -> ServerFacts:
    return server_facts(Sweep("published rows", "sweep-csv", levels, model=model), GIVEN, hardware=hardware)


def _off(row: RowError, name: str, *, rival: bool = False) -> float:
    """Error in percent; NaN where the rival has no row."""
    value = (row.rival if rival else row.predicted).get(name, float("nan"))
    return 100 * (value / row.measured[name] - 1)


def _median(rows: Sequence[RowError], name: str, *, rival: bool = False) -> float:
    return statistics.median(abs(_off(row, name, rival=rival)) for row in rows)
