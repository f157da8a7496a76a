"""Tables of docs/accuracy.md that rest on requests and runs measured one by one (not redistributed).

Traps that the data's notes name, and what is done about them: inference-perf sent 100 distinct prompts, so
that nearly all is cached; its output counts are re-tokenised, the configured length is generated; most
reasoning runs are in overload and say nothing about latency; first requests of a run meet a server that
still warms up (of mixtral seconds of TTFT), which no load explains: where requests are known they are left
out, a stage of which only means are known is not fitted where its p99 shows them.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from replicast.calibration.accuracy_text import ONE_BY_ONE, STEADY
from replicast.calibration.facts import Model, find_model
from replicast.calibration.perrequest import fit_requests
from replicast.calibration.readers.requests_csv import read_requests_csv
from replicast.calibration.replay import Shared, forecast
from replicast.calibration.server import ServerFacts, server_facts
from replicast.calibration.steady import Means, Stage, fit_stages, stage_means
from replicast.calibration.sweep import ClientRequest, Given, Sweep

DISTINCT = 100
WARMING = 4.0  # p99 of TTFT against its mean, from which on a stage's mean holds a warm-up
NAMES = {"Mistral-Nemo-Instruct-2407": "mistral-nemo-12b", "Yi-34B": "yi-34b"}


class StageError(NamedTuple):
    """One predicted stage: relative errors of means, mean and median absolute errors per request."""

    run: str
    stage: str
    ttft: float
    e2e: float
    ttft_each: float | None = None
    e2e_each: float | None = None
    ttft_half: float | None = None
    e2e_half: float | None = None


def request_section(shared: Path) -> list[str]:
    """The tables, for the data that is there."""
    lines = ["## Requests measured one by one (H100, uncached prompts)", ""]
    lines += [
        "Fitted on the synchronous stage alone (about 22 requests), later stages predicted; errors of each "
        "request's own TTFT and E2E, mean and median of the requests of a stage, averaged over stages.",
        "",
        *span_lines(span_errors(shared)),
        "",
        *ONE_BY_ONE.splitlines(),
        "",
        "## Steady runs (vLLM 0.15.1, nearly all prompts cached)",
        "",
        "One run per model and GPU is fitted, the others predicted (means over stages, signed). Stages whose "
        "99th percentile of TTFT is above four times the mean hold a warm-up, which is in what is compared "
        "with (mixtral at the lower rate: up to 20 % of the mean), but not fitted.",
        "",
        *error_lines(run_errors(shared)),
        "",
        "Stage 0 of a run predicts its stage 1, at two to two and a half times the rate (requests past the "
        "warm-up, both measured and simulated):",
        "",
        *error_lines(stage_errors(shared)),
        "",
        *STEADY.splitlines(),
        "",
    ]
    return lines


def span_errors(shared: Path, run: str = "") -> list[StageError]:
    """Later stages of GuideLLM runs from their synchronous one; of those whose name holds `run`."""
    out = []
    for path in sorted((shared / "guidellm-otel-h100").glob(f"*{run}*/requests.csv")):
        sweep = read_requests_csv(path)
        facts = server_facts(sweep, hardware="H100", model=_model(sweep.given.model or path.parent.name))
        prefix = _prefix_tokens(path.parent / "exp-config.yaml")
        common = Shared(prefix, cached=prefix > 0)
        lone = sweep.levels[0].requests[1 if prefix else 0 :]  # the first request fills the cache
        fitted = fit_requests(lone, facts, shared=common)
        config = facts.config
        for level in sweep.levels[1:]:
            told = forecast(level.requests, config, fitted.steps, fitted.front_end, shared=common)
            ttft = np.array([r.ttft_s for r in level.requests], dtype=float)
            e2e = np.array([r.e2e_s for r in level.requests], dtype=float)
            missed = (np.abs(told.ttft_s / ttft - 1), np.abs(told.e2e_s / e2e - 1))
            out.append(
                StageError(
                    path.parent.name,
                    level.name,
                    float(told.ttft_s.mean() / ttft.mean() - 1),
                    float(told.e2e_s.mean() / e2e.mean() - 1),
                    *(float(each.mean()) for each in missed),
                    *(float(np.median(each)) for each in missed),
                )
            )
    return out


def _prefix_tokens(path: Path) -> int:
    """Tokens that all prompts of a GuideLLM run share."""
    found = (
        re.search(r"^\s*prefix_tokens:\s*(\d+)", path.read_text(), re.MULTILINE) if path.is_file() else None
    )
    return int(found.group(1)) if found else 0


def span_lines(errors: Sequence[StageError]) -> list[str]:
    """Markdown: per run, constant rates together and the burst."""
    head = "| run | stages | TTFT each | median | E2E each | median | TTFT mean, signed | E2E mean, signed |"
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    for run in dict.fromkeys(e.run for e in errors):
        burst = [e for e in errors if e.run == run and e.stage.startswith("burst")]
        rates = [e for e in errors if e.run == run and not e.stage.startswith("burst")]
        for title, part in ((f"{len(rates)} constant rates", rates), ("all at once (overload)", burst)):
            if part:
                cells = [_mean(part, "ttft_each", ".1f"), _mean(part, "ttft_half", ".1f")]
                cells += [_mean(part, "e2e_each", ".1f"), _mean(part, "e2e_half", ".1f")]
                cells += [_mean(part, "ttft", "+.1f"), _mean(part, "e2e", "+.1f")]
                lines.append(f"| {run} | {title} | " + " | ".join(cells) + " |")
    return lines


def _mean(errors: Sequence[StageError], name: str, form: str) -> str:
    return f"{100 * statistics.mean(getattr(e, name) for e in errors):{form}} %"


def stage_errors(shared: Path) -> list[StageError]:
    """inference-perf: stage 0 predicts stage 1."""
    out = []
    for folder in sorted((shared / "inferenceperf-h100").glob("*/")):
        if not (folder / "stage_1_lifecycle_metrics.json").is_file():
            continue
        profile = json.loads((folder / "profile.yaml").read_text())
        data, load = profile["data"]["shared_prefix"], profile["load"]["stages"]
        sweep = read_requests_csv(folder / "requests.csv.gz")
        facts = server_facts(sweep, hardware="H100", model=_model(sweep.given.model or folder.name))
        stages = [
            _settled(_stage(float(load[i]["rate"]), data, None), sweep.levels[i].requests) for i in (0, 1)
        ]
        steps, front_end = fit_stages(stages[:1], facts)
        seen = stage_means(stages[1], facts.config, steps, front_end)
        known = stages[1].measured
        assert known is not None
        out.append(_error(folder.name, "stage 1", seen, known, data["output_len"]))
    return out


def run_errors(shared: Path) -> list[StageError]:
    """Summaries: one run per model and GPU predicts the others."""
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for path in sorted((shared / "vllm0151-summaries").glob("*/run.json")):
        run = json.loads(path.read_text())
        groups.setdefault((run["model"], run["hardware"], int(run["tp"])), []).append(run)
    out = []
    for (name, hardware, tp), runs in sorted(groups.items()):
        # The run with the most stages tells most; runs in overload (reasoning) tell nothing of latency.
        ordered = sorted(runs, key=lambda run: (-len(_stages(run)), run["name"]))
        if len(ordered) < 2 or not _stages(ordered[0]):
            continue
        stages = _stages(ordered[0], settled=True) or _stages(ordered[0])
        fitted = fit_stages(stages, _run_facts(ordered[0], name, hardware, tp))
        for run in ordered[1:]:
            facts = _run_facts(run, name, hardware, tp)
            errors = []
            for stage in _stages(run):
                assert stage.measured is not None
                seen = stage_means(stage, facts.config, *fitted)
                errors.append(_error(run["name"], "", seen, stage.measured, stage.output_tokens))
            if errors:
                means = (statistics.mean(e.ttft for e in errors), statistics.mean(e.e2e for e in errors))
                out.append(StageError(run["name"], f"from {ordered[0]['name']}", *means))
    return out


def error_lines(errors: Sequence[StageError]) -> list[str]:
    """Markdown: one line a prediction, medians last."""
    lines = ["| predicted | from | TTFT mean | E2E mean |", "|---|---|---|---|"]
    lines += [f"| {e.run} | {e.stage} | {100 * e.ttft:+.1f} % | {100 * e.e2e:+.1f} % |" for e in errors]
    if errors:
        ttft, e2e = (100 * statistics.median(abs(getattr(e, f)) for e in errors) for f in ("ttft", "e2e"))
        lines.append(f"| **median of {len(errors)}, absolute** | | **{ttft:.1f} %** | **{e2e:.1f} %** |")
    return lines


def _model(name: str) -> Model | None:
    plain = name.rsplit("/", 1)[-1]
    return find_model(NAMES.get(plain, plain))


def _settled(stage: Stage, requests: Sequence[ClientRequest]) -> Stage:
    """The stage with the means of its requests past the warm-up, as the simulated stage has them."""
    rows = sorted(requests, key=lambda r: r.arrival_s or 0.0)[stage.warm_up :]
    ttft_s = statistics.mean(r.ttft_s for r in rows if r.ttft_s is not None)
    e2e_s = statistics.mean(r.e2e_s for r in rows if r.e2e_s is not None)
    return replace(stage, measured=Means(ttft_s, (e2e_s - ttft_s) / (stage.output_tokens - 1)))


def _stage(rate: float, data: dict[str, Any], measured: Means | None) -> Stage:
    prompt = data["system_prompt_len"] + data["question_len"]
    return Stage(rate, prompt + 20, data["output_len"], DISTINCT, data["system_prompt_len"], measured)


def _error(run: str, stage: str, seen: Means, measured: Means, output_len: int) -> StageError:
    e2e = seen.ttft_s + (output_len - 1) * seen.tpot_s
    known = measured.ttft_s + (output_len - 1) * measured.tpot_s
    return StageError(run, stage, seen.ttft_s / measured.ttft_s - 1, e2e / known - 1)


def _stages(run: dict[str, Any], *, settled: bool = False) -> list[Stage]:
    """Stages whose load is known and that are not in overload; `settled`: nor hold a warm-up."""
    spec, actual = run["workload_spec"], run["actual_ms"]
    exact = spec.get("inference_perf", {})
    data = exact.get("shared_prefix", spec)
    rates = exact.get("stages") or spec.get("stages") or []
    if "output_len" not in data or not rates:
        return []
    out = []
    for i, stage in enumerate(rates):
        rate = float(stage["rate"] if isinstance(stage, dict) else stage[0])
        seen = actual.get(f"stage_{i}")
        if seen is None or seen["ttft_mean"] > 1_000:
            continue
        if settled and seen["ttft_p99"] > WARMING * seen["ttft_mean"]:
            continue
        tpot = (seen["e2e_mean"] - seen["ttft_mean"]) / 1000 / (data["output_len"] - 1)
        out.append(_stage(rate, data, Means(seen["ttft_mean"] / 1000, tpot)))
    return out


def _run_facts(run: dict[str, Any], name: str, hardware: str, tp: int) -> ServerFacts:
    given = Given(
        model=name, gpu=hardware, tensor_parallel_size=tp, vllm_version="0.15.1", max_model_len=4096,
        max_num_batched_tokens=int(run.get("max_num_batched_tokens") or 2048),
        max_num_seqs=int(run.get("max_num_seqs") or 128),
    )  # fmt: skip
    return server_facts(Sweep(run["name"], "summary", (), model=name, given=given), model=_model(name))
