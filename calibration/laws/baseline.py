"""Law 1: a level of one session exists, is uncontended, and is the fastest where it should be.

*Exists*: without it neither the time of a request alone nor the parallel requests of a session are known.

*Uncontended*: one session waits only for its own requests. Of p that arrive together, served first come first
served, the k-th waits for k - 1 prefills, on average (p - 1)/2 prefills. A longer queue is other work.
Where the source has no queue times: one session cannot have more requests waiting than running for long.

*Fastest where it should be*: a step takes longer with more sequences, so time per output token must not be
above that of a level that runs more, beyond the noise of both. TTFT is not compared: levels that are cut at a
deadline see earlier turns, with shorter prompts, the more sessions there are.
"""

from __future__ import annotations

from math import sqrt

from replicast.calibration.buckets import REQUEST_EDGES_S
from replicast.calibration.laws.figures import (
    FAIL_SD,
    NOISE,
    deviation,
    in_load,
    in_system,
    mean_of,
    peak_in_system,
)
from replicast.calibration.laws.findings import Answer, Case, Finding, Row, label, show
from replicast.calibration.sweep import SweepLevel

LAW = 1
CHECK = "baseline"
RESTART = "Restart the server and run c=1 first, before any other load."


def baseline(case: Case) -> Answer:
    """Findings on the level of one session."""
    loads = [level.concurrency for level in case.levels if level.concurrency is not None]
    if not loads:
        return Answer(
            (Finding(LAW, CHECK, "note", "open loop: there is no level of one session to compare with"),)
        )
    at = case.index(1)
    if at is None:
        missing = Finding(
            LAW,
            CHECK,
            "warn",
            "no c=1 level: times without contention and the parallel requests of a session are unknown",
            (("lowest_concurrency", min(loads)),),
            "Add a level of one session to the sweep.",
        )
        return Answer((missing,), (_row(case, None),))
    level = case.levels[at]
    found = (_contended(level, at), _slower(case, level, at), _busier(case, level, at))
    findings = [f for f in found if f is not None]
    return Answer(tuple(findings), (_row(case, at),))


def _row(case: Case, at: int | None) -> Row:
    cells = ["" for _ in case.levels]
    if at is None:
        cells[0] = "missing"
    else:
        level = case.levels[at]
        cells[at] = f"{show(mean_of(level.queue), 2)}/{show(mean_of(level.prefill), 2)}"
        if mean_of(case.levels[at].queue) is None:
            cells[at] = "present"
    return Row(CHECK, "baseline, s", tuple(cells), "c=1 is there, and queues little beside its prefill")


def _contended(level: SweepLevel, at: int) -> Finding | None:
    queue, prefill = mean_of(level.queue), mean_of(level.prefill)
    peak = peak_in_system(level)
    own = max(peak.high, 1.0) if peak is not None else 1.0
    if queue is None or prefill is None:
        running, waiting = in_load(level.running, level), in_load(level.waiting, level)
        if running is None or waiting is None or waiting <= max(running, REQUEST_EDGES_S[0]):
            return None
        return Finding(
            LAW,
            CHECK,
            "fail",
            f"one session has {show(waiting)} requests waiting and {show(running)} running on average: the "
            "server works on something else",
            (("waiting_mean", waiting), ("running_mean", running)),
            RESTART,
            at,
        )
    limit = max((own - 1.0) / 2.0 * prefill, REQUEST_EDGES_S[0])
    evidence = (
        ("queue_mean_s", queue),
        ("prefill_mean_s", prefill),
        ("requests_peak", own),
        ("limit_s", limit),
    )
    if queue > limit:
        return Finding(
            LAW,
            CHECK,
            "fail",
            f"one session waits {show(queue)} s in the queue beside {show(prefill)} s of prefill; its own "
            f"requests (at most {show(own)} at once) explain {show(limit)} s",
            evidence,
            RESTART,
            at,
        )
    if queue > prefill:
        return Finding(
            LAW,
            CHECK,
            "warn",
            f"the session's own parallel requests queue longer ({show(queue)} s) than they prefill "
            f"({show(prefill)} s): c=1 is not a baseline without contention",
            evidence,
            "Add a level of one session without sub-agents.",
            at,
        )
    return None


def _slower(case: Case, level: SweepLevel, at: int) -> Finding | None:
    tpot, running = mean_of(level.tpot), in_load(level.running, level)
    if tpot is None:
        return None
    worst: tuple[float, SweepLevel, float] | None = None
    for other in case.levels:
        theirs, theirs_running = mean_of(other.tpot), in_load(other.running, other)
        if other is level or not theirs or other.unusable:
            continue
        if running is not None and (theirs_running is None or theirs_running < running):
            continue
        sd = deviation(tpot / theirs, NOISE["tpot"] * sqrt(2))
        if sd > FAIL_SD and (worst is None or sd > worst[0]):
            worst = (sd, other, theirs)
    if worst is None:
        return None
    return Finding(
        LAW,
        CHECK,
        "warn",
        f"c=1 takes {show(1000 * tpot)} ms a token, {label(worst[1])} with more running "
        f"{show(1000 * worst[2])} ms: one session alone must be the fastest",
        (("tpot_mean_s", tpot), ("other_tpot_mean_s", worst[2]), ("standard_deviations", round(worst[0], 2))),
        "Repeat c=1 after a warm-up; compile and graph capture may have fallen into it.",
        at,
    )


def _busier(case: Case, level: SweepLevel, at: int) -> Finding | None:
    """One session that held more requests than two: no fault, but no request ran alone there."""
    alone = in_system(level)
    others = [
        (n, other) for other in case.levels if other is not level and (n := in_system(other)) is not None
    ]
    if alone is None or not others or alone <= 1.0:
        return None
    least, other = min(others, key=lambda pair: pair[0])
    if least >= alone:
        return None
    return Finding(
        LAW,
        CHECK,
        "note",
        f"the session of c=1 held {show(alone)} requests on average, {label(other)} {show(least)}: it ran "
        "sub-agents, so no request was alone there",
        (("in_system_mean", alone), ("in_system_mean_other", least)),
        level=at,
    )
