"""A signal in a run waits for the end of a step; then it does what it did before, once."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from replicast.sim.config import EngineConfig
from replicast.sim.engine.step_time import StepTime
from replicast.sim.fleet.config import FleetConfig
from replicast.sim.fleet.interrupts import SIGNALS, stopped_between_steps
from replicast.sim.fleet.run import simulate

sys.path.insert(0, str(Path(__file__).parent))

import planning_cases


@pytest.fixture(autouse=True)
def ctrl_c_as_usual() -> Iterator[None]:
    """Whatever started the tests: a job in the background of a shell ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_signal_waits_for_the_end_of_a_step() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    reached = []

    def run() -> None:
        with stopped_between_steps(None) as after_step:
            signal.raise_signal(signal.SIGINT)
            reached.append("the end of the step")
            assert after_step is not None
            after_step(1)
            reached.append("the next step")

    with pytest.raises(KeyboardInterrupt):
        run()
    assert reached == ["the end of the step"]
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_signal_after_the_last_step_is_not_lost() -> None:
    with pytest.raises(KeyboardInterrupt), stopped_between_steps(None):
        signal.raise_signal(signal.SIGINT)


def test_a_run_is_stopped_and_only_once() -> None:
    told: list[int] = []

    def progress(finished: int) -> None:
        told.append(finished)
        signal.raise_signal(signal.SIGINT)

    engine = EngineConfig(
        num_gpu_blocks=801, max_model_len=16_000, max_num_batched_tokens=1024, max_num_seqs=4
    )
    step_time = StepTime.from_seconds(memory_fixed_s=0.05, compute_per_token_s=0.004)
    with pytest.raises(KeyboardInterrupt):
        simulate(
            planning_cases.sessions(),
            engine,
            step_time,
            FleetConfig(replicas=1, sessions=8),
            seed=3,
            progress=progress,
        )
    assert len(told) == 1


def test_other_threads_have_no_signals() -> None:
    seen: list[object] = []

    def enter() -> None:
        with stopped_between_steps(seen.append) as after_step:
            seen.append(after_step)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert len(seen) == 1
