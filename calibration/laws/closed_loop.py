"""Law 2: in a closed loop no more requests are in the server than its sessions can have there.

A session sends its next request when the last is answered, so with p parallel requests a session

    running + waiting <= c x p        at every scrape.

* p told: a breach fails the level. A session that has just been replaced may still hold its p.
* p not told: c = 1 shows one session; its peak is the least p that explains it. More at other levels means
  that other sessions did more at once, which is no fault while it grows with c.
* In any case running + waiting must grow with c (`growth.py`).
* One level may stand out: its requests a session against those of all other levels together. Means over c
  sessions vary by SESSION_CV/sqrt(c).

Without scrapes means are used; the sum of two peaks is an upper bound and convicts nobody.
"""

from __future__ import annotations

from math import log, sqrt

from replicast.calibration.laws.figures import (
    FAIL_SD,
    SESSION_CV,
    WARN_SD,
    in_system,
    in_system_at,
    peak_in_system,
)
from replicast.calibration.laws.findings import Answer, Case, Evidence, Finding, Row, label, listed, show
from replicast.calibration.laws.growth import CHECK, LAW, STALE, Held, does_not_grow

TELL = "Tell how many requests one session can have at once (--parallel-per-session N)."


def closed_loop(case: Case) -> Answer:
    """Findings on the number of requests in the system."""
    held = [
        Held(i, level.concurrency, mean, peak)
        for i, level in enumerate(case.levels)
        if level.concurrency
        and (mean := in_system(level)) is not None
        and (peak := peak_in_system(level)) is not None
    ]
    findings: list[Finding] = []
    stale = does_not_grow(case, held)
    findings += stale
    if case.parallel_per_session is not None:
        findings += _beyond(case, case.parallel_per_session)
    elif held and not stale:
        findings += _stands_out(case, held)
        findings += _inferred(case, held)
    findings += _carried_over(case, held)
    return Answer(tuple(findings), (_row(case),))


def _row(case: Case) -> Row:
    cells = []
    for level in case.levels:
        mean, peak = in_system(level), peak_in_system(level)
        cells.append(
            show(mean) if mean is not None else f"{show(peak.low)} peak" if peak is not None else "-"
        )
    p = case.parallel_per_session
    law = (
        f"closed loop: at most c x {p} requests can wait or run"
        if p
        else "closed loop: running + waiting grow with the sessions"
    )
    return Row(CHECK, "in system", tuple(cells), law)


def _beyond(case: Case, p: int) -> list[Finding]:
    findings = []
    for at, level in enumerate(case.levels):
        mean, peak = in_system(level), peak_in_system(level)
        if not level.concurrency or peak is None:
            continue
        bound, replaced = level.concurrency * p, (level.concurrency + 1) * p
        most = max(peak.low, mean or 0.0)
        if most <= bound:
            continue
        series = in_system_at(level)
        often = sum(n > bound for _, n in series) / len(series) if series else None
        # Clients are replaced one by one: a bound that is passed for long is not that.
        fail = (mean or 0.0) > bound or most > replaced or (often is not None and often > 0.05)
        findings.append(
            Finding(
                LAW,
                CHECK,
                "fail" if fail else "warn",
                f"{show(most)} requests in the system, {level.concurrency} sessions x {p} can have {bound} "
                f"(--parallel-per-session {p})",
                (
                    ("in_system_peak", peak.low),
                    ("in_system_mean", mean),
                    ("bound", bound),
                    ("share_of_scrapes_above", often),
                ),
                STALE if fail else "A session that was being replaced may explain one request too many.",
                at,
            )
        )
    return findings


