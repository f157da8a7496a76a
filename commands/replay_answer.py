"""`replicast replay` between parsing and printing: load, resolve, run, collect warnings, write files.

In order, so that what cannot work fails before anything takes long: output folder, profile and
flags, trace, runs, files. All that an answer depends on is in the document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from replicast import __version__
from replicast.calibration.profile import Profile, load_profile
from replicast.sim.config import EngineArgs
from replicast.sim.defaults import ResolvedConfig, resolve
from replicast.sim.errors import InputError
from replicast.sim.fleet.config import FleetConfig
from replicast.sim.fleet.result import RunResult
from replicast.sim.planning.cost import Task, mean_session
from replicast.sim.planning.replay import Progress, Study, replay
from replicast.sim.planning.summary import ReplayRow, summarise
from replicast.sim.report.document import REPLAY_SCHEMA, dumps, row_object
from replicast.sim.report.files import write_text
from replicast.sim.report.replay import answer, serving_table, waiting_table
from replicast.sim.report.text import plural
from replicast.sim.report.timing import since_process_start
from replicast.traces.load import LoadedTrace, load_trace

MODEL_NOTE = "Ranges hold the sampling error of one run, not the error of the profile"


@dataclass(frozen=True, slots=True)
class Ask:
    """What a replay is asked for."""

    traces: tuple[Path, ...]
    profile: str
    replica_counts: tuple[int, ...]
    flags: EngineArgs
    fleet: FleetConfig
    seed: int
    price_usd_per_hour: float | None
    task: Task | None
    loading: dict[str, Any]  # keyword arguments of load_trace
    jobs: int = 1


@dataclass(frozen=True, slots=True)
class Warned:
    """A short code and one sentence."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a replay answers. `results` are kept only where files are to be written."""

    ask: Ask
    profile: Profile
    resolved: ResolvedConfig
    trace: LoadedTrace
    fleet: FleetConfig  # of the first run, loop resolved
    task: Task | None
    rows: tuple[ReplayRow, ...]
    warnings: tuple[Warned, ...]
    results: tuple[RunResult, ...]
    timing: dict[str, float]


def configure(ask: Ask) -> tuple[Profile, ResolvedConfig]:
    """The profile, and the engine as vLLM would run it."""
    profile = load_profile(ask.profile)
    return profile, resolve(ask.flags, profile.engine_args())


def run(ask: Ask, *, keep: bool, progress: Callable[[int], Progress] | None = None) -> Answer:
    """Answer `ask`; `progress` is told the turns of all runs once known, and then how far they are."""
    imported = since_process_start()
    profile, resolved = configure(ask)
    trace = load_trace(ask.traces, **ask.loading)
    fleet = replace(ask.fleet, front_end=profile.front_end)
    if fleet.loop is None and fleet.sessions is None:
        fleet = replace(fleet, loop="open" if trace.open_loop else "closed")
    price = ask.price_usd_per_hour if ask.price_usd_per_hour is not None else profile.price_usd_per_hour
    task = ask.task or mean_session(trace.sessions, resolved.config.max_model_len)
    loaded = since_process_start()

    study = Study(trace.sessions, resolved.config, profile.to_step_time(), fleet, ask.seed)
    turns = sum(len(session.turns) for session in trace.sessions)
    rows: list[ReplayRow] = []
    results: list[RunResult] = []
    run_warnings: list[tuple[int, Warned]] = []
    finished, simulate_s = 0, 0.0
    runs = replay(study, ask.replica_counts, jobs=ask.jobs, progress=progress(turns) if progress else None)
    while True:
        started = since_process_start()
        result = next(runs, None)
        simulate_s += since_process_start() - started
        if result is None:
            break
        fleet = result.fleet if not rows else fleet
        rows.append(summarise(result, price, task))
        run_warnings += [(result.fleet.replicas, Warned(w.code, w.text)) for w in result.warnings]
        finished += result.counts.finished
        if keep:
            results.append(result)
    if all(row.requests_submitted and row.requests_rejected == row.requests_submitted for row in rows):
        raise InputError(
            f"every request is longer than max_model_len ({resolved.config.max_model_len:,} tokens)",
            remedy="Give a larger --max-model-len, or leave out long sessions.",
        )
    warnings = (
        *_input_warnings(profile, resolved, trace),
        *_merged(run_warnings, len(rows)),
        *_few_samples(rows),
        *_short(ask, rows),
    )
    timing = {
        "simulated_requests": finished,
        "import_s": imported,
        "load_s": loaded - imported,
        "simulate_s": simulate_s,
    }
    return Answer(ask, profile, resolved, trace, fleet, task, tuple(rows), warnings, tuple(results), timing)


