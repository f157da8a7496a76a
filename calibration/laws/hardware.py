"""Law 9: nothing beats the hardware, and time per token must react to load.

* Prefill computes 2 x active parameters a token: computed tokens/s x that <= FLOPS of all GPUs. Where cached
  tokens are not counted the same bound says what share must have come from the cache.
* A decode step reads the weights that one sequence uses: time per token >= bytes / bandwidth, unless tokens
  come several a step (speculation).
* A step of decodes alone can read no more than all of a GPU's memory once. A server whose *fastest* level
  takes longer carries prefill in every step; if its time per token does not rise from few sessions to many
  either, its load did not change with them: the steps were as full at two sessions as at twenty.
"""

from __future__ import annotations

from math import log, sqrt

from replicast.calibration.facts import GPUS
from replicast.calibration.laws.figures import NOISE, WARN_SD, mean_of
from replicast.calibration.laws.findings import Answer, Case, Finding, Row, listed, show
from replicast.calibration.physics import BANDWIDTH_SHARE
from replicast.calibration.sweep import SweepLevel

LAW = 9
CHECK = "TPOT"


def hardware(case: Case) -> Answer:
    """Findings on rates against peaks, and on time per token against load."""
    findings: list[Finding] = []
    for at, level in enumerate(case.levels):
        found = (_prefill(case, level, at), _decode(case, level, at))
        findings += [f for f in found if f is not None]
    flat = _flat(case)
    findings += [flat] if flat is not None else []
    reuse = _least_reuse(case)
    findings += [reuse] if reuse is not None else []
    tpots = [mean_of(level.tpot) for level in case.levels]
    cells = tuple(show(1000 * t) if t is not None else "-" for t in tpots)
    return Answer(tuple(findings), (Row(CHECK, "TPOT, ms", cells, "time per token rises with load"),))


def longest_decode_step_s(case: Case) -> float:
    """Seconds to read all of a GPU's memory once, at the share of bandwidth that servers reach."""
    known = [case.gpu] if case.gpu is not None else list(GPUS.values())
    return max(gpu.memory_gib * 2**30 / gpu.bytes_per_s for gpu in known) / BANDWIDTH_SHARE


def _flat(case: Case) -> Finding | None:
    points = [
        (log(level.concurrency), tpot, level)
        for level in case.levels
        if level.concurrency and (tpot := mean_of(level.tpot)) and level.unusable is None
    ]
    if len(points) < 3:
        return None
    limit = longest_decode_step_s(case)
    fastest = min(tpot for _, tpot, _ in points)
    middle = sum(x for x, _, _ in points) / len(points)
    spread = sum((x - middle) ** 2 for x, _, _ in points)
    if fastest <= limit or spread <= 0:
        return None
    slope = sum((x - middle) * log(tpot) for x, tpot, _ in points) / spread
    noise = NOISE["tpot"] / sqrt(spread)
    times = ", ".join(show(1000 * tpot) for _, tpot, _ in points)
    loads = listed([level for _, _, level in points])
    evidence = (
        ("fastest_tpot_mean_s", fastest),
        ("longest_decode_step_s", limit),
        ("slope_of_log_tpot", slope),
        ("slope_noise", noise),
    )
    if slope > WARN_SD * noise:
        return None
    return Finding(
        LAW,
        CHECK,
        "fail",
        f"{times} ms a token at {loads}: it does not rise with the sessions, and even the fastest is "
        f"longer than any step of decodes alone ({show(1000 * limit)} ms to read all GPU memory). The "
        "server was as full of prefill at the first level as at the last",
        evidence,
        "Restart the server, run c=1 first, drain between levels.",
    )


def _prefill(case: Case, level: SweepLevel, at: int) -> Finding | None:
    computed, bound = level.computed_tokens, _peak_tokens_per_s(case)
    if computed is None or bound is None or not level.window_s:
        return None
    rate = computed / level.window_s
    if rate <= bound:
        return None
    return Finding(
        LAW,
        "prefill rate",
        "fail",
        f"{show(rate)} computed prompt tokens/s; the GPUs' peak is {show(bound)}: cached tokens are "
        "counted as computed, or counters of several servers are added",
        (("computed_tokens_per_s", rate), ("peak_tokens_per_s", bound)),
        "Check what the counters cover.",
        at,
    )


def _decode(case: Case, level: SweepLevel, at: int) -> Finding | None:
    tpot, facts = mean_of(level.tpot), case.facts
    if tpot is None or tpot <= 0 or facts is None:
        return None
    low = facts.priors["memory_fixed_s"].low / (1 + (case.sweep.given.num_speculative_tokens or 0))
    if tpot >= low:
        return None
    return Finding(
        LAW,
        CHECK,
        "warn",
        f"{show(1000 * tpot)} ms a token; reading the weights of {facts.model.name} takes "
        f"{show(1000 * low)} ms: several tokens come a step (speculation), or the model or GPU is another",
        (("tpot_mean_s", tpot), ("weights_read_s", low)),
        "Tell num_speculative_tokens, model and GPU (--given).",
        at,
    )


def _least_reuse(case: Case) -> Finding | None:
    bound = _peak_tokens_per_s(case)
    if bound is None:
        return None
    unknown = [level for level in case.levels if level.hit_rate is None and level.prompt_tokens_per_s]
    shares = [1 - bound / ((level.prompt_tokens_per_s or 1.0) * (level.dilution or 1.0)) for level in unknown]
    if not shares or max(shares) <= 0:
        return None
    return Finding(
        LAW,
        "prefill rate",
        "note",
        f"cached tokens are not counted; by the GPUs' peak at least {100 * max(shares):.0f}% of prompt "
        "tokens were reused at the busiest level",
        (("least_hit_rate", max(shares)), ("peak_tokens_per_s", bound)),
    )


def _peak_tokens_per_s(case: Case) -> float | None:
    if case.facts is None:
        return None
    per_token = case.facts.priors["compute_per_token_s"].low
    return 1.0 / per_token if per_token > 0 else None
