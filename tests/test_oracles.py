"""Closed formulas of queueing theory, and one request by hand, against the whole simulator.

Service is one step that computes one prompt and its only output token, its time proportional to the prompt;
with one seat the replica is then a single server with first come, first served. Seeds are fixed; the
tolerances are confidence bounds of means over batches (4 standard errors).
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from replicast.sim.config import EngineConfig
from replicast.sim.engine.step_time import StepLoad, StepTime, row_pairs
from replicast.sim.fleet.config import FleetConfig, FrontEnd
from replicast.sim.fleet.run import simulate
from replicast.sim.ticks import seconds
from replicast.sim.workload import Segment, Session, Turn

SERVER = EngineConfig(
    num_gpu_blocks=1000,
    block_size=256,
    max_num_batched_tokens=65_536,
    max_num_seqs=1,
    max_model_len=200_000,
    enable_prefix_caching=False,
    async_scheduling=False,
)
PER_TOKEN = StepTime.from_seconds(memory_fixed_s=0.0, compute_per_token_s=0.001)


def one_token(name: str, prompt: int, *depends_on: int, delay_s: float = 0.0) -> Turn:
    content = (Segment(0, 0, prompt),)
    return Turn(name, "main", depends_on, delay_s, content, (Segment(1, 0, 1),), prompt, 1)


def open_queue_waits_s(prompts: NDArray[np.int64], rate: float, seed: int) -> NDArray[np.float64]:
    """Waiting times of a Poisson stream of `prompts` at one server, the first tenth dropped."""
    arrivals = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, size=len(prompts)))
    sessions = [
        Session(f"{i}", (one_token(f"{i}", int(prompt)),), start_s=float(at))
        for i, (prompt, at) in enumerate(zip(prompts, arrivals, strict=True))
    ]
    records = simulate(sessions, SERVER, PER_TOKEN, FleetConfig(), seed=0).records
    assert records.finished.all()
    np.testing.assert_allclose(records.prefill_s, prompts * 0.001)
    return (records.input_wait_s + records.queue_s)[len(prompts) // 10 :]


def assert_mean(observed: NDArray[np.float64], expected: float) -> None:
    batches = np.array([batch.mean() for batch in np.array_split(observed, 20)])
    error = batches.std(ddof=1) / np.sqrt(len(batches))
    assert abs(batches.mean() - expected) < 4 * error
    assert error < 0.15 * expected, "too few requests to say anything"


@pytest.mark.parametrize("utilisation", [0.5, 0.8])
def test_m_d_1_waits_as_pollaczek_and_khinchine_say(utilisation: float) -> None:
    service_s = 0.1
    waits = open_queue_waits_s(np.full(12_000, 100), utilisation / service_s, seed=11)
    assert_mean(waits, utilisation * service_s / (2 * (1 - utilisation)))


def test_m_m_1_waits() -> None:
    mean_tokens, utilisation = 400.0, 0.7
    prompts = np.ceil(np.random.default_rng(12).exponential(mean_tokens, size=16_000)).astype(np.int64)
    service_s = float(prompts.mean()) * 0.001
    waits = open_queue_waits_s(prompts, utilisation / service_s, seed=13)
    assert_mean(waits, utilisation * service_s / (1 - utilisation))


def test_closed_machine_repairman_throughput() -> None:
    """M/M/1//N: N sessions think, then queue for the one server."""
    sessions, think_s, service_s = 6, 2.0, 0.4
    rng = np.random.default_rng(14)
    trace = []
    for s in range(sessions):
        prompts = np.ceil(rng.exponential(service_s / 0.001, size=3000)).astype(int).tolist()
        thinks = rng.exponential(think_s, size=3000).tolist()
        turns = [one_token(f"{s}.0", prompts[0])]
        turns += [one_token(f"{s}.{t}", prompts[t], t - 1, delay_s=thinks[t]) for t in range(1, 3000)]
        trace.append(Session(f"{s}", tuple(turns)))
    fleet = FleetConfig(sessions=sessions, think_cap_s=None, warmup_s=100.0, horizon_s=5000.0)
    result = simulate(trace, SERVER, PER_TOKEN, fleet, seed=0)
    weights = [1.0]
    for n in range(sessions):
        weights.append(weights[-1] * (sessions - n) * service_s / think_s)
    busy = 1 - weights[0] / sum(weights)
    records = result.records
    ends_s = records.arrival_s + records.e2e_s
    window = result.window
    batches, _ = np.histogram(ends_s[records.finished], bins=np.linspace(window.start_s, window.end_s, 21))
    assert_mean(batches / ((window.end_s - window.start_s) / 20), busy / service_s)
    assert result.replicas[0].mean_running == pytest.approx(busy, rel=0.03)
    waiting_and_served = sum(n * weight for n, weight in enumerate(weights)) / sum(weights)
    number = result.replicas[0].mean_running + result.replicas[0].mean_waiting
    assert number == pytest.approx(waiting_and_served, rel=0.05)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_one_request_alone_takes_the_sum_of_its_steps(async_scheduling: bool) -> None:
    prompt, output, budget = 20_000, 50, 8192
    step_time = StepTime.from_seconds(
        memory_fixed_s=0.004,
        memory_per_kv_token_s=2e-8,
        memory_per_seq_s=1e-4,
        compute_fixed_s=0.002,
        compute_per_token_s=1e-5,
        compute_per_pair_s=1e-10,
    )
    chunks = [(c, min(budget, prompt - c)) for c in range(0, prompt, budget)]
    prefill = sum(step_time.of(StepLoad(n, 1, c + n, row_pairs(c, n))) for c, n in chunks)
    decode = sum(
        step_time.of(StepLoad(1, 1, c + 1, row_pairs(c, 1))) for c in range(prompt, prompt + output - 1)
    )
    turn = Turn("a", "main", (), 0.0, (Segment(0, 0, prompt),), (Segment(1, 0, output),), prompt, output)
    fleet = FleetConfig(front_end=FrontEnd(0.026, 1.7e-6, 0.003))
    engine = EngineConfig(num_gpu_blocks=20_000, async_scheduling=async_scheduling)
    records = simulate([Session("s", (turn,))], engine, step_time, fleet, seed=0).records
    front_end_s = 0.026 + 1.7e-6 * prompt
    assert records.ttft_s[0] == pytest.approx(front_end_s + seconds(prefill) + 0.003, rel=1e-12)
    assert records.decode_s[0] == pytest.approx(seconds(decode), rel=1e-12)
    assert records.e2e_s[0] == pytest.approx(front_end_s + seconds(prefill + decode) + 0.003, rel=1e-12)
