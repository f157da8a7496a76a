"""Summaries: the harness's performance-summary.json, sweep.csv, published rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from replicast.calibration.buckets import REQUEST_EDGES_S, TPOT_EDGES_S, TTFT_EDGES_S, Bounds
from replicast.calibration.readers.detect import read_sweep
from replicast.calibration.readers.flat_csv import series_in
from replicast.sim.errors import InputError


def summary(**level: Any) -> dict[str, Any]:
    return {
        "model": "m",
        "instance_type": "g6e.12xlarge",
        "dollars_per_hour": 6.61,
        "task_input_tokens": 1000,
        "task_output_tokens": 20,
        "levels": [
            {
                "concurrency": 2,
                "session_name": "m_c2",
                "output_tokens_per_second": 100.0,
                "prompt_tokens_per_second": 12_000.5,
                "window_seconds": 719.0,
                "kv_cache_usage": {"peak": 0.5, "mean": 0.25},
                "requests_running": {"peak": 3.0, "mean": 1.5},
                "requests_waiting": {"peak": 0.0, "mean": 0.0},
                "ttft_ms_mean": 1500.0,
                "ttft_ms_pctl": {"p50": 1000.0, "p90": 2500.0, "p99": None},
                "tpot_ms_mean": 20.0,
                "queue_ms_mean": 0.0,
                "queue_ms_pctl": {"p50": 300.0, "p90": 300.0, "p99": 300.0},
                **level,
            }
        ],
    }


def put(path: Path, value: Any) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_performance_summary(tmp_path: Path) -> None:
    sweep = read_sweep(put(tmp_path / "performance-summary.json", summary()))
    assert (sweep.format, sweep.model, sweep.instance) == ("performance-summary", "m", "g6e.12xlarge")
    assert (sweep.price_usd_per_hour, sweep.task_input_tokens, sweep.task_output_tokens) == (
        6.61,
        1000.0,
        20.0,
    )
    level = sweep.levels[0]
    assert level.prompt_tokens == pytest.approx(12_000.5 * 719)
    assert level.prompt_tokens_per_s == pytest.approx(12_000.5)
    assert (level.window_s, level.load_s) == (719.0, 600.0)
    assert set(level.derived) == {"prompt_tokens", "generated_tokens", "load_s"}
    assert level.ttft is not None
    assert level.queue is not None
    assert level.ttft.mean == 1.5
    assert [level.ttft.quantile(q) for q in (0.5, 0.9, 0.99)] == [
        Bounds(0.75, 1.0), Bounds(1.0, 2.5), Bounds(2560.0, None)
    ]  # fmt: skip
    assert level.queue.quantile(0.5) == Bounds(0.0, 0.3)
    assert (level.requests_finished, level.first_tokens, level.prefill, level.cached_tokens) == (None,) * 4
    assert level.running is not None
    assert (level.running.mean, level.running.peak, level.running.times_s) == (1.5, 3.0, ())
    assert read_sweep(tmp_path, given=["max_num_seqs=32"]).given.max_num_seqs == 32
    assert read_sweep(tmp_path, load_s=300.0).levels[0].load_s == 300.0


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (summary(window_seconds=0), "window_seconds is missing or 0"),
        (summary(concurrency=0), "concurrency is 0, below 1"),
        (summary(ttft_ms_mean=-3), "ttft_ms_mean is -3, below 0"),
        (summary(ttft_ms_mean="fast"), "not a finite number"),
        ({**summary(), "levels": []}, "JSON of no known sweep"),
        ({"levels": 3}, "JSON of no known sweep"),
        ("{", r"broken JSON at line 1"),
        ('{"levels": [{"concurrency": 1, "ttft_ms_mean": NaN', "NaN is not a number|broken JSON"),
        ("", "the file is empty"),
        ("speed,colour\n1,red\n", "no format of a sweep is recognised"),
    ],
)
def test_summary_that_cannot_be_used(tmp_path: Path, value: Any, says: str) -> None:
    path = put(tmp_path / "s.json", value)
    with pytest.raises(InputError, match=says) as caught:
        read_sweep(path)
    assert str(path) in str(caught.value)
    assert caught.value.remedy


def test_wrong_model_missing_file_unknown_format(tmp_path: Path) -> None:
    path = put(tmp_path / "s.json", summary())
    with pytest.raises(InputError, match=r"(?s)no model x in this file.*its model is m"):
        read_sweep(path, model="x")
    with pytest.raises(InputError, match="no such file"):
        read_sweep(tmp_path / "none.json")
    with pytest.raises(InputError, match="no format parrot"):
        read_sweep(path, format="parrot")
    with pytest.raises(InputError, match="2 files of the format performance-summary"):
        read_sweep(path, put(tmp_path / "t.json", summary()))
    with pytest.raises(InputError, match="files of several formats"):
        read_sweep(path, put(tmp_path / "t.csv", "concurrency,ttft_mean_s\n1,2\n"))
    with pytest.raises(InputError, match="boot log"):
        read_sweep(put(tmp_path / "boot.txt", "INFO vLLM API server version 0.25.1\n"))


def test_all_real_summaries_read(shared_dir: Path) -> None:
    edges = {"ttft": TTFT_EDGES_S, "tpot": TPOT_EDGES_S, "queue": REQUEST_EDGES_S}
    files = sorted((shared_dir / "sweeps").glob("*.json"))
    assert len(files) >= 18
    for path in files:
        sweep = read_sweep(path)
        raw = json.loads(path.read_text())
        assert len(sweep.levels) == len(raw["levels"])
        for level, source in zip(sweep.levels, raw["levels"], strict=True):
            assert level.unusable is None
            assert level.output_tokens_per_s == pytest.approx(
                source.get("output_tokens_per_second", source.get("output_tokens_per_s"))
            )
            for name, legal in edges.items():
                histogram = getattr(level, name)
                for _, bounds in histogram.given_quantiles if histogram else ():
                    assert bounds.high is None or bounds.high in [pytest.approx(edge) for edge in legal]
                    assert bounds.high is None or bounds.low < bounds.high


def test_client_microbenchmark(shared_dir: Path) -> None:
    sweep = read_sweep(shared_dir / "sweeps" / "glm52-200k-throughput.json")
    level = sweep.levels[0]
    assert (sweep.format, sweep.given.tensor_parallel_size, level.requests_finished) == (
        "client-summary",
        8,
        20.0,
    )
    assert level.e2e is not None
    assert level.e2e.sum == pytest.approx(20 * 2.659145890649961)
    assert level.window_s == pytest.approx(20 / 0.3760553561506818)
    assert level.prompt_tokens is None


FLAT = """# a comment
concurrency,window_s,load_s,prompt_tokens_per_s,generated_tokens,ttft_mean_ms,ttft_p90_high_s,queue_mean_s,kv_usage_mean,hit_rate,max_num_seqs,colour
1,719,600,1000,5000,250,0.5,,0.1,0.9,32,red
5,719,,2000,,400,,0.2,,,32,
"""


def test_flat_csv(tmp_path: Path) -> None:
    sweep = read_sweep(put(tmp_path / "sweep.csv", FLAT))
    first, second = sweep.levels
    assert (first.prompt_tokens, first.generated_tokens, first.load_s) == (719_000.0, 5000.0, 600.0)
    assert first.derived == ("prompt_tokens",)
    assert first.ttft is not None
    assert (first.ttft.mean, first.ttft.quantile(0.9)) == (0.25, Bounds(0.0, 0.5))
    assert first.queue is None
    assert (second.generated_tokens, second.kv_usage, second.hit_rate, second.load_s) == (
        None,
        None,
        None,
        600.0,
    )
    assert sweep.given.max_num_seqs == 32
    assert sweep.notes == ("columns that are not known are left out: colour",)


def test_spreadsheets_write_semicolons_tabs_and_capitals(tmp_path: Path) -> None:
    plain = read_sweep(put(tmp_path / "sweep.csv", FLAT)).levels
    for mark in ";\t":
        head, *rows = FLAT.replace(",", mark).splitlines()
        text = "\n".join([head.title(), *rows])
        assert read_sweep(put(tmp_path / "sweep.csv", text)).levels == plain


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("concurrency,ttft_mean_s\n1,fast\n", r"sweep.csv:2: ttft_mean_s is 'fast'"),
        ("concurrency,ttft_mean_s\n1,nan\n", "not a finite number"),
        ("concurrency,ttft_mean_s\n1,-1\n", "below 0"),
        ("concurrency,ttft_mean_s\n1.5,1\n", "not a whole number"),
        ("concurrency,ttft_mean_s\n,1\n", "neither concurrency nor request_rate"),
        ("concurrency,ttft_mean_s\n1\n", "1 cells under 2 column names"),
        ("concurrency,ttft_mean_s\n", "no row under the header"),
        ("concurrency,concurrency,ttft_mean_s\n1,1,1\n", "concurrency appears twice"),
        ("concurrency,hit_rate\n1,90\n", "the hit rate is 90, above 1"),
        ("concurrency,ttft_mean_s,kv_usage_mean\n1,1,90\n", "KV usage is above 1"),
        ("series,concurrency,ttft_mean_s\na,1,1\nb,1,1\n", r"(?s)holds 2 series.*a, b"),
    ],
)
def test_flat_csv_that_cannot_be_used(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_sweep(put(tmp_path / "sweep.csv", text))


def test_published_rows(shared_dir: Path) -> None:
    path = shared_dir / "groundtruth" / "agentic-sweeps-published" / "sweeps.csv"
    names = series_in(path)
    assert len(names) == 11
    rows = 0
    for name in names:
        sweep = read_sweep(path, model=name)
        rows += len(sweep.levels)
        assert all(level.ttft and level.itl and level.hit_rate is not None for level in sweep.levels)
    assert rows == 61
    deepseek = read_sweep(path, model="WK").levels[0]
    assert deepseek.ttft is not None
    assert deepseek.kv_usage is not None
    assert deepseek.prompt_per_request is not None
    assert (deepseek.ttft.mean, deepseek.kv_usage.mean, deepseek.hit_rate) == pytest.approx(
        (0.3594, 0.004, 0.907)
    )
    assert deepseek.prompt_per_request.mean == 87_744.0
    x4 = read_sweep(path, model="arm-scaling-r4-router")
    assert (x4.given.gpus, x4.levels[0].output_tokens_per_s) == (40, 577.10)
