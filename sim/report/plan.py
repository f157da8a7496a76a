"""A plan on the screen and as `replicast/plan/1`: the answer first, then why.

In the document every measured figure is `{"value", "low", "high", "n"}`, n the replications behind it; each
row carries the figures of its runs, so that two documents can be compared run by run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields

from replicast.sim.planning.plan import MostDevelopers, Plan
from replicast.sim.planning.quantiles import Estimate
from replicast.sim.planning.rows import PlanRow
from replicast.sim.planning.sensitivity import SensitivityRow
from replicast.sim.planning.slo import SLO
from replicast.sim.report.numbers import (
    UNKNOWN,
    dollars,
    interval,
    milliseconds,
    percent,
    seconds,
    share,
    significant,
)
from replicast.sim.report.replay import BINDS
from replicast.sim.report.text import plural, table

PLAN_SCHEMA = "replicast/plan/1"
_SHOWN = ("ttft:p50", "ttft:p90", "tpot:p50")
_PLAIN = {
    "replicas",
    "developers",
    "live_sessions",
    "paid_replicas",
    "boxes",
    "verdict",
    "replications",
    "skipped",
    "rejected",
    "unfinished",
    "binds",
}


def answer(plan: Plan) -> str:
    """The first line: replicas, cost, and what the neighbours do."""
    slos = " and ".join(map(str, plan.slos))
    row = plan.answer
    if row is None:
        return _no_answer(plan, slos)
    parts = [f"{_replicas(row)} for {plural(row.developers, 'developer')}"]
    if row.usd_per_hour is not None:
        parts += [
            f"${row.usd_per_hour:,.2f}/h",
            f"${dollars(row.usd_per_developer_hour)}/developer-hour",
            f"${dollars(row.usd_per_task)}/task",
        ]
    return f"Answer: {', '.join(parts)}{_neighbours(plan, row.replicas)}"


def _replicas(row: PlanRow) -> str:
    text = plural(row.replicas, "replica")
    if row.paid_replicas == row.replicas:
        return text
    more = [f"{row.paid_replicas} paid"]
    if row.boxes != row.paid_replicas:
        more.append(f"{row.boxes} box{'es' if row.boxes > 1 else ''}")
    return f"{text} ({', '.join(more)})"


def _neighbours(plan: Plan, replicas: int) -> str:
    below = [row for row in plan.rows if row.replicas < replicas][-2:]
    words = [f"{row.replicas} {_is(row)}" for row in reversed(below)]
    return f"   ({', '.join(words)})" if words else ""


def _is(row: PlanRow) -> str:
    return "is inconclusive" if row.verdict == "inconclusive" else row.verdict


def _no_answer(plan: Plan, slos: str) -> str:
    unclear = [str(row.replicas) for row in plan.rows if row.verdict == "inconclusive"]
    most = max(row.replicas for row in plan.rows)
    if unclear:
        return (
            f"Answer: not clear; no count up to {most} clearly meets {slos} "
            f"({', '.join(unclear)} inconclusive: more --replications may tell)"
        )
    why = "one for each live session" if most == plan.rows[-1].live_sessions else "the most looked at"
    return f"Answer: none; {plural(most, 'replica')} ({why}) {'fails' if most == 1 else 'fail'} {slos}"


Cells = tuple[list[str], list[list[str]], list[int]]  # header, rows, columns of text


def plan_cells(plan: Plan | MostDevelopers) -> Cells:
    """One row a count: what developers wait and why, and whether that meets."""
    by = "replicas" if isinstance(plan, Plan) else "developers"
    extra = [(i, slo) for i, slo in enumerate(plan.slos) if slo.name not in _SHOWN]
    header = [by, "TTFT p50", "TTFT p90", "95% range"]
    header += [slo.name.replace(":", " ") for _, slo in extra]
    header += ["TPOT p50", "queue", "hit rate", "busy", "binds", "hours met", "SLO"]
    body = []
    for row in plan.rows:
        hours = f"{round(row.share_met * row.replications)} of {row.replications}"
        body.append(
            [
                f"{getattr(row, by):,}",
                seconds(row.ttft_p50_s),
                seconds(row.ttft_p90_s),
                interval(row.ttft_p90_s),
                *(_time(slo, row.slo_values_s[i]) for i, slo in extra),
                milliseconds(row.tpot_p50_s),
                percent(row.queue_share),
                percent(row.hit_rate),
                percent(row.utilisation),
                BINDS.get(row.binds, row.binds or UNKNOWN),
                hours,
                row.verdict,
            ]
        )
    return header, body, [len(header) - 3, len(header) - 1]


def _time(slo: SLO, estimate: Estimate) -> str:
    return milliseconds(estimate) if slo.metric == "tpot" else seconds(estimate)


def cost_cells(plan: Plan | MostDevelopers) -> Cells | None:
    """What each count costs; None without a price."""
    if all(row.usd_per_hour is None for row in plan.rows):
        return None
    by = "replicas" if isinstance(plan, Plan) else "developers"
    header = [by, "paid", "boxes", "$/h", "$/developer-hour", "$/task", "$/1M processed"]
    body = [
        [
            f"{getattr(row, by):,}",
            str(row.paid_replicas),
            str(row.boxes),
            f"{row.usd_per_hour or 0.0:,.2f}",
            dollars(row.usd_per_developer_hour),
            dollars(row.usd_per_task),
            dollars(row.usd_per_1m_tokens),
        ]
        for row in plan.rows
    ]
    return header, body, []


def sensitivity_cells(rows: Sequence[SensitivityRow], replicas: int) -> Cells:
    """One assumption a row, and the replicas needed then."""
    header = ["if", "replicas", f"TTFT p90 with {replicas}", "hit rate"]
    body = []
    for row in rows:
        needed = f"more than {row.tried}" if row.replicas is None else str(row.replicas)
        changes = needed if row.replicas == replicas else f"{replicas} → {needed}"
        body.append([row.name, changes, seconds(row.ttft_p90_s), share(row.hit_rate)])
    return header, body, [0]


def as_text(cells: Cells) -> str:
    """Cells as an aligned table."""
    header, body, left = cells
    return table(header, body, left=left)


def bound_line(plan: Plan) -> str:
    """The bound by hand, and what the simulator adds to it."""
    bound = plan.bound
    text = (
        f"Check by hand: X <= min(k/D, N/(R+Z)), D = {significant(bound.demand_s)} s, "
        f"R+Z = {significant(bound.cycle_s)} s a request, N = {bound.live_sessions}: "
        f"at least {plural(bound.replicas, 'replica')}"
    )
    if plan.replicas is None:
        return text + "."
    if plan.replicas == bound.replicas:
        return text + "; the simulator adds nothing to that."
    return text + f"; queues, bursts and evictions make it {plan.replicas}."


def rule_line(plan: Plan | MostDevelopers) -> str:
    """How verdicts were reached."""
    skipped = sum(row.skipped for row in plan.rows)
    looks = ", ".join(map(str, plan.rule.looks))
    alpha = sum(plan.rule.alphas) * len(plan.slos)
    return (
        f"{plural(plan.replications_run, 'replication')} run, {skipped} skipped where the verdict was clear; "
        f"looks after {looks}; a wrong verdict on a count in at most {100 * alpha:.0f}% of plans"
    )


def plan_text(
    plan: Plan,
    assumptions: Sequence[str],
    sensitivity: Sequence[SensitivityRow],
    *,
    quiet: bool = False,
    headlines: Sequence[str] = (),
) -> str:
    """The answer as printed, `headlines` below its first line."""
    parts = ["\n".join([answer(plan), *headlines])]
    if not quiet:
        parts.append("\n".join([*assumptions, rule_line(plan)]))
    parts.append(as_text(plan_cells(plan)))
    money = cost_cells(plan)
    parts += [as_text(money)] if money else []
    if sensitivity and plan.replicas is not None:
        head = f"What would change the answer ({sensitivity[0].ttft_p90_s.n} hours a row, a rough count):"
        parts.append(f"{head}\n{as_text(sensitivity_cells(sensitivity, plan.replicas))}")
    if not quiet:
        extra = [text for code, text in plan.warnings if code == "extrapolated"]
        outside = f"Extrapolated: {'; '.join(extra) if extra else 'none'}."
        parts.append("\n".join([bound_line(plan), outside, next_line(plan)]))
    return "\n\n".join(parts) + "\n"


def next_line(plan: Plan) -> str:
    """A useful next command."""
    if plan.replicas is None:
        return "Next: a looser --slo, or other hardware (--profile)"
    return f"Next: replicast whatif … --replicas {plan.replicas} --set router=prefix-aware"


def developers_answer(most: MostDevelopers) -> str:
    """The first line of `--max-developers`."""
    slos = " and ".join(map(str, most.slos))
    if not most.developers:
        fewest = most.rows[0]
        clear = "cannot" if fewest.verdict == "fails" else "may or may not"
        return (
            f"Answer: none; {plural(most.replicas, 'replica')} {clear} hold {slos} "
            f"with {plural(fewest.developers, 'developer')}"
        )
    step = f", to within {most.step}" if most.step > 1 else ""
    people = plural(most.developers, "developer")
    return f"Answer: at most {people} on {plural(most.replicas, 'replica')}{step} ({slos})"


def developers_text(most: MostDevelopers, assumptions: Sequence[str], *, quiet: bool = False) -> str:
    """The answer to `--max-developers` as printed."""
    parts = [developers_answer(most)]
    if not quiet:
        parts.append("\n".join([*assumptions, rule_line(most)]))
    parts.append(as_text(plan_cells(most)))
    money = cost_cells(most)
    return "\n\n".join([*parts, *([as_text(money)] if money else [])]) + "\n"


def row_object(row: PlanRow, slos: Sequence[SLO]) -> dict[str, object]:
    """One row as the document holds it."""
    out: dict[str, object] = {}
    for field in fields(row):
        value = getattr(row, field.name)
        if field.name in _PLAIN or isinstance(value, Estimate):
            out[field.name] = value
        elif field.name == "slo_values_s":
            pairs = zip(slos, row.slo_values_s, row.verdicts, strict=True)
            out["slos"] = [{"slo": str(slo), "value_s": v, "verdict": verdict} for slo, v, verdict in pairs]
        elif field.name == "runs":
            out["runs"] = [asdict(run) for run in row.runs]
        elif field.name != "verdicts":
            out[field.name] = Estimate(value, None, None, row.replications)
    return out


def plan_object(plan: Plan, sensitivity: Sequence[SensitivityRow]) -> dict[str, object]:
    """The part of the document that is the plan's."""
    return {
        "replicas_needed": plan.replicas,
        "exit_code": plan.exit_code,
        "slos": [str(slo) for slo in plan.slos],
        "stopping": _rule(plan),
        "rows": [row_object(row, plan.slos) for row in plan.rows],
        "bound_by_hand": plan.bound._asdict(),
        "sensitivity": [
            {
                "if": row.name,
                "set": [str(change) for change in row.variant],
                "replicas_needed": row.replicas,
                "replicas_tried": row.tried,
                "ttft_p90_s": row.ttft_p90_s,
                "hit_rate": row.hit_rate,
            }
            for row in sensitivity
        ],
    }


def developers_object(most: MostDevelopers) -> dict[str, object]:
    """The same of `--max-developers`."""
    return {
        "replicas": most.replicas,
        "max_developers": most.developers,
        "max_developers_step": most.step,
        "exit_code": most.exit_code,
        "slos": [str(slo) for slo in most.slos],
        "stopping": _rule(most),
        "rows": [row_object(row, most.slos) for row in most.rows],
    }


def _rule(plan: Plan | MostDevelopers) -> Mapping[str, object]:
    return {
        "looks": plan.rule.looks,
        "alphas": plan.rule.alphas,
        "replications_run": plan.replications_run,
        "replications_skipped": sum(row.skipped for row in plan.rows),
    }
