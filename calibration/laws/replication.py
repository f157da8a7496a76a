"""Law 11: the same load twice gives the same figures within noise, and what differs names the cause.

Two runs of a level differ by the sessions they happen to draw: `NOISE` says by how much. Requests come in
sessions, so their number varies by twice the Poisson noise (a design effect of 4, as for sessions that send a
few requests each before they are cut or fail). What explains a difference:

* lengths and numbers (requests, tokens a request, prompt : generated) differ, and time per token at the same
  number running does not: the *realised workload*. Sessions that fail are short and start cold.
* time per token or prefill time a token differs and lengths do not: the *engine* (version, flags, clocks).
"""

from __future__ import annotations

from math import log, sqrt
from typing import Literal, NamedTuple

from replicast.calibration.laws.figures import NOISE, WARN_SD, in_load, mean_of, requests
from replicast.calibration.laws.findings import Answer, Case, Finding, show
from replicast.calibration.sweep import SweepLevel

LAW = 11
CHECK = "replication"
ENOUGH_WAITING_S = 30.0
WORKLOAD = ("requests", "output_per_request", "prompt_over_output")
ENGINE = ("tpot",)
Cause = Literal["same", "workload", "engine", "both", "load"]


class Difference(NamedTuple):
    """One quantity of two runs: their ratio, and how many standard deviations it is from 1."""

    name: str
    one: float
    other: float
    deviations: float

    @property
    def ratio(self) -> float:
        """The first over the second."""
        return self.one / self.other

    @property
    def apart(self) -> bool:
        """More than noise explains."""
        return abs(self.deviations) > WARN_SD


def differences(one: SweepLevel, other: SweepLevel) -> list[Difference]:
    """Every quantity that both runs have."""
    a, b = _figures(one), _figures(other)
    found = []
    for name, (value, noise) in a.items():
        theirs = b.get(name)
        if theirs is None or value <= 0 or theirs[0] <= 0:
            continue
        sd = log(value / theirs[0]) / sqrt(noise**2 + theirs[1] ** 2)
        found.append(Difference(name, value, theirs[0], sd))
    return found


def cause(found: list[Difference]) -> Cause:
    """What the differences speak for."""
    apart = {d.name for d in found if d.apart}
    if not apart:
        return "same"
    if "running" in apart:
        return "load"
    workload, engine = any(n in apart for n in WORKLOAD), any(n in apart for n in ENGINE)
    if workload and engine:
        return "both"
    return "engine" if engine else "workload"


TEXTS = {
    "workload": "the realised workload differs, not the engine",
    "engine": "the engine differs (version, flags, clocks), not the workload",
    "both": "workload and engine differ, or the workload so much that steps are others",
    "load": "another number of requests was running",
}


def replication(case: Case) -> Answer:
    """Repeats within the sweep, and levels that another sweep also has."""
    findings = []
    for at, level in enumerate(case.levels):
        twins = [("a repeat", part) for part in level.repeats[1:]] if level.repeats else []
        first = level.repeats[0] if level.repeats else level
        if case.against is not None and level.concurrency is not None:
            other = case.against.level(level.concurrency)
            twins += [(case.against.source, other)] if other is not None else []
        findings += [_finding(first, twin, where, at) for where, twin in twins]
    if case.against is not None and not findings:
        text = f"no level in common with {case.against.source}: nothing to compare"
        findings.append(Finding(LAW, CHECK, "warn", text))
    return Answer(tuple(findings))


def _finding(one: SweepLevel, other: SweepLevel, where: str, at: int) -> Finding:
    found = differences(one, other)
    why = cause(found)
    evidence = tuple(
        pair
        for d in found
        for pair in ((d.name, d.one), (f"{d.name}_other", d.other), (f"{d.name}_sd", round(d.deviations, 2)))
    )
    if why == "same":
        return Finding(LAW, CHECK, "note", f"the same as {where} within noise", evidence, level=at)
    apart = sorted((d for d in found if d.apart), key=lambda d: -abs(d.deviations))
    named = ", ".join(
        f"{d.name} {show(d.one)} against {show(d.other)} ({abs(d.deviations):.1f} sd)" for d in apart[:3]
    )
    steady = [d for d in found if not d.apart and d.name in ("running", "tpot", "kv_usage")]
    same = ", ".join(f"{d.name} {show(d.one)} and {show(d.other)}" for d in steady)
    return Finding(
        LAW,
        CHECK,
        "warn",
        f"does not reproduce {where}: {named}"
        + (f"; alike are {same}" if same else "")
        + f"; so {TEXTS[why]}",
        (("cause", why), *evidence),
        "Compare per request and per token, not per second; repeat with more sessions.",
        at,
    )


def _figures(level: SweepLevel) -> dict[str, tuple[float, float]]:
    """Value and noise (sd of the logarithm) by name."""
    named: dict[str, tuple[float | None, float]] = {
        name: (mean_of(getattr(level, name)), NOISE[name]) for name in ("tpot", "ttft", "prefill", "queue")
    }
    prompt, output = level.prompt_tokens_per_s, level.output_tokens_per_s
    named["output_tokens_per_s"] = (output, NOISE["output_tokens_per_s"])
    named["prompt_tokens_per_s"] = (prompt, NOISE["prompt_tokens_per_s"])
    ratio_noise = sqrt(NOISE["output_tokens_per_s"] ** 2 + NOISE["prompt_tokens_per_s"] ** 2)
    named["prompt_over_output"] = (prompt / output if prompt and output else None, ratio_noise)
    running, usage = in_load(level.running, level), in_load(level.kv_usage, level)
    named["running"] = (running, 0.5 / sqrt(level.concurrency or 1))
    named["kv_usage"] = (usage, NOISE["prompt_tokens_per_s"])
    count = _count(level)
    if count:
        noise = 2.0 / sqrt(count)
        named["requests"] = (count, noise)
        if output and level.window_s:
            named["output_per_request"] = (
                output * level.window_s / count,
                sqrt(noise**2 + NOISE["output_tokens_per_s"] ** 2),
            )
    return {name: (value, noise) for name, (value, noise) in named.items() if value is not None}


def _count(level: SweepLevel) -> float | None:
    """Requests: counted, else by Little on the queue where it is long enough."""
    counted = requests(level)
    if counted is not None:
        return counted
    waiting = level.waiting.mean if level.waiting is not None else None
    queue = mean_of(level.queue)
    if not waiting or not queue or not level.window_s or waiting * level.window_s < ENOUGH_WAITING_S:
        return None
    return waiting * level.window_s / queue
