"""Requests known one by one: handing over, replay, the fit of lone ones; runs of which means are known."""

from __future__ import annotations

import numpy as np
import pytest
from replicast.calibration.perrequest import ROW_S, fit_requests, lone_requests
from replicast.calibration.profile import StepSeconds
from replicast.calibration.replay import (
    ALL_DISTINCT,
    Shared,
    forecast,
    handed_over,
    replay_requests,
)
from replicast.calibration.server import ServerFacts, server_facts
from replicast.calibration.steady import Means, Stage, fit_stages, stage_means, steady_priors
from replicast.calibration.sweep import ClientRequest, Given, Sweep
from replicast.sim.errors import InputError
from replicast.sim.fleet.config import FrontEnd

FRONT_END = FrontEnd(0.002, 2e-7)
STEPS = StepSeconds(0.0258, 7e-8, ROW_S, 7e-3, 9.5e-5, 3.8e-9)
LENGTHS = (150, 700, 1500, 2600, 3900, 4800, 5900, 7000)


def facts_of(model: str = "codellama-34b", version: str = "0.11.0", tp: int = 1) -> ServerFacts:
    given = Given(
        model=model, gpu="H100", tensor_parallel_size=tp, vllm_version=version, kv_pool_tokens=40_592,
        max_model_len=8192, max_num_batched_tokens=4096,
    )  # fmt: skip
    return server_facts(Sweep("lone", "test", (), model=model, given=given))


def asked(*rows: tuple[float, int, int]) -> list[ClientRequest]:
    return [ClientRequest(at, prompt, output, None, None) for at, prompt, output in rows]


def measured(requests: list[ClientRequest], shared: Shared = ALL_DISTINCT) -> list[ClientRequest]:
    """The requests as a server of known truth would have them."""
    told = replay_requests(requests, facts_of().config, STEPS, FRONT_END, shared=shared)
    return [
        r._replace(
            ttft_s=float(told.ttft_s[i]), e2e_s=float(told.e2e_s[i]), queue_s=float(told.queue_s[i]),
            prefill_s=float(told.prefill_s[i]), decode_s=float(told.e2e_s[i] - told.ttft_s[i]),
        )
        for i, r in enumerate(requests)
    ]  # fmt: skip


@pytest.mark.parametrize("prefix", [0, 1024])
@pytest.mark.parametrize("spans", [True, False])
def test_lone_requests_give_every_coefficient(prefix: int, spans: bool) -> None:
    shared = Shared(prefix=prefix)
    truth = measured([ClientRequest(100.0 * i, n, 60, None, None) for i, n in enumerate(LENGTHS)], shared)
    rows = truth if spans else [r._replace(queue_s=None, prefill_s=None) for r in truth]
    fitted = fit_requests(rows, facts_of(), shared=shared)
    assert fitted.rows_left_out == ()
    assert fitted.steps.memory_fixed_s == pytest.approx(STEPS.memory_fixed_s, rel=0.02)
    assert fitted.steps.compute_per_token_s == pytest.approx(STEPS.compute_per_token_s, rel=0.1)
    again = replay_requests(rows, facts_of().config, fitted.steps, fitted.front_end, shared=shared)
    assert again.ttft_s == pytest.approx([r.ttft_s for r in truth], rel=0.03)


def test_a_few_slow_rows_do_not_move_the_fit() -> None:
    rows = measured([ClientRequest(100.0 * i, 400 + 300 * i, 60, None, None) for i in range(16)])
    for i in (3, 7, 8, 13):
        slow = 0.15 * (rows[i].prefill_s or 0.0)
        rows[i] = rows[i]._replace(
            prefill_s=(rows[i].prefill_s or 0.0) + slow, ttft_s=(rows[i].ttft_s or 0.0) + slow
        )
    fitted = fit_requests(rows, facts_of())
    clean = measured(asked((0.0, 2000, 60)))
    told = replay_requests(clean, facts_of().config, fitted.steps, fitted.front_end)
    assert told.ttft_s[0] == pytest.approx(clean[0].ttft_s, rel=0.015)


def test_warm_up_and_overlap_are_not_lone() -> None:
    rows = [ClientRequest(10.0 * i, 1_000, 50, 0.1, 1.0, decode_s=0.9) for i in range(8)]
    rows[0] = rows[0]._replace(ttft_s=0.9, e2e_s=1.8)
    rows[6] = rows[6]._replace(e2e_s=15.0, decode_s=14.9)
    kept, left_out = lone_requests(rows)
    assert left_out == (0, 6)
    assert len(kept) == 6


