"""Recovery: a collector's database of a server with known truth gives the truth back."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from replicast.calibration.perrequest import config_for, fit_requests, lone_requests, replay_requests
from replicast.calibration.profile import StepSeconds
from replicast.calibration.recovery import Bed, random_bed, recover, simulated_sweep, write_database
from replicast.calibration.server import server_facts
from replicast.calibration.sweep import ClientRequest, Given, Sweep
from replicast.sim.fleet.config import FrontEnd

LEVELS = (1, 3, 8)


@pytest.fixture(scope="module")
def bed() -> Bed:
    return random_bed(1, LEVELS, load_s=150.0)


def test_intervals_hold_the_truth(bed: Bed) -> None:
    rows = recover(bed, simulated_sweep(bed, 1))
    assert len(rows) == 4
    assert sum(row.inside for row in rows) >= 3
    for row in rows:
        if row.name in ("memory_fixed_s", "compute_per_token_s"):
            assert abs(math.log(row.value / row.truth)) < 0.5, row


def test_the_database_says_what_the_level_says(bed: Bed, tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    from replicast.calibration.readers.duckdb_collector import read_duckdb

    path = tmp_path / "throughput-metrics.duckdb"
    write_database(bed, 1, path, interval_s=5.0)
    read, known = read_duckdb(path), simulated_sweep(bed, 1)
    for a, b in zip(read.levels, known.levels, strict=True):
        assert a.computed_tokens == pytest.approx(b.computed_tokens)
        assert a.tpot is not None
        assert b.tpot is not None
        assert a.tpot.mean == pytest.approx(b.tpot.mean)


def test_lone_requests_give_every_coefficient() -> None:
    given = Given(
        model="codellama-34b", gpu="H100", tensor_parallel_size=1, vllm_version="0.11.0",
        kv_pool_tokens=40_592, max_model_len=8192, max_num_batched_tokens=4096,
    )  # fmt: skip
    facts = server_facts(Sweep("lone", "test", (), model="codellama-34b", given=given))
    truth = StepSeconds(0.0258, 7e-8, 0.0, 7e-3, 9.5e-5, 3.8e-9)
    front_end = FrontEnd(0.002, 2e-7)
    asked = [
        ClientRequest(100.0 * i, prompt, 60, None, None)
        for i, prompt in enumerate((150, 700, 1500, 2600, 3900, 4800, 5900, 7000))
    ]
    records = replay_requests(asked, config_for(facts), truth, front_end)
    seen = [
        r._replace(
            ttft_s=float(records.ttft_s[i]), e2e_s=float(records.e2e_s[i]), queue_s=float(records.queue_s[i]),
            prefill_s=float(records.prefill_s[i]), decode_s=float(records.decode_s[i]),
        )
        for i, r in enumerate(asked)
    ]  # fmt: skip
    fitted = fit_requests(seen, facts)
    assert fitted.rows_left_out == ()
    assert fitted.steps.memory_fixed_s == pytest.approx(truth.memory_fixed_s, rel=0.02)
    assert fitted.steps.compute_per_token_s == pytest.approx(truth.compute_per_token_s, rel=0.1)
    again = replay_requests(asked, config_for(facts), fitted.steps, fitted.front_end)
    assert again.ttft_s == pytest.approx(records.ttft_s, rel=0.03)


def test_warm_up_and_overlap_are_not_lone() -> None:
    rows = [ClientRequest(10.0 * i, 1_000, 50, 0.1, 1.0, decode_s=0.9) for i in range(8)]
    rows[0] = rows[0]._replace(ttft_s=0.9, e2e_s=1.8)
    rows[6] = rows[6]._replace(e2e_s=15.0, decode_s=14.9)
    kept, left_out = lone_requests(rows)
    assert left_out == (0, 6)
    assert len(kept) == 6
