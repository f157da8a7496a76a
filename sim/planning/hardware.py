"""Several kinds of hardware for the same developers: the cheapest that meets, and when another overtakes it.

Each kind is planned on its own, for the same developers and hours. Away from the planned number a kind is
taken to carry as many developers a replica as in its plan; boxes are paid whole, so its cost is a staircase,
and a large box pays only when it is full.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from replicast.sim.planning.cost import fleet_usd_per_hour
from replicast.sim.planning.plan import Plan

_FURTHEST = 100_000


class Capacity(NamedTuple):
    """One kind: developers a replica carries, and how it is sold."""

    name: str
    developers_per_replica: float
    usd_per_replica_hour: float
    box: int = 1
    spare: int = 0

    def usd_per_hour(self, developers: int) -> float:
        """Cost of the fleet that carries `developers`.

        >>> Capacity("L40S", 5, 3.004).usd_per_hour(100), Capacity("H200", 30, 7.912, 8).usd_per_hour(100)
        (60.08, 63.296)
        """
        replicas = -int(-developers // self.developers_per_replica)
        return fleet_usd_per_hour(replicas + self.spare, self.usd_per_replica_hour, self.box)


class Choice(NamedTuple):
    """One kind as planned. `on_front` is false where another one both costs and waits less."""

    name: str
    replicas: int | None
    boxes: int | None
    usd_per_hour: float | None
    usd_per_developer_hour: float | None
    ttft_p90_s: float | None
    verdict: str
    on_front: bool


class BreakEven(NamedTuple):
    """From `developers` on `cheaper` costs less than `dearer` for good; None: never, as far as was looked."""

    cheaper: str
    dearer: str
    developers: int | None


def choices(plans: Sequence[tuple[str, Plan]]) -> list[Choice]:
    """One row a kind, the cheapest that meets first, then those that do not meet."""
    rows = []
    for name, plan in plans:
        row = plan.answer
        if row is None:
            verdict = "inconclusive" if plan.exit_code == 4 else "fails"
            rows.append(Choice(name, None, None, None, None, None, verdict, False))
        else:
            rows.append(
                Choice(
                    name, row.replicas, row.boxes, row.usd_per_hour, row.usd_per_developer_hour,
                    row.ttft_p90_s.value, "meets", True,
                )
            )  # fmt: skip
    rows = [row._replace(on_front=_on_front(row, rows)) for row in rows]
    return sorted(rows, key=lambda r: (r.verdict != "meets", r.usd_per_hour is None, r.usd_per_hour or 0.0))


def _on_front(row: Choice, rows: Sequence[Choice]) -> bool:
    """Pareto: nobody is at least as good in cost and waiting and better in one of them."""
    mine = _figures(row)
    if mine is None:
        return False
    others = [figures for other in rows if other is not row and (figures := _figures(other)) is not None]
    return not any(o[0] <= mine[0] and o[1] <= mine[1] and o != mine for o in others)


def _figures(row: Choice) -> tuple[float, float] | None:
    if row.usd_per_developer_hour is None or row.ttft_p90_s is None:
        return None
    return row.usd_per_developer_hour, row.ttft_p90_s


def capacity(name: str, plan: Plan) -> Capacity | None:
    """What a plan says of a replica; None without an answer or a price."""
    row = plan.answer
    if row is None or plan.money.usd_per_hour is None:
        return None
    return Capacity(
        name, row.developers / row.replicas, plan.money.usd_per_hour, plan.money.box, plan.money.spare
    )


def break_even(a: Capacity, b: Capacity, furthest: int = _FURTHEST) -> BreakEven:
    """From how many developers on the one that is dearer for few becomes and stays cheaper.

    Eight H200 in one box against single L40S, at five and thirty developers a replica:

    >>> break_even(Capacity("L40S", 5, 3.004), Capacity("H200", 30, 7.912, 8), 240)
    BreakEven(cheaper='H200', dearer='L40S', developers=106)
    """
    small, large = (a, b) if a.usd_per_hour(1) <= b.usd_per_hour(1) else (b, a)
    first: int | None = None
    for developers in range(1, furthest + 1):
        if large.usd_per_hour(developers) < small.usd_per_hour(developers):
            first = first or developers
        else:
            first = None
    return BreakEven(large.name, small.name, first)
