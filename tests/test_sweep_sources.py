"""Sources of counters: the collector's database, its export, Prometheus snapshots and range exports.

One simulated history is written in every form; all must read as the same sweep.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from replicast.calibration.buckets import REQUEST_EDGES_S, TTFT_EDGES_S, bin_values
from replicast.calibration.generate import (
    CollectorSession,
    EngineState,
    Scrape,
    exposition,
    samples_of,
    write_collector_db,
)
from replicast.calibration.readers.detect import read_sweep
from replicast.calibration.server_counters import ServerCounters
from replicast.calibration.sweep import Sweep, SweepLevel
from replicast.sim.errors import InputError

duckdb = pytest.importorskip("duckdb")
CONFIG = {"block_size": "16", "num_gpu_blocks": "2001", "enable_prefix_caching": "True", "cache_dtype": "fp8"}
T0 = 1_785_000_000.0


def some_load(counters: ServerCounters, rng: np.random.Generator) -> dict[str, float]:
    """One request's whole life, counted; what it was."""
    prompt, output = int(rng.integers(100, 50_000)), int(rng.integers(2, 900))
    cached = int(prompt * rng.random())
    queue, prefill, decode = (float(x) for x in rng.exponential((0.4, 2.0, 12.0)))
    counters.looked_up(prompt, cached)
    counters.first_token(prompt_tokens=prompt, cached_tokens=cached, ttft_s=queue + prefill + 0.03)
    counters.step(computed_tokens=prompt - cached, generated_tokens=1)
    counters.step(
        computed_tokens=0, generated_tokens=output - 1, itl_s=[decode / (output - 1)] * (output - 1)
    )
    counters.finish(
        reason="stop", prompt_tokens=prompt, cached_tokens=cached, output_tokens=output, queue_s=queue,
        prefill_s=prefill, decode_s=decode, e2e_s=queue + prefill + decode + 0.03,
    )  # fmt: skip
    return {
        "prompt": prompt,
        "cached": cached,
        "output": output,
        "queue": queue,
        "ttft": queue + prefill + 0.03,
    }


def session(
    concurrency: int,
    counters: ServerCounters,
    rng: np.random.Generator,
    *,
    start_s: float,
    scrapes: int = 12,
    gap_s: float = 1.0,
    name: str | None = None,
) -> tuple[CollectorSession, list[dict[str, float]]]:
    """A collector session over some load, and the requests that it saw."""
    taken = [Scrape(start_s, (counters.snapshot(running=0, waiting=0, kv_usage=0.0),))]
    requests = []
    for n in range(1, scrapes):
        requests += [some_load(counters, rng) for _ in range(int(rng.integers(0, 3)))]
        state = counters.snapshot(running=concurrency, waiting=n % 2, kv_usage=n / 100)
        taken.append(Scrape(start_s + n * gap_s, (state,)))
    return CollectorSession(concurrency, tuple(taken), name=name), requests


def two_levels(seed: int = 1) -> tuple[list[CollectorSession], list[list[dict[str, float]]]]:
    counters, rng = ServerCounters(), np.random.default_rng(seed)
    for _ in range(5):
        some_load(counters, rng)  # before the sweep: must not count
    first, seen_first = session(1, counters, rng, start_s=T0)
    second, seen_second = session(5, counters, rng, start_s=T0 + 100)
    return [first, second], [seen_first, seen_second]


def assert_counts(level: SweepLevel, requests: list[dict[str, float]]) -> None:
    """The level holds exactly what the requests were."""
    assert level.requests_finished == level.first_tokens == len(requests)
    assert level.prompt_tokens == sum(r["prompt"] for r in requests)
    assert level.cached_tokens == sum(r["cached"] for r in requests)
    assert level.generated_tokens == sum(r["output"] for r in requests)
    assert level.ttft is not None
    assert level.queue is not None
    assert level.iteration_tokens is not None
    assert level.computed_per_request is not None
    assert level.ttft.sum == pytest.approx(sum(r["ttft"] for r in requests))
    assert level.ttft.counts == bin_values([r["ttft"] for r in requests], TTFT_EDGES_S)
    assert level.ttft.edges == TTFT_EDGES_S
    assert level.queue.counts == bin_values([r["queue"] for r in requests], REQUEST_EDGES_S)
    computed = sum(r["prompt"] - r["cached"] for r in requests)
    assert level.iteration_tokens.sum == computed + level.generated_tokens
    assert level.computed_tokens == level.computed_per_request.sum == computed
    assert dict(level.prompt_tokens_by_source)["local_compute"] == computed


