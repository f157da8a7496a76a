"""Clients' results: vllm bench serve, GuideLLM, AIPerf, requests one by one; and the boot log.

Fixtures are written by hand from the tools' published result classes.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from replicast.calibration.readers.boot_log import given_of_file, read_boot_log
from replicast.calibration.readers.detect import read_sweep
from replicast.calibration.readers.requests import stages_by_arrival
from replicast.calibration.sweep import ClientRequest
from replicast.sim.errors import InputError

BENCH: dict[str, Any] = {
    "date": "20261130-101112", "backend": "vllm", "model_id": "org/M", "tokenizer_id": "org/M",
    "num_prompts": 3, "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 2, "duration": 10.0,
    "completed": 2, "failed": 1,
    "total_input_tokens": 300, "total_output_tokens": 30, "request_throughput": 0.2, "output_throughput": 3.0,
    "total_token_throughput": 33.0, "mean_ttft_ms": 500.0, "median_ttft_ms": 450.0, "p99_ttft_ms": 600.0,
    "mean_tpot_ms": 20.0, "mean_itl_ms": 21.0, "mean_e2el_ms": 900.0,
}  # fmt: skip
DETAILS: dict[str, Any] = {
    "input_lens": [100, 200, 150], "output_lens": [10, 20, 0], "ttfts": [0.4, 0.6, 0.0],
    "itls": [[0.02] * 9, [0.04] * 19, []], "latencies": [0.58, 1.36, 0.0], "start_times": [50.0, 50.5, 51.0],
    "queue_times": [0.0, 0.3, 0.0], "errors": ["", "", "HTTP 500"],
}  # fmt: skip


def put(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_bench_serve_detailed_and_not(tmp_path: Path) -> None:
    put(tmp_path / "a.json", BENCH | DETAILS)
    put(tmp_path / "b.json", BENCH | {"max_concurrency": None, "request_rate": 0.5})
    sweep = read_sweep(tmp_path)
    assert (sweep.format, sweep.model) == ("vllm-bench-serve", "org/M")
    full, means = sweep.levels
    assert (full.concurrency, full.requests_finished, full.requests_failed) == (2, 2.0, 1.0)
    assert (full.prompt_tokens, full.generated_tokens, full.window_s) == (300.0, 30.0, 10.0)
    assert full.ttft is not None
    assert full.tpot is not None
    assert full.itl is not None
    assert (full.ttft.mean, full.tpot.count, full.itl.count) == (0.5, 2.0, 28.0)
    assert full.tpot.mean == pytest.approx((0.02 + 0.76 / 19) / 2)
    assert full.requests[1].arrival_s == 0.5
    assert any("waited 0.1 s for a client slot" in note for note in full.notes)
    assert (means.concurrency, means.request_rate, means.requests) == (None, 0.5, ())
    assert means.ttft is not None
    assert (means.ttft.mean, means.ttft.sum) == (0.5, 1.0)
    assert means.itl is not None
    assert means.itl.count is None


def test_bench_serve_appended_lines(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(BENCH | {"max_concurrency": c}) for c in (8, 1, 4))
    assert [level.concurrency for level in read_sweep(put(tmp_path / "r.json", lines)).levels] == [1, 4, 8]
    two = lines + "\n" + json.dumps(BENCH | {"model_id": "other"})
    with pytest.raises(InputError, match="results of 2 models: org/M, other"):
        read_sweep(put(tmp_path / "r.json", two))
    assert len(read_sweep(tmp_path / "r.json", model="other").levels) == 1
    with pytest.raises(InputError, match=r"(?s)r\.json:2.*(broken|half-written)"):
        read_sweep(put(tmp_path / "r.json", lines[: len(lines) // 2]))
    with pytest.raises(InputError, match="arrays differ in length"):
        read_sweep(put(tmp_path / "r.json", BENCH | DETAILS | {"ttfts": [0.1]}))


def guide_request(start: float, ttft_ms: float, latency: float, cached: int | None) -> dict[str, Any]:
    return {
        "request_id": f"r{start}", "request_latency": latency, "time_to_first_token_ms": ttft_ms,
        "prompt_tokens": 1000, "output_tokens": 11, "cached_tokens": cached,
        "info": {"timings": {"request_start": start, "request_end": start + latency}},
    }  # fmt: skip


def guide_benchmark(strategy: dict[str, Any], requests: list[dict[str, Any]], total: int) -> dict[str, Any]:
    def spread(mean: float, count: int) -> dict[str, Any]:
        return {
            "successful": {
                "mean": mean,
                "total_sum": mean * count,
                "count": count,
                "percentiles": {"p50": mean},
            }
        }

    return {
        "type_": "generative_benchmark", "config": {"strategy": strategy, "backend": {"model": "org/M"}},
        "start_time": 100.0, "end_time": 160.0, "duration": 60.0,
        "metrics": {
            "request_totals": {"successful": total, "incomplete": 1, "errored": 2, "total": total + 3},
            "time_to_first_token_ms": spread(200.0, total),
            "inter_token_latency_ms": spread(20.0, total * 10),
            "request_latency": spread(0.4, total), "prompt_token_count": spread(1000.0, total),
            "output_token_count": spread(11.0, total),
        },
        "requests": {"successful": requests, "incomplete": [], "errored": []},
    }  # fmt: skip


def test_guidellm(tmp_path: Path) -> None:
    requests = [guide_request(100.0, 200.0, 0.4, 900), guide_request(110.0, 300.0, 0.6, 800)]
    report = {
        "metadata": {"version": 2},
        "benchmarks": [
            guide_benchmark({"type_": "synchronous"}, requests, 2),
            guide_benchmark({"type_": "concurrent", "streams": 8}, requests, 50),
            guide_benchmark({"type_": "constant", "rate": 2.5}, requests, 2),
        ],
    }
    sweep = read_sweep(put(tmp_path / "benchmarks.json", report))
    assert (sweep.format, sweep.model) == ("guidellm", "org/M")
    alone, eight, rate = sweep.levels
    assert (alone.concurrency, eight.concurrency, rate.request_rate) == (1, 8, 2.5)
    assert alone.ttft is not None
    assert alone.tpot is not None
    assert alone.ttft.mean == pytest.approx(0.25)
    assert alone.tpot.mean == pytest.approx((0.02 + 0.03) / 2)
    assert (alone.cached_tokens, alone.prompt_tokens, alone.window_s) == (1700.0, 2000.0, 60.0)
    assert (alone.requests_failed, alone.requests_unfinished) == (2.0, 1.0)
    assert (eight.requests_finished, eight.prompt_tokens, eight.cached_tokens) == (50.0, 50_000.0, None)
    assert eight.ttft is not None
    assert eight.ttft.sum == pytest.approx(10.0)
    assert any("keeps 2 of 50 requests" in note for note in eight.notes)


def aiperf_record(n: int, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "conversation_id": f"s{n}", "turn_index": 0, "request_start_ns": 10**18 + n * 10**9,
            "request_end_ns": 10**18 + n * 10**9 + 5 * 10**8, "benchmark_phase": "profiling",
            "was_cancelled": False, **metadata,
        },
        "metrics": {
            "input_sequence_length": {"value": 550, "unit": "tokens"},
            "output_sequence_length": {"value": 11, "unit": "tokens"},
            "time_to_first_token": {"value": 100.0, "unit": "ms"},
            "request_latency": {"value": 0.3, "unit": "s"},
        },
        "error": None,
    }  # fmt: skip


def aiperf_summary(concurrency: int) -> dict[str, Any]:
    return {
        "request_latency": {"unit": "ms", "avg": 300.0, "p50": 290.0},
        "time_to_first_token": {"unit": "ms", "avg": 100.0},
        "inter_token_latency": {"unit": "ms", "avg": 20.0},
        "input_sequence_length": {"unit": "tokens", "avg": 550.0},
        "total_osl": {"unit": "tokens", "avg": 44.0},
        "request_count": {"unit": "requests", "avg": 4.0},
        "benchmark_duration": {"unit": "sec", "avg": 12.0},
        "error_request_count": None,
        "input_config": {"endpoint": {"model_names": ["org/M"]}, "loadgen": {"concurrency": concurrency}},
    }


def test_aiperf(tmp_path: Path) -> None:
    records = [
        aiperf_record(0), aiperf_record(1), aiperf_record(2, benchmark_phase="warmup"),
        aiperf_record(3, was_cancelled=True), aiperf_record(4) | {"error": {"code": 500}},
    ]  # fmt: skip
    put(tmp_path / "run-a" / "profile_export.jsonl", "\n".join(map(json.dumps, records)))
    put(tmp_path / "run-a" / "profile_export_aiperf.json", aiperf_summary(4))
    put(tmp_path / "run-b" / "profile_export_aiperf.json", aiperf_summary(16))
    sweep = read_sweep(tmp_path)
    assert (sweep.format, sweep.model) == ("aiperf", "org/M")
    assert dict(sweep.dropped) == {"records outside the profiling phase": 1}
    four, sixteen = sweep.levels
    assert (four.concurrency, four.requests_finished, four.requests_failed) == (4, 2.0, 2.0)
    assert four.ttft is not None
    assert four.tpot is not None
    assert four.ttft.mean == pytest.approx(0.1)
    assert four.tpot.mean == pytest.approx(0.02)
    assert four.window_s == pytest.approx(1.3)
    assert (sixteen.concurrency, sixteen.prompt_tokens, sixteen.generated_tokens) == (16, 2200.0, 44.0)
    assert sixteen.e2e is not None
    assert sixteen.e2e.sum == pytest.approx(1.2)
    with pytest.raises(InputError, match=r"profile_export.jsonl:2: not a record"):
        read_sweep(put(tmp_path / "x" / "profile_export.jsonl", json.dumps(records[0]) + '\n{"a": 1}\n'))
    with pytest.raises(InputError, match="no finished request in 1 records"):
        read_sweep(put(tmp_path / "x" / "profile_export.jsonl", json.dumps(records[4])))


ROWS = """arrival_s,prompt_tokens,completion_tokens,ttft_s,e2e_s,queue_s,error,concurrency
10.0,100,11,0.1,0.3,0.01,,1
11.0,200,21,0.2,0.6,0.02,,1
11.5,150,1,0.3,0.3,0.02,,2
12.0,150,5,,,,timeout,2
12.1,150,5,,,,,2
"""


def test_requests_csv(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv.gz"
    path.write_bytes(gzip.compress(ROWS.encode()))
    sweep = read_sweep(path)
    assert sweep.format == "requests-csv"
    assert dict(sweep.dropped) == {"rows without any time": 1}
    one, two = sweep.levels
    assert (one.concurrency, one.requests_finished, one.window_s) == (1, 2.0, pytest.approx(1.6))
    assert one.queue is not None
    assert one.queue.sum == pytest.approx(0.03)
    assert one.tpot is not None
    assert one.tpot.mean == pytest.approx(0.02)
    assert (two.requests_failed, two.requests_finished, two.tpot) == (1.0, 1.0, None)
    assert [(r.arrival_s, r.ttft_s) for r in two.requests] == [(0.0, 0.3), (0.5, None)]
    path.write_bytes(gzip.compress(ROWS.encode())[:60])
    with pytest.raises(InputError, match="gzip file is broken or cut off"):
        read_sweep(path)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("0,100,5,0.5,0.1", r"csv:2: e2e \(0.1 s\) is below ttft"),
        ("0,-1,5,0.5,1", "prompt_tokens is -1, below 0"),
        ("0,100,5,nan,1", "ttft_s is 'nan'"),
        ("0,100,5,,", "no finished request in 1 rows"),
    ],
)
def test_requests_csv_that_cannot_be_used(tmp_path: Path, row: str, says: str) -> None:
    text = f"arrival_s,prompt_tokens,output_tokens,ttft_s,e2e_s\n{row}\n"
    with pytest.raises(InputError, match=says):
        read_sweep(put(tmp_path / "requests.csv", text))


@pytest.mark.parametrize(
    "load",
    [
        {"load": {"stages": [5]}},
        {"load": {"stages": [{"rate": 1}]}},
        {"load": {"stages": [{"rate": "x", "duration": 5}]}},
        {
            "server": {"ignore_eos": True},
            "data": {"type": "random", "random": {"output_len": "many"}},
        },
    ],
)
def test_load_profile_beside_requests_that_cannot_be_used(tmp_path: Path, load: object) -> None:
    put(tmp_path / "profile.yaml", json.dumps(load))
    text = "arrival_s,prompt_tokens,output_tokens,ttft_s,e2e_s\n0,100,5,0.5,1\n"
    with pytest.raises(InputError, match=r"profile\.yaml"):
        read_sweep(put(tmp_path / "requests.csv", text))


def test_stages_are_found_in_arrivals() -> None:
    def request(at: float, e2e: float = 2.0) -> ClientRequest:
        return ClientRequest(at, 10, 10, 0.1, e2e)

    alone = [request(3.0 * n) for n in range(10)]
    burst = [request(40.0 + 0.01 * n, 9.0) for n in range(12)]
    slow = [request(60.0 + 1.5 * n) for n in range(15) if n != 7]
    fast = [request(90.0 + 1.0 * n) for n in range(15)]
    stages = stages_by_arrival([*alone, *burst, *slow, *fast])
    assert [(name, c, len(part)) for name, c, part in stages] == [
        ("synchronous", 1, 10), ("burst of 12", None, 12), ("0.667 requests/s", None, 14),
        ("1 requests/s", None, 15),
    ]  # fmt: skip
    assert [name for name, _, _ in stages_by_arrival(burst)] == ["all"]
    assert [name for name, _, _ in stages_by_arrival(alone)] == ["synchronous"]
    whole_seconds = [request(60.0 + n // 2, 1.5) for n in range(20)]
    assert [name for name, _, _ in stages_by_arrival([*alone, *whole_seconds])][1:] == ["2.11 requests/s"]
    at_once = [request(60.0, 0.0), request(60.0, 0.0)]
    assert stages_by_arrival([*alone, *at_once])[0][0] == "synchronous"


def test_real_requests_and_their_stages(shared_dir: Path) -> None:
    root = shared_dir / "groundtruth"
    sweep = read_sweep(root / "guidellm-otel-h100" / "jan20-codellama-train-1")
    assert [level.requests_finished for level in sweep.levels][:3] == [23.0, 22.0, 24.0]
    assert len(sweep.levels) == 12
    assert (sweep.given.max_num_batched_tokens, sweep.given.num_gpu_blocks) == (4096, 40_592 // 16)
    assert sweep.given.vllm_version == "0.11.0"
    for level in sweep.levels:
        assert level.queue is not None
        assert level.prefill is not None
        assert level.ttft is not None
        assert level.ttft.sum is not None
        assert level.ttft.sum >= (level.queue.sum or 0) + (level.prefill.sum or 0)
    codegen = read_sweep(root / "inferenceperf-h100" / "20260217-155451-llama-2-7b-tp1-codegen")
    assert [(level.request_rate, level.requests_finished) for level in codegen.levels] == [
        (5.0, 3000),
        (10.0, 6000),
    ]
    assert codegen.levels[0].generated_tokens == 3000 * 247
    assert codegen.given.num_gpu_blocks == 7462
    reasoning = read_sweep(root / "inferenceperf-h100" / "20260217-170634-llama-2-7b-tp1-reasoning")
    assert (reasoning.levels[0].requests_finished, reasoning.levels[0].requests_failed) == (732.0, 4068.0)
    assert (reasoning.levels[0].load_s, len(reasoning.levels[0].requests)) == (1200.0, 4800)


def test_every_real_requests_file_and_boot_log_reads(shared_dir: Path) -> None:
    root = shared_dir / "groundtruth"
    logs = sorted(root.glob("*/*/vllm_boot.txt"))
    assert logs
    for path in logs:
        told = read_boot_log(path)
        assert told.vllm_version == "0.11.0"
        assert told.kv_pool_tokens
        assert told.enable_prefix_caching is True
    for path in sorted(root.glob("guidellm-otel-h100/*/requests.csv")):
        assert read_sweep(path).levels
    runs = sorted(root.glob("vllm0151-summaries/*/run.json"))
    assert runs
    for path in runs:
        sweep = read_sweep(path)
        assert sweep.given.vllm_version == "0.15.1"
        for level in sweep.levels:
            assert level.tpot is not None
            assert level.tpot.mean is not None
            assert 0.0 < level.tpot.mean < 1.0


BOOT = """\
(APIServer pid=1) INFO 11-30 10:00:00 [utils.py:293] vLLM API server version 0.25.1
(APIServer pid=1) INFO 11-30 10:00:00 [utils.py:233] non-default args: {'model_tag': 'org/M', \
'max_model_len': 65536, 'served_model_name': ['m'], 'max_num_seqs': 32, \
'gpu_memory_utilization': 0.9, 'kv_cache_dtype': 'fp8'}
(APIServer pid=1) INFO 11-30 10:00:09 [scheduler.py:238] Chunked prefill is enabled with \
max_num_batched_tokens=8192.
(APIServer pid=1) INFO 11-30 10:00:09 [config.py:281] Setting attention block size to 784 tokens to ensure \
that attention page size is >= mamba page size.
(APIServer pid=1) INFO 11-30 10:00:09 [vllm.py:790] Asynchronous scheduling is enabled.
(EngineCore pid=9) INFO 11-30 10:00:10 [core.py:105] Initializing a V1 LLM engine (v0.25.1) with config: \
model='org/M', speculative_config=None, dtype=torch.bfloat16, max_seq_len=65536, tensor_parallel_size=2, \
pipeline_parallel_size=1, data_parallel_size=1, quantization=None, kv_cache_dtype=fp8, served_model_name=m, \
enable_prefix_caching=True, enable_chunked_prefill=True
(EngineCore pid=9) INFO 11-30 10:01:00 [kv_cache_utils.py:1300] GPU KV cache size: 2,400,000 tokens
"""


def test_boot_log_of_a_later_version(tmp_path: Path) -> None:
    told = read_boot_log(put(tmp_path / "boot.txt", BOOT)).told()
    assert told == {
        "model": "m", "vllm_version": "0.25.1", "max_num_batched_tokens": 8192, "max_num_seqs": 32,
        "max_model_len": 65_536, "block_size": 784, "kv_pool_tokens": 2_400_000, "tensor_parallel_size": 2,
        "pipeline_parallel_size": 1, "data_parallel_size": 1, "enable_prefix_caching": True,
        "enable_chunked_prefill": True, "async_scheduling": True, "dtype": "bfloat16",
        "kv_cache_dtype": "fp8", "gpu_memory_utilization": 0.9,
    }  # fmt: skip


def test_boot_log_last_boot_counts_and_mixed_versions_do_not_pass(tmp_path: Path) -> None:
    first = BOOT.replace("'max_num_seqs': 32,", "'max_num_seqs': 8, 'block_size': 32,")
    assert given_of_file(put(tmp_path / "boot.txt", first + BOOT)).max_num_seqs == 32
    with pytest.raises(InputError, match=r"several vLLM versions: 0\.25\.1, 0\.33\.0"):
        read_boot_log(put(tmp_path / "boot.txt", BOOT.replace("engine (v0.25.1)", "engine (v0.33.0)")))
    with pytest.raises(InputError, match="no start-up line"):
        read_boot_log(put(tmp_path / "boot.txt", "hello\n"))
