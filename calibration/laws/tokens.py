"""Law 5: tokens balance.

* prompt : generated of a window is that of the tasks. vLLM counts a whole prompt at its first token and
  output as it comes, so prompts whose outputs never ended raise the ratio. Windows of single tasks differ
  among themselves by a factor of exp(0.55) (sd of the logarithm over 28 recorded ones); three of these are
  the limit.
* first tokens - finished requests = those whose output never ended in the window: at most what was in the
  system at the end, and as many again that clients gave up.
* computed = prompt - cached, and the histogram of computed tokens (finished requests) cannot hold more.
* sum of iteration_tokens = computed + generated (exact in 27 of 28 recorded windows, 1.1 % off in one).
* cached <= prompt; the sources of prompt tokens add up to them.
"""

from __future__ import annotations

from math import sqrt
from statistics import median

from replicast.calibration.laws.figures import FAIL_SD, deviation, peak_in_system
from replicast.calibration.laws.findings import Answer, Case, Finding, Row, show
from replicast.calibration.sweep import SweepLevel

LAW = 5
CHECK = "tok ratio"
TASK_SPREAD = 0.55
ITERATION_TOLERANCE = 0.02
LONGER = "Run the level longer than its requests take, and drain before it."


def token_balance(case: Case) -> Answer:
    """Findings on every level."""
    ratios = [_ratio(level) for level in case.levels]
    known = [r for r in ratios if r is not None]
    tasks = _task_ratio(case)
    findings: list[Finding] = []
    for at, (level, ratio) in enumerate(zip(case.levels, ratios, strict=True)):
        found = (
            _against(ratio, tasks, known, at),
            _cut_off(level, at),
            _computed(level, at),
            _iterations(level, at),
            _sources(level, at),
        )
        findings += [f for f in found if f is not None]
    if not known:
        return Answer(tuple(findings))
    law = "prompt : generated" + (
        f"; tasks measured about {show(tasks, 2)}:1" if tasks else ", as at the other levels"
    )
    row = Row(CHECK, CHECK, tuple(f"{r:.0f}:1" if r is not None else "-" for r in ratios), law)
    return Answer(tuple(findings), (row,))


def _ratio(level: SweepLevel) -> float | None:
    prompt, output = level.prompt_tokens_per_s, level.output_tokens_per_s
    return prompt / output if prompt is not None and output else None


def _task_ratio(case: Case) -> float | None:
    given, output = case.sweep.task_input_tokens, case.sweep.task_output_tokens
    return given / output if given and output else None


def _against(ratio: float | None, tasks: float | None, known: list[float], at: int) -> Finding | None:
    if ratio is None:
        return None
    for other, what in ((tasks, "tasks"), (median(known) if len(known) > 2 else None, "the other levels")):
        if not other:
            continue
        sd = deviation(ratio / other, TASK_SPREAD)
        # Tasks beside the source may be others than the load's: fewer prompts than theirs is no fault.
        if sd > FAIL_SD:
            return Finding(
                LAW,
                CHECK,
                "warn",
                f"{show(ratio)} prompt tokens for each generated one, {what} have about {show(other, 2)}: "
                "prompts are counted whose outputs never ended here",
                (("ratio", ratio), ("expected_ratio", other), ("standard_deviations", round(sd, 2))),
                LONGER,
                at,
            )
    return None


def _cut_off(level: SweepLevel, at: int) -> Finding | None:
    begun, finished, peak = level.first_tokens, level.requests_finished, peak_in_system(level)
    if begun is None or finished is None or peak is None:
        return None
    never = begun - finished
    allowed = 2.0 * peak.high + FAIL_SD * sqrt(max(begun, finished, 0.0)) + (level.requests_failed or 0.0)
    if abs(never) <= allowed:
        return None
    text = (
        f"{show(begun)} requests got a first token and {show(finished)} finished: {show(never)} prompts "
        "are counted whose outputs never ended here"
        if never > 0
        else f"{show(finished)} requests finished, {show(begun)} got a first token: the others began "
        "before the window"
    )
    evidence = (("first_tokens", begun), ("requests_finished", finished), ("allowed", allowed))
    return Finding(LAW, "cut off", "fail", text, evidence, LONGER, at)


def _computed(level: SweepLevel, at: int) -> Finding | None:
    prompt, cached, computed = level.prompt_tokens, level.cached_tokens, level.computed_tokens
    if prompt is None or cached is None or computed is None:
        return None
    if cached > prompt * (1 + 1e-9):
        return Finding(
            LAW,
            "computed",
            "fail",
            f"{show(cached)} cached of {show(prompt)} prompt tokens: counters of different windows or "
            "servers",
            (("cached_tokens", cached), ("prompt_tokens", prompt)),
            "Read one server's counters over one window.",
            at,
        )
    seen = level.computed_per_request
    if seen is None or seen.sum is None or not seen.count:
        return None
    # Requests that began before the window count here when they finish in it.
    edge = (peak.high if (peak := peak_in_system(level)) is not None else 1.0) * seen.sum / seen.count
    if seen.sum <= computed * (1 + ITERATION_TOLERANCE) + edge:
        return None
    return Finding(
        LAW,
        "computed",
        "warn",
        f"finished requests computed {show(seen.sum)} tokens, prompts less cached are {show(computed)}",
        (("computed_of_finished", seen.sum), ("computed_tokens", computed)),
        "Check that all counters are of one engine and one model.",
        at,
    )


def _iterations(level: SweepLevel, at: int) -> Finding | None:
    steps, computed, output = level.iteration_tokens, level.computed_tokens, level.generated_tokens
    if steps is None or not steps.sum or computed is None or output is None:
        return None
    expected = computed + output
    one_prompt = (level.prompt_tokens or 0.0) / level.first_tokens if level.first_tokens else 0.0
    if abs(steps.sum - expected) <= ITERATION_TOLERANCE * expected + one_prompt:
        return None
    return Finding(
        LAW,
        "iterations",
        "warn",
        f"steps add up to {show(steps.sum)} tokens, computed and generated ones are {show(expected)}: "
        "counters of several engines or models are mixed, or scrapes were lost",
        (("iteration_tokens_sum", steps.sum), ("computed_and_generated_tokens", expected)),
        "Read one engine and one model.",
        at,
    )


def _sources(level: SweepLevel, at: int) -> Finding | None:
    if not level.prompt_tokens_by_source or level.prompt_tokens is None:
        return None
    total = sum(n for _, n in level.prompt_tokens_by_source)
    if abs(total - level.prompt_tokens) <= ITERATION_TOLERANCE * level.prompt_tokens:
        return None
    return Finding(
        LAW,
        "sources",
        "warn",
        f"sources of prompt tokens add up to {show(total)}, the counter rose by {show(level.prompt_tokens)}",
        (("by_source_tokens", total), ("prompt_tokens", level.prompt_tokens)),
        "Read one engine and one model.",
        at,
    )