def write(path: Path, sessions: list[CollectorSession], **more: object) -> Path:
    write_collector_db(path, sessions, model="m", model_name="org/M", config=CONFIG, **more)  # type: ignore[arg-type]
    return path


def test_generated_database_reads_back(tmp_path: Path) -> None:
    sessions, seen = two_levels()
    path = write(tmp_path / "a.duckdb", sessions)
    sweep = read_sweep(path)
    assert sweep.format == "duckdb-collector"
    assert (sweep.model, sweep.given.model, sweep.given.num_gpu_blocks) == ("m", "org/M", 2001)
    assert sweep.given.kv_cache_dtype == "fp8"
    assert [level.concurrency for level in sweep.levels] == [1, 5]
    for level, requests in zip(sweep.levels, seen, strict=True):
        assert_counts(level, requests)
        assert (level.window_s, level.scrapes, level.scrapes_failed, level.resets) == (11.0, 12, 0, 0)
        assert level.waiting is not None
        assert level.waiting.times_s == tuple(float(n) for n in range(12))
        assert level.waiting.values == (0.0, *(float(n % 2) for n in range(1, 12)))
        assert dict(level.waiting_by_reason)["capacity"].peak == 1.0
    assert sweep.notes == ()
    assert sweep.dropped == ()


def test_same_sessions_same_rows(tmp_path: Path) -> None:
    rows = []
    for name in ("a", "b"):
        path = write(tmp_path / f"{name}.duckdb", two_levels()[0])
        with duckdb.connect(str(path), read_only=True) as connection:
            rows.append(
                [
                    connection.execute(f"SELECT * FROM {table} ORDER BY ALL").fetchall()
                    for table in ("metric_samples", "vllm_metric_deltas")
                ]
            )
    assert rows[0] == rows[1]


def test_failed_scrapes_are_counted(tmp_path: Path) -> None:
    sessions, seen = two_levels()
    broken = [
        replace(scrape, engines=(), error="timed out") if n in (3, 4) else scrape
        for n, scrape in enumerate(sessions[0].scrapes)
    ]
    sweep = read_sweep(
        write(tmp_path / "a.duckdb", [replace(sessions[0], scrapes=tuple(broken)), sessions[1]])
    )
    assert_counts(sweep.levels[0], seen[0])
    assert (sweep.levels[0].scrapes, sweep.levels[0].scrapes_failed) == (10, 2)
    assert sweep.levels[0].largest_gap_s == 3.0
    assert "2 of 12 scrapes failed" in sweep.levels[0].notes


