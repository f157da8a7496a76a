"""Prometheus snapshots and range exports: the same history must read as the collector's database does."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from replicast.calibration.generate import CollectorSession, Scrape, exposition, samples_of
from replicast.calibration.readers.detect import read_sweep
from replicast.calibration.server_counters import ServerCounters
from replicast.sim.errors import InputError

sys.path.insert(0, str(Path(__file__).parent))
from sweep_files import CONFIG, T0, assert_counts, some_load, two_levels


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


def test_a_page_that_is_no_page_is_left_out(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    sessions, seen = two_levels()
    folder = as_files(tmp_path / "p", sessions)
    (folder / "c1" / f"metrics-{int(T0) + 5}.prom").write_text('vllm:prompt_tokens_total{engine="0\n')
    sweep = read_sweep(folder)
    assert_counts(sweep.levels[0], seen[0])
    assert dict(sweep.dropped) == {"files that cannot be read": 1}
    assert sum("left out" in note for note in sweep.notes) == 1
    for path in folder.rglob("*.prom"):
        path.write_text('vllm:prompt_tokens_total{engine="0\n')
    with pytest.raises(InputError, match="not Prometheus's text format"):
        read_sweep(folder)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6])
def test_a_page_without_its_end_is_left_out(tmp_path: Path, share: float) -> None:
    """Cut anywhere, inside a line or between two."""
    pytest.importorskip("prometheus_client")
    sessions, seen = two_levels()
    folder = as_files(tmp_path / "p", sessions)
    between = next(scrape for scrape in sessions[0].scrapes[1:-1])
    whole = page(between)
    lines = whole[: int(share * len(whole))].splitlines(keepends=True)
    for cut in ("".join(lines), "".join(lines[:-1])):
        (folder / "c1" / f"metrics-{int(between.at_s)}.prom").write_text(cut)
        sweep = read_sweep(folder)
        assert_counts(sweep.levels[0], seen[0])
        assert sweep.levels[0].scrapes == 2
        assert any("left out" in note for note in sweep.notes)


def test_of_two_pages_one_without_its_end_is_no_level(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    sessions, _ = two_levels()
    folder = as_files(tmp_path / "p", sessions[:1])
    last = max(folder.rglob("*.prom"))
    last.write_text(last.read_text()[:9000])
    with pytest.raises(InputError, match=r"no level has two scrapes; .* is left out"):
        read_sweep(folder)


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


def _moved(folder: Path, where: Path, sessions: list[CollectorSession]) -> None:
    for path in sorted(as_files(folder, sessions).rglob("*.prom")):
        target = where / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)


def test_a_load_run_again_later_holds_nothing_of_what_ran_between(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    counters, rng = ServerCounters(), np.random.default_rng(8)
    seen = []
    at = T0
    for n, concurrency in enumerate((2, 5, 2)):
        start = Scrape(at, (counters.snapshot(running=0, waiting=0, kv_usage=0.0),))
        seen.append([some_load(counters, rng)])
        stop = Scrape(at + 60, (counters.snapshot(running=0, waiting=0, kv_usage=0.0),))
        _moved(
            tmp_path / "made" / str(n),
            tmp_path / "all" / f"run{n}",
            [CollectorSession(concurrency, (start, stop))],
        )
        at += 100.0
    sweep = read_sweep(tmp_path / "all")
    again = sweep.level(2)
    assert again is not None
    assert again.window_s == pytest.approx(120.0)
    assert again.sessions == 2
    assert_counts(again.repeats[0], seen[0])
    assert_counts(again.repeats[1], seen[2])


def test_the_two_ends_of_a_load_may_lie_in_two_folders(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    counters, rng = ServerCounters(), np.random.default_rng(9)
    for folder, at in (("before", T0), ("after", T0 + 60)):
        (tmp_path / folder).mkdir()
        scrape = Scrape(at, (counters.snapshot(running=0, waiting=0, kv_usage=0.0),))
        (tmp_path / folder / f"c2-{int(at)}.prom").write_text(page(scrape))
        seen = some_load(counters, rng)
    sweep = read_sweep(tmp_path)
    assert sweep.levels[0].window_s == pytest.approx(60.0)
    assert sweep.levels[0].generated_tokens
    assert seen
