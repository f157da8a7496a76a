"""How well held-out levels and requests are predicted: docs/accuracy.md, with the errors of others.

    python -m replicast.calibration.accuracy [--shared DIR] [--only SLUG,...] [--jobs 2] [--out FILE]

Sweeps are those typed in (`published.py`). Per-request ground truth is not redistributed: its tables need
the folder that holds it (`--shared`), and are left out without.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from replicast.calibration.accuracy_computed import computed_lines, counted_rows
from replicast.calibration.accuracy_shares import share_lines
from replicast.calibration.calibrate import learned_from
from replicast.calibration.fit import fit
from replicast.calibration.held_out import leave_one_out, predicted_rows
from replicast.calibration.model import point_at
from replicast.calibration.predict import Load
from replicast.calibration.published import GIVEN, published_sweeps
from replicast.calibration.rows import KV_FREE, LABELS, Row, summarise
from replicast.calibration.server import server_facts
from replicast.calibration.uncertainty import uncertainty

LOW_LEVELS = (1, 2, 5, 10)
RESAMPLES = 500  # also the seed
TITLES: dict[Load, str] = {
    "given": "load given",
    "lengths": "load given but for the requests alive at a time",
    "concurrency": "only the concurrency given",
}
SHOWN_LOADS: tuple[Load, ...] = tuple(TITLES)
SHOWN = (
    "prompt_tokens_per_s", "output_tokens_per_s", "tpot_mean_s", "ttft_mean_s", "queue_mean_s",
    "prefill_mean_s", "running_mean", "waiting_mean", "kv_usage_mean",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SweepResult:
    """Held-out rows of one sweep: leave one level out, and low levels predicting high ones.

    `counted` leaves one out as if computed tokens had been counted.
    """

    slug: str
    loo: tuple[Row, ...]
    low: tuple[Row, ...]
    counted: tuple[Row, ...]
    seconds: float
    simulations: int


def evaluate(slug: str) -> SweepResult:
    """Fit and hold out, one sweep."""
    began = time.process_time()
    sweep = published_sweeps()[slug]
    facts = server_facts(sweep)
    fitted = fit(sweep.levels, facts)
    loo = leave_one_out(fitted, facts, loads=SHOWN_LOADS)
    low = [level for level in sweep.levels if level.concurrency in LOW_LEVELS]
    rows: list[Row] = []
    if len(low) >= 3:
        lower = fit(low, facts)
        learned = learned_from(lower, uncertainty(lower), point_at(lower.params, lower.x))
        for level in sweep.levels:
            if level not in low:
                rows += predicted_rows(level, facts, learned)
    counted = counted_rows(fitted, facts)
    return SweepResult(
        slug,
        tuple(loo),
        tuple(rows),
        tuple(counted),
        time.process_time() - began,
        fitted.evaluations,
    )


def evaluate_all(
    slugs: Sequence[str], jobs: int, say: Callable[[str], None] = lambda text: None
) -> list[SweepResult]:
    """All sweeps, in their order; a fresh process each, which gives its memory back."""
    results = []
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for result in pool.map(evaluate, slugs):
            tpot = summarise(result.loo, "given", "tpot_mean_s")
            error = tpot.median_absolute if tpot else math.nan
            say(f"{result.slug}: {result.seconds:.0f} s, TPOT {error:.1%}")
            results.append(result)
    return results


def table(sweeps: Sequence[Sequence[Row]], load: str, names: Sequence[str] = SHOWN) -> list[str]:
    """Markdown lines: all levels, those with KV free, those without, how sure that is, and the rival."""
    rows = [row for sweep in sweeps for row in sweep]
    free, full = [row for row in rows if _is_free(row)], [row for row in rows if not _is_free(row)]
    head = "| levels | " + " | ".join(LABELS[name] for name in names) + " |"
    lines = [head, "|---" * (len(names) + 1) + "|"]
    for title, part in (("all", rows), (f"KV peak <= {KV_FREE}", free), (f"KV peak > {KV_FREE}", full)):
        lines.append(_line(f"{title} ({_levels(part, load)})", part, load, names, _error))
    only_free = [list(filter(_is_free, sweep)) for sweep in sweeps]
    for title, kept in (("all", sweeps), (f"KV peak <= {KV_FREE}", only_free)):
        lines.append(f"| 90 % interval of the median, {title} | {_resampled(kept, load, names)} |")
    lines.append(_line("interpolation in log c, all", rows, load, names, _rival))
    lines.append(_line("a perfect model, all", rows, load, names, _perfect))
    lines.append(_line(f"a perfect model, KV peak <= {KV_FREE}", free, load, names, _perfect))
    lines.append(_line("signed median, all", rows, load, names, _signed))
    lines.append(_line("inside the 90 % interval", rows, load, names, _coverage))
    return lines


def _is_free(row: Row) -> bool:
    return row.kv_peak is None or row.kv_peak <= KV_FREE


def _resampled(sweeps: Sequence[Sequence[Row]], load: str, names: Sequence[str]) -> str:
    """Cells: medians over sweeps drawn with replacement (levels of a sweep err together)."""
    rng = np.random.default_rng(RESAMPLES)
    drawn = rng.integers(len(sweeps), size=(RESAMPLES, len(sweeps)))
    cells = []
    for name in names:
        errors = [
            [abs(r.error) for r in sweep if (r.load, r.metric) == (load, name) and r.error is not None]
            for sweep in sweeps
        ]
        some = [found for draw in drawn if (found := [error for at in draw for error in errors[at]])]
        ends = 100 * np.quantile([statistics.median(found) for found in some], [0.05, 0.95]) if some else None
        cells.append("-" if ends is None else f"{ends[0]:.1f}-{ends[1]:.1f}")
    return " | ".join(cells)


def _line(
    title: str, rows: Sequence[Row], load: str, names: Sequence[str], cell: Callable[[list[Row]], str]
) -> str:
    of_load = [r for r in rows if r.load == load and (r.error is not None or cell is _coverage)]
    cells = [cell([r for r in of_load if r.metric == name]) for name in names]
    return f"| {title} | " + " | ".join(cells) + " |"


def _error(rows: list[Row]) -> str:
    return _median75([abs(row.error or 0.0) for row in rows])


def _rival(rows: list[Row]) -> str:
    return _median75(
        [abs(row.interpolated / row.measured - 1) for row in rows if row.interpolated is not None]
    )


def _perfect(rows: list[Row]) -> str:
    """Median absolute error of who knows everything but the draw: solved from half-normal errors."""
    spreads = [row.realisation for row in rows if row.realisation > 0]
    if not spreads:
        return "-"
    low, high = 0.0, 5.0 * max(spreads)
    for _ in range(40):
        middle = (low + high) / 2
        below = statistics.fmean(math.erf(middle / (sd * math.sqrt(2))) for sd in spreads)
        low, high = (middle, high) if below < 0.5 else (low, middle)
    return f"{100 * low:.1f}"


def _signed(rows: list[Row]) -> str:
    return f"{100 * statistics.median(row.error or 0.0 for row in rows):+.1f}" if rows else "-"


def _coverage(rows: list[Row]) -> str:
    return f"{100 * sum(row.inside for row in rows) / len(rows):.0f} %" if rows else "-"


def _median75(errors: list[float]) -> str:
    if not errors:
        return "-"
    ordered = sorted(errors)
    third = ordered[min(math.ceil(0.75 * len(ordered)) - 1, len(ordered) - 1)]
    return f"{100 * statistics.median(ordered):.1f} ({100 * third:.0f})"


def _levels(rows: Sequence[Row], load: str) -> int:
    return sum(row.metric == "tpot_mean_s" and row.load == load for row in rows)


def per_sweep(results: Sequence[SweepResult], load: str) -> list[str]:
    """One line a sweep, leave one level out."""
    lines = [
        "| sweep | levels | " + " | ".join(LABELS[n] for n in SHOWN) + " |",
        "|---" * (len(SHOWN) + 2) + "|",
    ]
    for result in results:
        title = f"{result.slug} | {_levels(result.loo, load)}"
        lines.append(_line(title, result.loo, load, SHOWN, _error))
    return lines


def sweep_section(results: Sequence[SweepResult]) -> list[str]:
    """The tables of the sweeps."""
    loo, low = [result.loo for result in results], [result.low for result in results if result.low]
    lines = [
        "## Concurrency sweeps",
        "",
        "Medians of absolute errors in percent, 75th percentile in brackets.",
        "",
    ]
    for title, sweeps in (("Leave one level out", loo), ("Levels 1, 2, 5, 10 predict the others", low)):
        for load, what in TITLES.items():
            if any(row.load == load for sweep in sweeps for row in sweep):
                lines += [f"### {title}, {what}", "", *table(sweeps, load), ""]
    lines += computed_lines([result.counted for result in results])
    lines += share_lines(loo, TITLES, SHOWN)
    lines += ["### Each sweep, leave one level out, load given", "", *per_sweep(results, "given"), ""]
    return lines


def dump(results: Sequence[SweepResult], path: Path) -> None:
    """Raw rows, for a closer look or another page."""
    document = {
        r.slug: {
            "loo": [row._asdict() for row in r.loo],
            "low": [row._asdict() for row in r.low],
            "counted": [row._asdict() for row in r.counted],
            "seconds": r.seconds,
            "simulations": r.simulations,
        }
        for r in results
    }
    path.write_text(json.dumps(document))


def undump(path: Path) -> list[SweepResult]:
    """What `dump` wrote."""
    document = json.loads(path.read_text())
    return [
        SweepResult(
            slug,
            tuple(Row(**row) for row in found["loo"]),
            tuple(Row(**row) for row in found["low"]),
            tuple(Row(**row) for row in found["counted"]),
            found["seconds"],
            found.get("simulations", 0),
        )
        for slug, found in document.items()
    ]


def page(results: Sequence[SweepResult], shared: Path | None) -> str:
    """The whole page."""
    from replicast.calibration.accuracy_arms import arm_section
    from replicast.calibration.accuracy_hybrid import hybrid_section
    from replicast.calibration.accuracy_published import published_section
    from replicast.calibration.accuracy_requests import request_section
    from replicast.calibration.accuracy_text import HEAD, LIMITS, OTHERS

    lines = [HEAD, *sweep_section(results)]
    lines += [*hybrid_section({result.slug: result.loo for result in results}), *arm_section()]
    if shared is not None:
        lines += [*request_section(shared), *published_section(shared)]
    return "\n".join([*lines, OTHERS, LIMITS])


def main() -> None:
    """Evaluate and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shared", type=Path, help="folder of the per-request ground truth")
    parser.add_argument("--only", default="", help="slugs of sweeps, comma-separated")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--raw", type=Path, help="write all rows here (JSON)")
    parser.add_argument("--rows", type=Path, help="take rows from here instead of computing them")
    parser.add_argument("--out", type=Path, help="write the page here instead of printing it")
    options = parser.parse_args()
    if options.rows is not None:
        results = undump(options.rows)
    else:
        slugs = [slug for slug in GIVEN if not options.only or slug in options.only.split(",")]
        results = evaluate_all(slugs, options.jobs, lambda text: print(text, file=sys.stderr, flush=True))
    if options.raw is not None:
        dump(results, options.raw)
    text = page(results, options.shared)
    if options.out is None:
        print(text, end="")
    else:
        temporary = options.out.with_name(f".{options.out.name}.tmp")
        temporary.write_text(text)
        temporary.replace(options.out)


if __name__ == "__main__":
    main()