def test_a_restart_is_counted_from_zero(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    before, after = ServerCounters(), ServerCounters()
    for _ in range(20):
        some_load(before, rng)
    first, seen_first = session(1, before, rng, start_s=T0, scrapes=8)
    seen_after = [some_load(after, rng)]  # counted between the restart and its first scrape
    second, more = session(1, after, rng, start_s=T0 + 8, scrapes=8)
    joined = CollectorSession(1, first.scrapes + second.scrapes)
    level = read_sweep(write(tmp_path / "a.duckdb", [joined])).levels[0]
    assert_counts(level, seen_first + seen_after + more)
    assert level.resets == 1
    assert level.reset_times_s == (8.0,)
    assert any("restarted" in note for note in level.notes)


def test_repeated_levels_add_up(tmp_path: Path) -> None:
    counters, rng = ServerCounters(), np.random.default_rng(4)
    first, seen_first = session(2, counters, rng, start_s=T0)
    some_load(counters, rng)  # between the two: nobody's
    second, seen_second = session(2, counters, rng, start_s=T0 + 500)
    sweep = read_sweep(write(tmp_path / "a.duckdb", [first, second]))
    level = sweep.levels[0]
    assert_counts(level, seen_first + seen_second)
    assert (level.sessions, level.window_s, len(level.repeats)) == (2, 22.0, 2)
    assert_counts(level.repeats[1], seen_second)


def test_two_collectors_at_once_do_not_count_twice(tmp_path: Path) -> None:
    sessions, seen = two_levels()
    short = replace(sessions[0], scrapes=sessions[0].scrapes[2:8])
    sweep = read_sweep(write(tmp_path / "a.duckdb", [sessions[0], short, sessions[1]]))
    assert_counts(sweep.levels[0], seen[0])
    assert sweep.dropped == (("sessions that overlap another of the same name", 1),)


def test_engines_add_up(tmp_path: Path) -> None:
    (a, _), (seen_a, _) = two_levels(1)
    (b, _), (seen_b, _) = two_levels(2)
    both = tuple(replace(x, engines=x.engines + y.engines) for x, y in zip(a.scrapes, b.scrapes, strict=True))
    sweep = read_sweep(write(tmp_path / "a.duckdb", [CollectorSession(1, both)]))
    level = sweep.levels[0]
    assert_counts(level, seen_a + seen_b)
    assert level.engines == 2
    assert level.running is not None
    assert level.kv_usage is not None
    assert level.running.peak == 2.0
    assert level.kv_usage.peak == 0.11
    assert any("2 engines are added" in note for note in sweep.notes)


def test_several_models_in_one_file(tmp_path: Path) -> None:
    sessions, seen = two_levels()
    other, _ = session(1, ServerCounters(), np.random.default_rng(5), start_s=T0 + 900, name="other_c1")
    path = write(tmp_path / "a.duckdb", [*sessions, other])
    with pytest.raises(InputError, match="sweeps of 2 models: m, other"):
        read_sweep(path)
    with pytest.raises(InputError, match=r"(?s)no model x in this file.*models here: m, other, org/M"):
        read_sweep(path, model="x")
    assert_counts(read_sweep(path, model="m").levels[0], seen[0])


def test_other_sessions_are_left_out_and_counted(tmp_path: Path) -> None:
    sessions, _ = two_levels()
    warm_up = replace(sessions[0], name="warm-up")
    dead = CollectorSession(7, sessions[0].scrapes[:1])
    sweep = read_sweep(write(tmp_path / "a.duckdb", [*sessions, warm_up, dead]))
    assert dict(sweep.dropped) == {
        "sessions not named <model>_c<N>": 1,
        "sessions with fewer than two successful scrapes": 1,
    }


@pytest.mark.parametrize(
    ("scrapes", "busy_until", "load_s"),
    [
        (720, 601, 600.0),
        (720, 580, 600.0),
        (720, 719, 600.0),
        (420, 302, 300.0),
        (91, 70, 70.0),
        (60, 59, 59.0),
    ],
)
def test_load_ends_where_the_server_falls_idle(
    tmp_path: Path, scrapes: int, busy_until: int, load_s: float
) -> None:
    gauges = [
        {"num_requests_running": float(n <= busy_until), "num_requests_waiting": 0.0} for n in range(scrapes)
    ]
    taken = tuple(Scrape(T0 + n, (EngineState(gauges=one),)) for n, one in enumerate(gauges))
    level = read_sweep(write(tmp_path / "a.duckdb", [CollectorSession(1, taken)])).levels[0]
    assert level.load_s == load_s
    assert level.derived == ("load_s",)


def test_a_level_without_requests_is_read_and_said(tmp_path: Path) -> None:
    silent = ServerCounters().snapshot(running=0, waiting=0, kv_usage=0.0)
    dead = CollectorSession(1, tuple(Scrape(T0 + n, (silent,)) for n in range(5)))
    sweep = read_sweep(write(tmp_path / "a.duckdb", [dead]))
    assert sweep.levels[0].unusable == "no request got a token"
    with pytest.raises(InputError, match="0 usable levels of 1"):
        sweep.usable_levels()


def test_nan_and_missing_histograms(tmp_path: Path) -> None:
    sessions, seen = two_levels()

    def thin(state: EngineState, n: int) -> EngineState:
        histograms = {k: v for k, v in state.histograms.items() if "queue" not in k}
        gauges = {**state.gauges, "kv_cache_usage_perc": float("nan") if n == 4 else 0.5}
        return replace(state, histograms=histograms, gauges=gauges)

    scrapes = [replace(s, engines=(thin(s.engines[0], n),)) for n, s in enumerate(sessions[0].scrapes)]
    sweep = read_sweep(write(tmp_path / "a.duckdb", [replace(sessions[0], scrapes=tuple(scrapes))]))
    level = sweep.levels[0]
    assert level.queue is None
    assert level.generated_tokens == sum(r["output"] for r in seen[0])
    assert level.kv_usage is not None
    assert len(level.kv_usage.values) == 11
    assert dict(sweep.dropped) == {"samples that are not finite": 1}


def test_different_servers_in_one_file_are_noted(tmp_path: Path) -> None:
    sessions, _ = two_levels()
    path = write(tmp_path / "a.duckdb", sessions)
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "UPDATE metric_samples SET labels = replace(CAST(labels AS VARCHAR), '2001', '4001') "
            "WHERE metric = 'vllm:cache_config_info' AND scrape_id > 12"
        )
    sweep = read_sweep(path)
    assert sweep.given.num_gpu_blocks is None
    assert any("num_gpu_blocks changed within the file (2001, 4001)" in note for note in sweep.notes)


