"""What would change the answer: one assumption moved at a time, and the replicas needed then.

Each row runs a few of the plan's own hours with one thing changed, so it is paired with the plan. Few hours
make a rough count: it is the smallest whose typical hour meets the SLOs, without an interval, looked for
at most a few counts away from the answer: down where the change takes load away, up where the SLOs are
missed. Rows tell which assumption to check first, nothing finer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from replicast.sim.config import EngineConfig
from replicast.sim.planning.changes import Change, Variant
from replicast.sim.planning.parallel import Runner
from replicast.sim.planning.quantiles import Estimate
from replicast.sim.planning.replications import Measured, Task
from replicast.sim.planning.stopping import typical

REPLICATIONS = 2
_TRIES = 3
_RELIEF = ("active share -25%", "no sub-agents", "KV pool +50%")


class SensitivityRow(NamedTuple):
    """One assumption. `replicas` None: more than `tried`. TTFT p90 is at the plan's own count."""

    name: str
    variant: Variant
    replicas: int | None
    tried: int
    ttft_p90_s: Estimate
    hit_rate: float


def assumptions(engine: EngineConfig, active: float | None, *, subagents: bool) -> list[tuple[str, Variant]]:
    """The rows to show, by name; none that vLLM would not boot with."""
    rows: list[tuple[str, Variant]] = []
    if active is not None:
        for factor, sign in ((0.75, "-25%"), (1.25, "+25%")):
            if active * factor <= 1:
                rows.append((f"active share {sign}", (Change("active", f"{active * factor:.6g}"),)))
    rows += [
        ("twice the sessions each", (Change("sessions-each", "x2"),)),
        ("tools twice as fast", (Change("tool-gap", "x0.5"),)),
        ("humans twice as fast", (Change("human-gap", "x0.5"),)),
    ]
    if subagents:
        rows.append(("no sub-agents", (Change("subagents", "0"),)))
    if engine.num_usable_blocks * engine.block_size >= 2 * engine.max_model_len:
        rows.append(("KV pool -50%", (Change("kv-pool", "-50%"),)))
    else:
        rows.append(("KV pool +50%", (Change("kv-pool", "+50%"),)))
    rows += [
        ("nothing shared between sessions", (Change("tools-prefix", "0"),)),
        ("all steps 25% slower", (Change("compute-time", "+25%"), Change("memory-time", "+25%"))),
    ]
    return rows


def sensitivity(
    runner: Runner, replicas: int, rows: Sequence[tuple[str, Variant]], replications: int = REPLICATIONS
) -> list[SensitivityRow]:
    """Each row's replicas, from `replicas` up or down."""
    out = []
    for name, variant in rows:
        at = _runs(runner, variant, replicas, replications)
        needed, tried = _needed(runner, variant, replicas, at, replications, down=name in _RELIEF)
        wait = typical([run.ttft_p90_s for run in at], 0.05)
        hits = sum(run.hit_rate for run in at) / len(at)
        out.append(SensitivityRow(name, variant, needed, tried, wait, hits))
    return out


def _needed(
    runner: Runner,
    variant: Variant,
    replicas: int,
    at: Sequence[Measured],
    replications: int,
    *,
    down: bool,
) -> tuple[int | None, int]:
    """(smallest count whose typical hour meets, or None; largest or smallest count tried)."""
    if _meets(runner, at):
        best = replicas
        while down and best > 1 and replicas - best < _TRIES:
            if not _meets(runner, _runs(runner, variant, best - 1, replications)):
                break
            best -= 1
        return best, best
    low, high = replicas, replicas
    for _ in range(_TRIES):
        low, high = high, high + max(1, high // 3)
        if _meets(runner, _runs(runner, variant, high, replications)):
            break
    else:
        return None, high
    while high - low > 1:
        middle = (low + high) // 2
        if _meets(runner, _runs(runner, variant, middle, replications)):
            high = middle
        else:
            low = middle
    return high, high


def _runs(runner: Runner, variant: Variant, replicas: int, replications: int) -> list[Measured]:
    return runner.run_all([Task(variant, replicas, number) for number in range(replications)])


def _meets(runner: Runner, runs: Sequence[Measured]) -> bool:
    return all(
        (typical([run.slo_values_s[i] for run in runs], 0.05).value or 0.0) < slo.limit_s
        for i, slo in enumerate(runner.scenario.slos)
    )
