"""The collector's database and its export: what is written reads back, and what is wrong is said."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from replicast.calibration.generate import (
    CollectorSession,
    EngineState,
    Scrape,
)
from replicast.calibration.readers.detect import read_sweep
from replicast.calibration.server_counters import ServerCounters
from replicast.calibration.sweep import Sweep
from replicast.sim.errors import InputError

sys.path.insert(0, str(Path(__file__).parent))
from sweep_files import T0, assert_counts, session, some_load, two_levels, write

duckdb = pytest.importorskip("duckdb")


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
    assert [note.split(" is left out")[0] for note in sweep.notes if "left out" in note] == [
        dead.name or "m_c7", "warm-up",
    ]  # fmt: skip


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


def test_scrapes_without_a_time(tmp_path: Path) -> None:
    sessions, _ = two_levels()
    path = write(tmp_path / "a.duckdb", sessions)
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE metric_scrapes SET scraped_at = NULL WHERE sequence_number = 4")
    assert dict(read_sweep(path).dropped)["scrapes without a time (scraped_at is NULL)"] == 2
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE metric_scrapes SET scraped_at = NULL")
    with pytest.raises(InputError, match=r"no level can be read: .* without a time"):
        read_sweep(path)


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


def test_summary_is_one_line(tmp_path: Path) -> None:
    sweep: Sweep = read_sweep(write(tmp_path / "a.duckdb", two_levels()[0]))
    assert sweep.summary().count("\n") == 0
    assert "levels 1,5" in sweep.summary()