def test_export_folder_reads_like_the_database(tmp_path: Path) -> None:
    sessions, seen = two_levels()
    path = write(tmp_path / "a.duckdb", sessions)
    for kind in ("csv", "parquet"):
        folder = tmp_path / kind
        with duckdb.connect(str(path), read_only=True) as connection:
            connection.execute(f"EXPORT DATABASE '{folder}' (FORMAT {kind})")
        sweep = read_sweep(folder)
        for level, requests in zip(sweep.levels, seen, strict=True):
            assert_counts(level, requests)


def test_locked_database(tmp_path: Path) -> None:
    path = write(tmp_path / "a.duckdb", two_levels()[0])
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        holder.stdout.readline()
        with pytest.raises(InputError, match=r"(?s)locked by another process.*copy the file"):
            read_sweep(path)
        holder.stdin.close()


@pytest.mark.parametrize("keep", [0, 6, 5000, 30_000])
def test_half_written_database(tmp_path: Path, keep: int) -> None:
    path = write(tmp_path / "a.duckdb", two_levels()[0])
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"(?s)a\.duckdb.*(half-written|empty)"):
        read_sweep(path)


def test_damaged_database_is_not_called_locked(tmp_path: Path) -> None:
    path = write(tmp_path / "a.duckdb", two_levels()[0])
    data = bytearray(path.read_bytes())
    for at in range(8200, len(data), 5000):
        data[at] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(InputError, match=r"not a readable DuckDB database|cannot be read to its end"):
        read_sweep(path)


def test_unwritten_log_of_a_killed_collector_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.duckdb", two_levels()[0])
    code = (
        "import duckdb, os, sys; c = duckdb.connect(sys.argv[1]); "
        'c.execute("UPDATE collector_sessions SET stopped_at = NULL"); os._exit(9)'
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert (tmp_path / "a.duckdb.wal").exists()
    assert all("never closed" in level.notes[0] for level in read_sweep(path).levels)


def test_database_of_another_schema(tmp_path: Path) -> None:
    path = tmp_path / "a.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE metric_scrapes(scrape_id BIGINT)")
    with pytest.raises(InputError, match="there is no table collector_sessions"):
        read_sweep(path)


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.duckdb", two_levels()[0])
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(InputError, match=r"replicast\[sweep\]"):
        read_sweep(path)


def test_an_unwritable_target_leaves_nothing(tmp_path: Path) -> None:
    sessions, _ = two_levels()
    bad = replace(sessions[0].scrapes[0].engines[0].histograms["iteration_tokens_total"], counts=(1.0,))
    state = replace(sessions[0].scrapes[0].engines[0], histograms={"iteration_tokens_total": bad})
    with pytest.raises(ValueError, match="14 buckets, not 1"):
        write(tmp_path / "a.duckdb", [CollectorSession(1, (Scrape(T0, (state,)),))])
    assert list(tmp_path.iterdir()) == []


# Prometheus


def page(scrape: Scrape) -> str:
    return exposition(samples_of(scrape.engines[0], model_name="org/M", config=CONFIG))


def as_files(folder: Path, sessions: list[CollectorSession]) -> Path:
    """First and last scrape of each level, times in the names."""
    for one in sessions:
        place = folder / f"c{one.concurrency}"
        place.mkdir(parents=True)
        for scrape in (one.scrapes[0], one.scrapes[-1]):
            (place / f"metrics-{int(scrape.at_s)}.prom").write_text(page(scrape))
    return folder


def as_one_file(folder: Path, sessions: list[CollectorSession]) -> Path:
    """All scrapes of a level in one file, with a line before each."""
    folder.mkdir()
    for one in sessions:
        text = "".join(f"# scraped_at {s.at_s}\n{page(s)}" for s in one.scrapes)
        (folder / f"m_c{one.concurrency}.txt").write_text(text)
    return folder