def _input_warnings(profile: Profile, resolved: ResolvedConfig, trace: LoadedTrace) -> Iterable[Warned]:
    report = trace.report
    for text in resolved.warnings:
        yield Warned("config", text)
    if profile.status != "calibrated":
        yield Warned(profile.status, f"profile {profile.name} is {profile.status}: its error is not known")
    if report.dropped:
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in sorted(report.dropped.items()))
        yield Warned(
            "dropped-rows",
            f"{report.dropped.total():,} of {report.rows_read:,} rows dropped: {reasons}",
        )
    if report.estimated_outputs:
        yield Warned(
            "estimated-outputs",
            f"the output length of {plural(report.estimated_outputs, 'request')} is estimated",
        )


def _merged(warnings: Sequence[tuple[int, Warned]], runs: int) -> Iterable[Warned]:
    """Each warning once; those that not all runs have name their replica counts."""
    counts: dict[Warned, list[int]] = {}
    for replicas, warned in warnings:
        counts.setdefault(warned, []).append(replicas)
    for warned, of in counts.items():
        whose = "" if len(of) == runs else f"with {_counts(of)}: "
        yield Warned(warned.code, whose + warned.text)


def _short(ask: Ask, rows: Sequence[ReplayRow]) -> Iterable[Warned]:
    warmup = ask.fleet.warmup_s or 0.0
    short = [row.replicas for row in rows if row.window_start_s < warmup]
    if short:
        yield Warned(
            "warm-up", f"with {_counts(short)} the run ended before --warmup {warmup:g}: nothing was left out"
        )


def _counts(replicas: Sequence[int]) -> str:
    return (
        plural(replicas[0], "replica") if len(replicas) == 1 else f"{', '.join(map(str, replicas))} replicas"
    )


def _few_samples(rows: Sequence[ReplayRow]) -> Iterable[Warned]:
    few = [row for row in rows if not row.ttft_p90_s.has_interval]
    if few:
        yield Warned(
            "few-samples",
            f"too few independent requests for a 95% range of TTFT p90 with "
            f"{_counts([row.replicas for row in few])} "
            "(at least 36, and more where requests of a session are alike)",
        )


def document(reply: Answer) -> str:
    """The JSON document; call it last, its `wall_s` ends there."""
    ask, report = reply.ask, reply.trace.report
    return dumps(
        {
            "schema": REPLAY_SCHEMA,
            "tool": {"name": "replicast", "version": __version__},
            "inputs": report.inputs,
            "import": {
                "format": report.format,
                "rows_read": report.rows_read,
                "rows_emitted": report.rows_emitted,
                "dropped": dict(sorted(report.dropped.items())),
                "estimated_outputs": report.estimated_outputs,
                "flags": dict(sorted(report.flags.items())),
                "notes": report.notes,
            },
            "config": {
                "replicas": ask.replica_counts,
                "profile": {
                    "name": reply.profile.name,
                    "status": reply.profile.status,
                    "source": reply.profile.source,
                    "model": reply.profile.model,
                    "gpu": reply.profile.gpu,
                    "step_time": reply.profile.step_time._asdict(),
                },
                "vllm_version": reply.resolved.vllm_version,
                "engine": reply.resolved.config,
                "origins": reply.resolved.origins,
                "fleet": {k: v for k, v in asdict(reply.fleet).items() if k not in ("replicas", "sessions")},
                "sessions": ask.fleet.sessions,
                "trace": {k: v for k, v in ask.loading.items() if k != "seed"},
                "price_usd_per_hour_per_replica": ask.price_usd_per_hour
                if ask.price_usd_per_hour is not None
                else reply.profile.price_usd_per_hour,
                "task_tokens": reply.task._asdict() if reply.task else None,
                "task_of": "flag" if ask.task else "mean session of the trace, refused requests left out",
            },
            "seed": ask.seed,
            "rows": [row_object(row) for row in reply.rows],
            "warnings": reply.warnings,
            "timing": {**reply.timing, "wall_s": since_process_start()},
        }
    )


