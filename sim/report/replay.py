"""The replay table on the screen: the answer first, then what was assumed, then one row a replica count.

The columns do not fit in one line of a terminal or ticket, so two tables follow each other: what
developers wait, and what the servers do and cost. Each has one row a replica count.
"""

from __future__ import annotations

from collections.abc import Sequence

from replicast.sim.planning.summary import ReplayRow
from replicast.sim.report.numbers import (
    UNKNOWN,
    dollars,
    interval,
    milliseconds,
    percent,
    rate,
    ratio,
    seconds,
    share,
)
from replicast.sim.report.text import plural, table

BINDS = {"seats": "seats", "token_budget": "token budget", "kv_blocks": "KV blocks", None: "nothing"}


def answer(rows: Sequence[ReplayRow]) -> str:
    """One sentence: the first row, or the way from the first to the last."""
    first, last = rows[0], rows[-1]

    def way(name: str, one: str, other: str) -> str:
        return f"{name} {one}" if first is last else f"{name} {one} → {other}"

    parts = [
        way("TTFT p50", seconds(first.ttft_p50_s), seconds(last.ttft_p50_s)),
        way("p90", seconds(first.ttft_p90_s), seconds(last.ttft_p90_s)),
        way("hit rate", percent(first.hit_rate), percent(last.hit_rate)),
    ]
    if first.usd_per_task is not None or last.usd_per_task is not None:
        parts.append(way("$/task", dollars(first.usd_per_task), dollars(last.usd_per_task)))
    counts = (
        plural(first.replicas, "replica") if first is last else f"{first.replicas} → {last.replicas} replicas"
    )
    return f"{counts}: {', '.join(parts)}"


def waiting_table(rows: Sequence[ReplayRow]) -> str:
    """What developers wait."""
    header = [
        "replicas",
        "measured",
        "TTFT p50",
        "95% range",
        "TTFT p90",
        "95% range",
        "queue",
        "prefill",
        "TPOT p50",
        "hit rate",
    ]
    return table(
        header,
        [
            [
                str(row.replicas),
                f"{row.requests_measured:,}",
                seconds(row.ttft_p50_s),
                interval(row.ttft_p50_s),
                seconds(row.ttft_p90_s),
                interval(row.ttft_p90_s),
                percent(row.queue_share),
                percent(row.prefill_share),
                milliseconds(row.tpot_p50_s),
                percent(row.hit_rate),
            ]
            for row in rows
        ],
    )


def serving_table(rows: Sequence[ReplayRow]) -> str:
    """What the servers do and cost."""
    header = [
        "replicas",
        "prompt tok/s",
        "gen tok/s",
        "prefill:decode",
        "KV peak",
        "waiting peak",
        "preempted",
        "binds",
        "$/h",
        "$/task",
        "$/1M processed",
    ]
    return table(
        header,
        [
            [
                str(row.replicas),
                rate(row.prompt_tokens_per_s),
                rate(row.generated_tokens_per_s),
                ratio(row.prefill_decode_ratio),
                share(row.kv_usage_peak),
                f"{row.waiting_peak:,}",
                f"{row.preemptions:,}",
                BINDS.get(row.binds, row.binds or UNKNOWN),
                UNKNOWN if row.usd_per_hour is None else f"{row.usd_per_hour:,.2f}",
                dollars(row.usd_per_task),
                dollars(row.usd_per_1m_processed_tokens),
            ]
            for row in rows
        ],
        left=[7],
    )