def as_ranges(folder: Path, sessions: list[CollectorSession]) -> Path:
    """The HTTP API's matrix, and a manifest of the levels."""
    folder.mkdir()
    series: dict[str, dict[str, object]] = {}
    for one in sessions:
        for scrape in one.scrapes:
            for sample in samples_of(scrape.engines[0], model_name="org/M", config=CONFIG):
                key = sample.metric + sample.labels
                labels = {"__name__": sample.metric, "job": "vllm", **json.loads(sample.labels)}
                entry = series.setdefault(key, {"metric": labels, "values": []})
                entry["values"].append([scrape.at_s, str(sample.value)])  # type: ignore[attr-defined]
    rate = {"metric": {"job": "vllm"}, "values": [[T0, "1.5"]]}
    half = len(series) // 2
    for n, part in enumerate((list(series.values())[:half], [*list(series.values())[half:], rate])):
        answer = {"status": "success", "data": {"resultType": "matrix", "result": part}}
        (folder / f"part{n}.json").write_text(json.dumps(answer))
    levels = [
        {"concurrency": s.concurrency, "start": s.scrapes[0].at_s, "stop": s.scrapes[-1].at_s, "load_s": 9.0}
        for s in sessions
    ]
    (folder / "levels.json").write_text(json.dumps({"model": "m", "levels": levels}))
    return folder


@pytest.mark.parametrize("form", [as_files, as_one_file, as_ranges])
def test_prometheus_reads_like_the_database(
    tmp_path: Path, form: Callable[[Path, list[CollectorSession]], Path]
) -> None:
    pytest.importorskip("prometheus_client")
    sessions, seen = two_levels()
    sweep = read_sweep(form(tmp_path / "p", sessions))
    assert sweep.format == "prometheus"
    assert sweep.given.num_gpu_blocks == 2001
    for level, requests in zip(sweep.levels, seen, strict=True):
        assert_counts(level, requests)
        assert level.window_s == 11.0
    if form is as_ranges:
        assert sweep.levels[0].load_s == 9.0
        assert dict(sweep.dropped) == {"series without a name (a result of rate, sum or the like)": 1}


def test_snapshots_without_times_or_levels(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    sessions, seen = two_levels()
    for name, scrape in (("before", sessions[0].scrapes[0]), ("after", sessions[0].scrapes[-1])):
        path = tmp_path / f"{name}.prom"
        path.write_text(page(scrape))
        os.utime(path, (scrape.at_s, scrape.at_s))
    sweep = read_sweep(tmp_path)
    assert sweep.levels[0].concurrency is None
    assert_counts(sweep.levels[0], seen[0])
    assert any("modification times" in note for note in sweep.notes)


def test_restart_between_snapshots(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    counters, rng = ServerCounters(), np.random.default_rng(6)
    for _ in range(9):
        some_load(counters, rng)
    old = counters.snapshot(running=0, waiting=0, kv_usage=0.0)
    fresh = ServerCounters()
    seen = [some_load(fresh, rng)]
    new = fresh.snapshot(running=1, waiting=0, kv_usage=0.1)
    scrapes = (Scrape(T0, (old,)), Scrape(T0 + 60, (new,)))
    sweep = read_sweep(as_files(tmp_path / "p", [CollectorSession(1, scrapes)]))
    assert_counts(sweep.levels[0], seen)
    assert sweep.levels[0].resets == 1


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("c1.prom", "# TYPE vllm:x counter\nvllm:x{ 3\n", "not Prometheus's text format"),
        ("c1.json", '{"status": "error", "error": "too many points"}', "too many points"),
        ("c1.json", '{"status": "success", "data": {"result": []}}', "no raw series of vLLM among 0 results"),
        ("c1.prom", "vllm:prompt_tokens_total 5\n", "no level has two scrapes"),
    ],
)
def test_prometheus_that_cannot_be_used(tmp_path: Path, name: str, text: str, says: str) -> None:
    pytest.importorskip("prometheus_client")
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=says):
        read_sweep(tmp_path / name)


def test_summary_is_one_line(tmp_path: Path) -> None:
    sweep: Sweep = read_sweep(write(tmp_path / "a.duckdb", two_levels()[0]))
    assert sweep.summary().count("\n") == 0
    assert "levels 1,5" in sweep.summary()
