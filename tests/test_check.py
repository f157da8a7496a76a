"""The verdict, and how it is shown: text, document, log."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from replicast.calibration.check import LAWS, CheckResult, check_sweep, usable_levels
from replicast.calibration.generate import CollectorSession, Scrape, write_collector_db
from replicast.calibration.laws.findings import Answer, Case, Finding
from replicast.calibration.profile import load_profile
from replicast.calibration.readers.detect import read_sweep
from replicast.calibration.server import server_facts
from replicast.calibration.server_counters import ServerCounters
from replicast.calibration.sweep import Gauge, Given, Histogram, Sweep, SweepLevel
from replicast.sim.errors import InputError
from replicast.sim.report.check import add_to_log, answer, check_document, check_text, log_entry
from replicast.sim.report.document import dumps
from sweep_bed import LEAD_S, Bed, run


def sweep(*loads: int) -> Sweep:
    levels = tuple(
        SweepLevel(
            concurrency=c,
            name=f"m_c{c}",
            window_s=600.0,
            load_s=600.0,
            prompt_tokens=6e6,
            generated_tokens=6e4,
            running=Gauge(0.9 * c, float(c)),
            waiting=Gauge(0.0, 0.0),
            ttft=Histogram(given_mean=1.0),
            tpot=Histogram(given_mean=0.008 * c),
        )
        for c in loads
    )
    return Sweep(
        "s.json", "performance-summary", levels, model="m", given=Given(gpu="H200", max_num_seqs=256)
    )


def judged(monkeypatch: pytest.MonkeyPatch, *found: tuple[str, int | None]) -> str:
    """The verdict on four levels where the laws find this."""
    findings = tuple(Finding(1, "x", s, "t", (), "r", at) for s, at in found)  # type: ignore[arg-type]

    def law(case: Case) -> Answer:
        return Answer(findings)

    monkeypatch.setattr("replicast.calibration.check.LAWS", {1: law})
    return check_sweep(sweep(1, 2, 5, 10)).verdict


def test_verdict_follows_from_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(monkeypatch) == "usable"
    assert judged(monkeypatch, ("note", None)) == "usable"
    assert judged(monkeypatch, ("warn", 1)) == "usable-with-care"
    assert judged(monkeypatch, ("fail", 1), ("fail", 1)) == "usable-with-care"
    assert judged(monkeypatch, ("fail", 1), ("fail", 2)) == "usable-with-care"
    assert judged(monkeypatch, ("fail", 1), ("fail", 2), ("fail", 3)) == "not-usable"
    assert judged(monkeypatch, ("fail", None)) == "not-usable"


def test_first_line_is_the_answer() -> None:
    good = check_sweep(sweep(1, 5, 10))
    assert answer(good) == "Usable: all 3 levels hold."
    assert answer(check_sweep(sweep(5, 10))) == "Usable with care (0 levels left out): mind baseline."
    dead = replace(sweep(1, 5, 10).levels[1], generated_tokens=0.0, tpot=None, ttft=None)
    care = check_sweep(replace(sweep(1, 5, 10), levels=(sweep(1).levels[0], dead, sweep(10).levels[0])))
    assert answer(care).startswith("Usable with care (1 level left out): c=5 fails")
    text = check_text(care)
    assert text.splitlines()[0] == answer(care)
    assert text.splitlines()[-1] == "Next: replicast calibrate s.json --levels 1,10 --out profile.toml"


def test_usable_levels_refuse_and_leave_out() -> None:
    flat = tuple(replace(level, running=Gauge(40.0, 45.0)) for level in sweep(2, 5, 10, 20).levels)
    bad = check_sweep(replace(sweep(2), levels=flat))
    assert answer(bad) == "Not usable: 4 of 4 levels fail. Do not calibrate on this sweep."
    assert check_text(bad).splitlines()[-1] == "Next: replicast check NEW_SWEEP   (exit 3)"
    with pytest.raises(InputError, match="not usable"):
        usable_levels(bad)
    good = check_sweep(sweep(1, 5, 10))
    assert usable_levels(good) == good.sweep


def test_document_holds_no_nan_and_all_findings() -> None:
    result = check_sweep(sweep(5, 10), parallel_per_session=2)
    document = json.loads(dumps(check_document(result)))
    assert document["schema"] == "replicast/check/1"
    assert document["verdict"] == "usable-with-care"
    assert document["config"]["parallel_per_session"] == 2
    assert document["config"]["laws"] == list(LAWS)
    assert len(document["findings"]) == len(result.findings)
    assert {"law", "check", "severity", "level", "text", "evidence", "remedy"} <= set(document["findings"][0])


def test_a_law_can_be_left_out() -> None:
    assert check_sweep(sweep(5, 10), without=(1,)).verdict == "usable"


def test_log_has_the_newest_on_top(tmp_path: Path) -> None:
    path = tmp_path / "findings.md"
    add_to_log(path, log_entry(check_sweep(sweep(1, 5, 10)), "2026-09-01"))
    add_to_log(path, log_entry(check_sweep(sweep(5, 10)), "2026-09-02"))
    lines = path.read_text().splitlines()
    assert lines[0] == "# Findings"
    assert [line for line in lines if line.startswith("## ")] == [
        "## 2026-09-02: m on H200",
        "## 2026-09-01: m on H200",
    ]
    assert "Settings: gpu=H200, max_num_seqs=256." in lines
    assert any(line.startswith("- WARN (law 1)") for line in lines)
    kept = tmp_path / "own.md"
    kept.write_text("# Ours\n\nAbout this file.\n\n## 2026-01-01: old\n\nText.\n")
    add_to_log(kept, "## new\n")
    assert kept.read_text() == "# Ours\n\nAbout this file.\n\n## new\n\n## 2026-01-01: old\n\nText.\n"


def test_another_models_sweep_is_not_compared_with() -> None:
    one = replace(sweep(1, 2, 5), model="Org/Alpha-7B")
    other = replace(sweep(1, 2, 5), source="beta.json", model="beta")
    with pytest.raises(InputError, match=r"beta\.json: no level of Org/Alpha-7B in it: its model is beta"):
        check_sweep(one, against=other)
    assert check_sweep(one, against=replace(one, model="alpha-7b-fp8")).ok


def test_more_gpus_than_share_a_model_are_refused() -> None:
    one = sweep(1, 2, 5)
    many = replace(one, given=replace(one.given, tensor_parallel_size=1_000_000))
    for use in (check_sweep, server_facts):
        with pytest.raises(InputError, match=r"s\.json: tensor_parallel_size is 1,000,000, and 16 H200"):
            use(many)


def test_absurd_figures_are_no_measurements() -> None:
    whole = sweep(1, 2, 5)
    first, *rest = whole.levels
    absurd = replace(first, ttft=Histogram(given_mean=1e300), given_output_tokens_per_s=1e300)
    result = check_sweep(replace(whole, levels=(absurd, *rest)))
    assert result.left_out[0] == 0
    text = check_text(result)
    assert "no measurement: ttft_mean_s 1e+300, output_tokens_per_s 1e+300" in " ".join(text.split())
    assert max(map(len, text.splitlines())) < 200


def test_impossible_parallelism_is_refused() -> None:
    with pytest.raises(InputError, match="0 parallel requests"):
        check_sweep(sweep(1), parallel_per_session=0)


def test_a_profile_that_cannot_predict_the_sweep_is_said() -> None:
    result = check_sweep(sweep(1, 5), profile=load_profile("qwen3.6-35b-h200"))
    assert any(f.law == 12 for f in result.findings)


# From the collector's database

EVERY_S = 10
BED = Bed(turns=25, new_tokens=2_500.0)


def collected(
    concurrency: int, start_s: float, counters: ServerCounters, restart_s: float | None = None
) -> CollectorSession:
    """What the collector keeps of a simulated level, on top of what the server has counted before."""
    records = run(BED, concurrency, 5).records
    queued = records.arrival_s + records.front_end_s + records.input_wait_s
    scheduled, first = queued + records.queue_s, queued + records.queue_s + records.prefill_s
    events = []
    for i in range(len(records)):
        if first[i] == first[i]:
            events.append((float(first[i]), 0, i))
        if records.finished[i]:
            events.append((float(first[i] + records.decode_s[i]), 1, i))
    events.sort()
    scrapes, at, restarted = [], 0, False
    for t in range(0, 720, EVERY_S):
        now = t - LEAD_S
        while at < len(events) and events[at][0] <= now:
            _, kind, i = events[at]
            prompt, cached = int(records.prompt_tokens[i]), int(records.cached_tokens[i])
            output = int(records.output_tokens[i])
            if kind == 0:
                counters.looked_up(prompt, cached)
                counters.first_token(
                    prompt_tokens=prompt, cached_tokens=cached, ttft_s=float(records.ttft_s[i])
                )
                counters.step(computed_tokens=prompt - cached, generated_tokens=output)
            else:
                counters.finish(
                    reason="stop",
                    prompt_tokens=prompt,
                    cached_tokens=cached,
                    output_tokens=output,
                    queue_s=float(records.queue_s[i]),
                    prefill_s=float(records.prefill_s[i]),
                    decode_s=float(records.decode_s[i]),
                    e2e_s=float(records.e2e_s[i]),
                )
            at += 1
        if restart_s is not None and now >= restart_s and not restarted:
            counters, restarted = ServerCounters(), True
        ends = [
            float(first[i] + records.decode_s[i]) if records.finished[i] else 600.0
            for i in range(len(records))
        ]
        runs = sum(scheduled[i] <= now < ends[i] for i in range(len(records)))
        waits = sum(queued[i] <= now < scheduled[i] for i in range(len(records)))
        state = counters.snapshot(running=int(runs), waiting=int(waits), kv_usage=0.02 * int(runs))
        scrapes.append(Scrape(at_s=start_s + t, engines=(state,)))
    return CollectorSession(concurrency, tuple(scrapes))


def database(path: Path, restart_s: float | None = None) -> Path:
    counters = ServerCounters()
    sessions = [
        collected(c, 1.7e9 + 800 * n, counters, restart_s if c == 5 else None)
        for n, c in enumerate((1, 2, 5, 10))
    ]
    write_collector_db(path, sessions, model="m", interval_s=float(EVERY_S))
    return path


def test_a_clean_database_is_usable(tmp_path: Path) -> None:
    result = check_sweep(read_sweep(database(tmp_path / "clean.duckdb")))
    assert result.verdict == "usable", [f.text for f in result.findings if f.severity != "note"]


def test_a_restart_in_a_database_leaves_its_level_out(tmp_path: Path) -> None:
    result = check_sweep(read_sweep(database(tmp_path / "restart.duckdb", restart_s=250.0)))
    assert result.verdict == "usable-with-care"
    assert [result.labels()[i] for i in result.left_out] == ["c=5"]
    assert [f.law for f in result.of("fail")] == [7]


def altered(folder: Path, alter: Callable[[CollectorSession], CollectorSession]) -> CheckResult:
    """The verdict on a database whose level of five sessions was recorded otherwise."""
    counters = ServerCounters()
    sessions = [collected(c, 1.7e9 + 800 * n, counters) for n, c in enumerate((1, 2, 5, 10))]
    path = folder / "sweep.duckdb"
    write_collector_db(
        path, [*sessions[:2], alter(sessions[2]), sessions[3]], model="m", interval_s=float(EVERY_S)
    )
    return check_sweep(read_sweep(path))


def test_a_killed_server_in_a_database(tmp_path: Path) -> None:
    def die(session: CollectorSession) -> CollectorSession:
        dead = [replace(scrape, engines=(), error="refused") for scrape in session.scrapes[30:]]
        return replace(session, scrapes=(*session.scrapes[:30], *dead))

    result = altered(tmp_path, die)
    assert [result.labels()[i] for i in result.left_out] == ["c=5"]
    assert {f.law for f in result.of("fail")} == {7}


def test_a_clock_that_jumps_in_a_database(tmp_path: Path) -> None:
    def jump(session: CollectorSession) -> CollectorSession:
        late = [replace(scrape, at_s=scrape.at_s + 70.0) for scrape in session.scrapes[40:]]
        return replace(session, scrapes=(*session.scrapes[:40], *late))

    result = altered(tmp_path, jump)
    assert any(f.law == 7 and f.level == 2 and f.severity in ("fail", "warn") for f in result.findings)


def test_a_queue_that_nobody_serves_in_a_database(tmp_path: Path) -> None:
    def stuck(session: CollectorSession) -> CollectorSession:
        scrapes = []
        for scrape in session.scrapes:
            gauges = dict(scrape.engines[0].gauges)
            gauges["num_requests_waiting"] = float(gauges["num_requests_waiting"]) + 28.0  # type: ignore[arg-type]
            scrapes.append(replace(scrape, engines=(replace(scrape.engines[0], gauges=gauges),)))
        return replace(session, scrapes=tuple(scrapes))

    result = altered(tmp_path, stuck)
    assert [result.labels()[i] for i in result.left_out] == ["c=5"]
    assert {2, 3} <= {f.law for f in result.of("fail")}


def test_the_worked_example_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).resolve().parents[1] / "docs" / "check.md").read_text(encoding="utf-8")
    table = re.search(r"```csv\n(.*?)```", text, re.DOTALL)
    shown = re.search(r"```console\n\$ replicast check run2\.csv [^\n]*\n(.*?)```", text, re.DOTALL)
    assert table
    assert shown
    monkeypatch.chdir(tmp_path)
    Path("run2.csv").write_text(table[1], encoding="utf-8")
    result = check_sweep(read_sweep("run2.csv", given=Given(kv_pool_tokens=400_000)), parallel_per_session=1)
    assert check_text(result) + "\n" == shown[1]