def _stands_out(case: Case, held: list[Held]) -> list[Finding]:
    findings = []
    shown = next((one.peak.high for one in held if one.concurrency == 1), None)
    for one in held:
        others = [other for other in held if other is not one]
        sessions = sum(other.concurrency for other in others)
        usual = sum(other.mean for other in others) / sessions if sessions else 0.0
        if usual <= 0 or one.mean <= 0:
            continue
        noise = SESSION_CV * sqrt(1.0 / one.concurrency + 1.0 / sessions)
        sd = log(one.per_session / usual) / noise
        # A session without sub-agents has one request: fewer than that, and it was not always there.
        idle = log(one.per_session / min(usual, 1.0)) / noise
        as_alone = shown is not None and one.concurrency > 1 and one.mean <= one.concurrency * shown
        if sd > WARN_SD and not as_alone:
            findings.append(_too_many(one, usual, sd))
        elif idle < -WARN_SD:
            findings.append(
                Finding(
                    LAW,
                    CHECK,
                    "warn",
                    f"{show(one.per_session)} requests a session in the system, at the other levels "
                    f"{show(usual)}: sessions failed or stopped early, or load was offered for a part of "
                    "the time",
                    _apart(one, min(usual, 1.0), idle),
                    "Look at the harness's log of this level.",
                    one.at,
                )
            )
    return findings


def _too_many(one: Held, usual: float, sd: float) -> Finding:
    fail = sd > FAIL_SD
    return Finding(
        LAW,
        CHECK,
        "fail" if fail else "warn",
        f"{show(one.per_session)} requests a session in the system, at the other levels {show(usual)}: "
        f"{show(one.mean - usual * one.concurrency)} are not of its sessions"
        + ("" if fail else ", or these had many sub-agents"),
        _apart(one, usual, sd),
        f"{STALE} Or {TELL[0].lower()}{TELL[1:]}",
        one.at,
    )


def _apart(one: Held, usual: float, sd: float) -> Evidence:
    return (
        ("per_session", one.per_session),
        ("per_session_elsewhere", usual),
        ("standard_deviations", round(sd, 2)),
    )


def _inferred(case: Case, held: list[Held]) -> list[Finding]:
    base = next((one for one in held if one.concurrency == 1), None)
    if base is None:
        return [
            Finding(
                LAW,
                CHECK,
                "note",
                "parallel requests a session are not told and there is no c=1 level to see them: only the "
                "growth with c was checked",
                remedy=TELL,
            )
        ]
    p = base.peak.high
    exact = base.peak.low == base.peak.high
    findings = [
        Finding(
            LAW,
            CHECK,
            "note",
            f"parallel requests a session are not told; c=1 shows {'' if exact else 'at most '}{show(p)} "
            "at once",
            (("parallel_per_session_inferred", p), ("in_system_mean", base.mean)),
            level=base.at,
        )
    ]
    rest = [one for one in held if one is not base]
    over = [one for one in rest if max(one.peak.low, one.mean) > one.concurrency * max(p, 1.0)]
    if not over:
        return findings
    sessions = sum(one.concurrency for one in rest)
    usual = sum(one.mean for one in rest) / sessions
    noise = SESSION_CV * usual / sqrt(sessions)
    different = usual - max(p, 1.0) > FAIL_SD * noise
    most = max(over, key=lambda one: one.per_session)
    text = (
        "sessions of other levels do more at once than the one of c=1 "
        f"({listed([case.levels[one.at] for one in over])}; {show(most.per_session)} requests a session at "
        f"{label(case.levels[most.at])}): sub-agents or overlapping sessions"
    )
    findings.append(
        Finding(
            LAW,
            CHECK,
            "warn" if different else "note",
            text + (". The baseline is not of the same load" if different else ""),
            (("per_session_mean", usual), ("parallel_per_session_inferred", p), ("noise", noise)),
            "Repeat c=1 with several sessions in turn, so that it sees them too." if different else "",
        )
    )
    return findings


def _carried_over(case: Case, held: list[Held]) -> list[Finding]:
    findings = []
    for one in held:
        series = in_system_at(case.levels[one.at])
        if not series or case.levels[one.at].sessions > 1 or one.at == 0:
            continue
        before = in_system_at(case.levels[one.at - 1])
        begun = series[0][1]
        if begun > 0 and before and before[-1][1] > 0:
            findings.append(
                Finding(
                    LAW,
                    CHECK,
                    "warn",
                    f"it began with {show(begun)} requests in the system: {label(case.levels[one.at - 1])} "
                    "had not drained",
                    (("in_system_at_start", begun), ("in_system_at_end_before", before[-1][1])),
                    "Wait until nothing runs or waits before the next level.",
                    one.at,
                )
            )
    return findings