def test_many_rows_are_told_apart_in_seconds() -> None:
    lone = ClientRequest(0.0, 1_000, 50, 0.1, 1.0)
    rows = [lone._replace(arrival_s=2.0 * i, e2e_s=3.0 if i % 4 == 0 else 1.0) for i in range(200_000)]
    kept, left_out = lone_requests(rows)
    assert left_out == tuple(range(0, 200_000, 4))
    assert len(kept) == 150_000


def test_too_few_lone_requests_are_refused() -> None:
    with pytest.raises(InputError, match="2 lone requests"):
        fit_requests(measured(asked((0.0, 500, 30), (100.0, 800, 30))), facts_of())


def test_nobody_overtakes_at_the_front_end() -> None:
    requests = asked((0.0, 7000, 10), (0.001, 10, 10), (0.5, 10, 10))
    handed = handed_over(requests, FrontEnd(0.001, 1e-6))
    assert handed[0] <= handed[1] < handed[2]
    assert handed[2] == pytest.approx(0.5 + 0.001 + 1e-5)


def test_an_idle_engine_takes_along_what_comes_while_it_starts() -> None:
    """As seen of llama-2-7b: tokens 2,144 and 3,498, .4 ms apart, and 756 and 1,715, .32 ms apart."""
    near = handed_over(asked((0.0, 2144, 10), (0.0004, 3498, 10)), FRONT_END)
    apart = handed_over(asked((0.0, 756, 10), (0.00032, 1715, 10)), FRONT_END)
    assert near[0] == near[1]
    assert apart[0] < apart[1]


def test_a_cached_prefix_is_hit_by_the_first_request() -> None:
    requests = asked((0.0, 2000, 5), (20.0, 2000, 5))
    config = facts_of().config
    cold = replay_requests(requests, config, STEPS, FRONT_END, shared=Shared(1024))
    warm = replay_requests(requests, config, STEPS, FRONT_END, shared=Shared(1024, cached=True))
    assert warm.ttft_s[0] == pytest.approx(warm.ttft_s[1]) == pytest.approx(cold.ttft_s[1])
    assert cold.ttft_s[0] > 1.5 * warm.ttft_s[0]


def test_rows_come_back_in_the_order_given() -> None:
    forward = asked((0.0, 500, 5), (3.0, 4000, 5), (6.0, 100, 5))
    config = facts_of().config
    there = replay_requests(forward, config, STEPS, FRONT_END)
    back = replay_requests(forward[::-1], config, STEPS, FRONT_END)
    assert back.ttft_s[::-1] == pytest.approx(there.ttft_s)
    assert there.ttft_s[1] == max(there.ttft_s)


def test_a_forecast_waits_half_a_step_for_the_running_one() -> None:
    """A long reply runs; prompts that meet it wait between nothing and a whole step."""
    requests = asked((0.0, 500, 1000), *((5.0 + 1.7 * i, 300, 2) for i in range(8)))
    config = facts_of().config
    told = forecast(requests, config, STEPS, FRONT_END)
    alone = replay_requests(requests[1:], config, STEPS, FRONT_END)
    waited = told.ttft_s[1:] - told.prefill_s[1:] - (alone.ttft_s - alone.prefill_s)
    assert np.mean(waited) == pytest.approx(STEPS.memory_fixed_s / 2 - 0.0009, rel=0.15)


def test_steady_priors_stop_growing_when_all_experts_are_read() -> None:
    facts = facts_of("mixtral-8x7b", "0.15.1", 2)
    few, many = steady_priors(facts, 2.0), steady_priors(facts, 40.0)
    assert many["memory_per_seq_s"].value < few["memory_per_seq_s"].value / 5
    for rows, priors in ((2.0, few), (40.0, many)):
        fixed, row = priors["memory_fixed_s"], priors["memory_per_seq_s"]
        assert fixed.low < fixed.value
        assert fixed.value + rows * row.value < facts.priors["memory_fixed_s"].value + (
            (rows + 1) * facts.priors["memory_per_seq_s"].value
        )


def test_a_steady_stage_is_met_and_carries_over_to_another_rate() -> None:
    facts = facts_of("llama-2-7b", "0.15.1")
    front_end = FrontEnd(0.007)
    truth = StepSeconds(0.006, 1.7e-7, 2e-5, 4e-4, 3.4e-5, 1.3e-9)
    slow, fast = (Stage(rate, 590, 60, 100, 100) for rate in (5.0, 12.0))
    config = facts.config
    seen = stage_means(slow, config, truth, front_end)
    assert isinstance(seen, Means)
    steps, found = fit_stages([Stage(5.0, 590, 60, 100, 100, seen)], facts)
    told, known = stage_means(fast, config, steps, found), stage_means(fast, config, truth, front_end)
    assert told.ttft_s == pytest.approx(known.ttft_s, rel=0.05)
    assert told.tpot_s == pytest.approx(known.tpot_s, rel=0.05)
