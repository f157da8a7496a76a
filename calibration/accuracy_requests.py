"""Tables of docs/accuracy.md that rest on requests and runs measured one by one (not redistributed).

Traps that the data's notes name, and what is done about them: inference-perf sent 100 distinct prompts, so
that nearly all is cached; its output counts are re-tokenised, the configured length is generated; its
reasoning runs are in overload and say nothing about latency; a first request of a run can be a warm-up.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from replicast.calibration.facts import MODELS, Model, find_model
from replicast.calibration.perrequest import config_for, fit_requests, replay_requests
from replicast.calibration.readers.requests_csv import read_requests_csv
from replicast.calibration.server import ServerFacts, server_facts
from replicast.calibration.steady import Means, Stage, fit_stages, stage_means
from replicast.calibration.sweep import Given, Sweep

SPANS = (("jan20-codellama-train-1", "codellama-34b"), ("jan21-llama7b-train-1", "llama-2-7b"))
DISTINCT = 100
NAMES = {"Mistral-Nemo-Instruct-2407": "mistral-nemo-12b", "Yi-34B": "yi-34b"}


class StageError(NamedTuple):
    """One predicted stage: relative errors of means, and mean absolute errors per request."""

    run: str
    stage: str
    ttft: float
    e2e: float
    ttft_each: float | None = None
    e2e_each: float | None = None


def request_section(shared: Path) -> list[str]:
    """The tables, for the data that is there."""
    lines = ["## Requests measured one by one (H100, uncached prompts)", ""]
    lines += [
        "Fitted on the synchronous stage alone (about 22 requests), later stages predicted; errors of each "
        "request's own TTFT and E2E, averaged over the requests of a stage and then over stages.",
        "",
        *span_lines(span_errors(shared)),
        "",
        "## Steady runs (vLLM 0.15.1, nearly all prompts cached)",
        "",
        "One run per model and GPU is fitted, the others predicted (means over stages, signed).",
        "",
        *error_lines(run_errors(shared)),
        "",
        "Stage 0 of a run predicts its stage 1, at two to two and a half times the rate:",
        "",
        *error_lines(stage_errors(shared)),
        "",
    ]
    return lines


def span_errors(shared: Path) -> list[StageError]:
    """Later stages of GuideLLM runs from their synchronous one."""
    out = []
    for folder, name in SPANS:
        path = shared / "guidellm-otel-h100" / folder / "requests.csv"
        if not path.is_file():
            continue
        sweep = read_requests_csv(path)
        facts = server_facts(sweep, hardware="H100", model=MODELS[name])
        fitted = fit_requests(sweep.levels[0].requests, facts)
        config = config_for(facts)
        for level in sweep.levels[1:]:
            records = replay_requests(level.requests, config, fitted.steps, fitted.front_end)
            ttft = np.array([r.ttft_s for r in level.requests], dtype=float)
            e2e = np.array([r.e2e_s for r in level.requests], dtype=float)
            out.append(
                StageError(
                    folder,
                    level.name,
                    float(records.ttft_s.mean() / ttft.mean() - 1),
                    float(records.e2e_s.mean() / e2e.mean() - 1),
                    float(np.abs(records.ttft_s / ttft - 1).mean()),
                    float(np.abs(records.e2e_s / e2e - 1).mean()),
                )
            )
    return out


def span_lines(errors: Sequence[StageError]) -> list[str]:
    """Markdown: per run, constant rates together and the burst."""
    head = "| run | stages | TTFT each | E2E each | TTFT mean, signed | E2E mean, signed |"
    lines = [head, "|---|---|---|---|---|---|"]
    for run in dict.fromkeys(e.run for e in errors):
        burst = [e for e in errors if e.run == run and e.stage.startswith("burst")]
        rates = [e for e in errors if e.run == run and not e.stage.startswith("burst")]
        for title, part in ((f"{len(rates)} constant rates", rates), ("all at once (overload)", burst)):
            if part:
                cells = [_mean(part, "ttft_each", ".1f"), _mean(part, "e2e_each", ".1f")]
                cells += [_mean(part, "ttft", "+.1f"), _mean(part, "e2e", "+.1f")]
                lines.append(f"| {run} | {title} | " + " | ".join(cells) + " |")
    return lines


def _mean(errors: Sequence[StageError], name: str, form: str) -> str:
    return f"{100 * statistics.mean(getattr(e, name) for e in errors):{form}} %"


def stage_errors(shared: Path) -> list[StageError]:
    """inference-perf: stage 0 predicts stage 1."""
    out = []
    for folder in sorted((shared / "inferenceperf-h100").glob("*/")):
        first, second = (folder / f"stage_{i}_lifecycle_metrics.json" for i in (0, 1))
        if not second.is_file():
            continue
        profile = json.loads((folder / "profile.yaml").read_text())
        data, load = profile["data"]["shared_prefix"], profile["load"]["stages"]
        sweep = read_requests_csv(folder / "requests.csv.gz")
        facts = server_facts(sweep, hardware="H100", model=_model(sweep.given.model or folder.name))
        measured = [_client_means(path, data["output_len"]) for path in (first, second)]
        stages = [_stage(float(load[i]["rate"]), data, measured[i]) for i in (0, 1)]
        steps, front_end = fit_stages(stages[:1], facts)
        seen = stage_means(stages[1], config_for(facts), steps, front_end)
        out.append(_error(folder.name, "stage 1", seen, measured[1], data["output_len"]))
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
        fitted = fit_stages(_stages(ordered[0]), _run_facts(ordered[0], name, hardware, tp))
        for run in ordered[1:]:
            facts = _run_facts(run, name, hardware, tp)
            errors = []
            for stage in _stages(run):
                assert stage.measured is not None
                seen = stage_means(stage, config_for(facts), *fitted)
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


def _client_means(path: Path, output_len: int) -> Means:
    latency = json.loads(path.read_text())["successes"]["latency"]
    ttft, e2e = (float(latency[key]["mean"]) for key in ("time_to_first_token", "request_latency"))
    return Means(ttft, (e2e - ttft) / (output_len - 1))


def _stage(rate: float, data: dict[str, Any], measured: Means) -> Stage:
    prompt = data["system_prompt_len"] + data["question_len"]
    return Stage(rate, prompt + 20, data["output_len"], DISTINCT, data["system_prompt_len"], measured)


def _error(run: str, stage: str, seen: Means, measured: Means, output_len: int) -> StageError:
    e2e = seen.ttft_s + (output_len - 1) * seen.tpot_s
    known = measured.ttft_s + (output_len - 1) * measured.tpot_s
    return StageError(run, stage, seen.ttft_s / measured.ttft_s - 1, e2e / known - 1)


def _stages(run: dict[str, Any]) -> list[Stage]:
    """Stages whose load is known and that are not in overload."""
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