def assumptions(reply: Answer) -> list[str]:
    """What the answer rests on, in a few lines."""
    ask, fleet, report, sessions = reply.ask, reply.fleet, reply.trace.report, reply.trace.sessions
    turns = sum(len(session.turns) for session in sessions)
    if fleet.loop != "closed":
        live = f"{fleet.loop} loop at recorded arrivals"
    elif ask.fleet.sessions is not None:
        live = f"closed loop, {plural(ask.fleet.sessions, 'session')} live"
    else:
        live = "closed loop, 10 sessions a replica live"
    capped = fleet.loop != "open" and fleet.think_cap_s is not None
    think = f"human gaps capped at {fleet.think_cap_s:g} s, " if capped else ""
    reuse = "reused" if ask.loading.get("reply_reuse", True) else "not reused"
    engine = reply.resolved.config
    lines = [
        f"{plural(len(sessions), 'session')}, {plural(turns, 'request')} ({report.format}); {live}; "
        f"router {fleet.router}; seed {ask.seed}",
        f"{think}replies {reuse}, over-length requests: {fleet.over_length}",
        f"{reply.profile.name} ({reply.profile.status}), vLLM {reply.resolved.vllm_version}, "
        f"{engine.num_gpu_blocks:,} blocks of {engine.block_size}, budget {engine.max_num_batched_tokens:,}, "
        f"seats {engine.max_num_seqs:,}, longest {engine.max_model_len:,}",
        *_windows(reply.rows),
    ]
    return lines + list(report.notes)


def _windows(rows: Sequence[ReplayRow]) -> Iterable[str]:
    """Which part of each run is measured, and why, runs with the same rules together."""
    rules: dict[tuple[str, str], list[ReplayRow]] = {}
    for row in rows:
        rules.setdefault((row.window_start_rule, row.window_end_rule), []).append(row)
    for (start, end), of in rules.items():
        whose = "" if len(of) == len(rows) else f" with {_counts([row.replicas for row in of])}"
        spans = ", ".join(f"{row.window_start_s:,.0f} to {row.window_end_s:,.0f} s" for row in of)
        yield f"measured{whose}: {spans} (start: {start}; end: {end})"


def text(reply: Answer, *, quiet: bool = False) -> str:
    """The answer as printed."""
    parts = [answer(reply.rows)]
    if not quiet:
        parts.append("\n".join(assumptions(reply)))
    parts += [waiting_table(reply.rows), serving_table(reply.rows)]
    if not quiet:
        parts.append(f"{MODEL_NOTE} ({reply.profile.status}).")
    return "\n\n".join(parts) + "\n"


def write_files(reply: Answer, folder: Path) -> list[Path]:
    """Records, figure and the printed text; the document is written last, by the command."""
    from replicast.sim.report.figures import replay_figure, write_figure
    from replicast.sim.report.records import write_records

    written = write_records(reply.results, folder)
    figure = replay_figure(reply.rows, f"{reply.profile.name}, router {reply.fleet.router}")
    for path in (folder / "replay.svg", folder / "replay.png"):
        write_figure(figure, path)
        written.append(path)
    write_text(folder / "replay.txt", text(reply))
    return [*written, folder / "replay.txt"]
