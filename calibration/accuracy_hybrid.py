"""Section of docs/accuracy.md: what the caches of hybrid models explain.

Their sweeps are fitted twice, with the KV groups that the model's layers have and taken for one group of
full attention. All else is the same: facts, load, priors, draws.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from replicast.calibration.fit import fit
from replicast.calibration.held_out import leave_one_out
from replicast.calibration.published import published_sweeps
from replicast.calibration.rows import LABELS, Row
from replicast.calibration.server import server_facts

METRICS = (
    "prompt_tokens_per_s", "output_tokens_per_s", "tpot_mean_s", "ttft_mean_s", "queue_mean_s",
    "prefill_mean_s", "running_mean", "kv_usage_mean",
)  # fmt: skip
WAYS = ("full attention", "its KV groups")


def hybrid_section(with_groups: Mapping[str, Sequence[Row]]) -> list[str]:
    """The section; `with_groups` are rows of sweeps left out level by level, as their profiles ship."""
    sweeps = published_sweeps()
    slugs = [slug for slug in with_groups if server_facts(sweeps[slug]).config.kv_groups is not None]
    if not slugs:
        return []
    rows = {slug: (plain_rows(slug), with_groups[slug]) for slug in slugs}
    head = "| sweep | cache taken for | " + " | ".join(LABELS[name] for name in METRICS) + " |"
    lines = [
        "## Hybrid models: what their caches explain",
        "",
        "Leave one level out, load given, medians of absolute errors in percent. Each sweep is fitted as one "
        "group of full attention (blocks of 16 tokens), and with the KV groups and wide blocks of its model "
        "([hybrid.md](hybrid.md)).",
        "",
        head,
        "|---" * (len(METRICS) + 2) + "|",
    ]
    for slug, both in rows.items():
        lines += [_line(slug, way, found) for way, found in zip(WAYS, both, strict=True)]
    for index, way in enumerate(WAYS):
        lines.append(_line("**all**", way, [row for both in rows.values() for row in both[index]]))
    return [*lines, ""]


def plain_rows(slug: str) -> list[Row]:
    """Rows of a sweep whose model is taken for one of full attention."""
    sweep = published_sweeps()[slug]
    facts = server_facts(sweep, kv_groups=False)
    return leave_one_out(fit(list(sweep.levels), facts), facts, loads=("given",))


def _line(slug: str, way: str, rows: Sequence[Row]) -> str:
    cells = [_median(rows, name) for name in METRICS]
    return f"| {slug} | {way} | " + " | ".join(cells) + " |"


def _median(rows: Sequence[Row], metric: str) -> str:
    errors = [
        abs(row.error)
        for row in rows
        if row.metric == metric and row.load == "given" and row.error is not None
    ]
    return f"{100 * statistics.median(errors):.1f}" if errors else "-"
