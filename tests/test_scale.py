"""A fleet at scale: any number of sessions from an iterator, records on disk, work that does not grow."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replicast.sim.config import EngineConfig
from replicast.sim.engine.step_time import StepTime
from replicast.sim.errors import InputError
from replicast.sim.fleet import events
from replicast.sim.fleet.config import FleetConfig
from replicast.sim.fleet.prefix_router import PrefixAware
from replicast.sim.fleet.record_file import FLUSH_ROWS, RecordFile, read_records
from replicast.sim.fleet.records import INTS, TIMES, Records
from replicast.sim.fleet.run import RunResult, simulate
from replicast.sim.planning.summary import summarise
from replicast.sim.workload import Segment, Session, Turn
from replicast.traces.load import load_trace

sys.path.insert(0, str(Path(__file__).parent))

from router_cases import Asked

ENGINE = EngineConfig(num_gpu_blocks=2001, max_num_batched_tokens=2048, max_model_len=2000)
STEP_TIME = StepTime.from_seconds(
    memory_fixed_s=0.01, memory_per_kv_token_s=1e-8, compute_fixed_s=0.005, compute_per_token_s=2e-5
)
COLUMNS = [*(name for name in INTS if name != "request_id"), *TIMES]


def short_sessions(number: int, turns: int = 4, *, timed: bool = False) -> Iterator[Session]:
    """Sessions that share a system prompt and grow; made when asked for, so that nobody else holds them."""
    for s in range(number):
        made: list[Turn] = []
        for t in range(turns):
            own = 100 + 60 * t
            prompt = (Segment(0, 0, 160), Segment(1 + s, 0, own))
            output = (Segment(1 + s, own, 20),)
            arrival_s = (0.05 * s + 0.7 * t) if timed else None
            before = (t - 1,) if t else ()
            made.append(Turn(f"{s}.{t}", "main", before, 0.2, prompt, output, 160 + own, 20, arrival_s))
        yield Session(f"{s}", tuple(made), start_s=0.05 * s if timed else None)


def run(sessions: object, fleet: FleetConfig, **more: object) -> RunResult:
    return simulate(sessions, ENGINE, STEP_TIME, fleet, seed=1, **more)  # type: ignore[arg-type]


def assert_same(one: Records, other: Records) -> None:
    assert len(one) == len(other)
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["closed", "partly-open", "open"]),
    st.integers(1, 60),
    st.integers(1, 12),
    st.sampled_from([None, 2.0]),
    st.sampled_from(["round-robin", "session-affinity", "prefix-aware"]),
)
def test_an_iterator_gives_what_the_trace_gives(
    loop: str, number: int, live: int, horizon_s: float | None, router: str
) -> None:
    fleet = FleetConfig(
        replicas=2,
        loop=loop,
        sessions=live,
        stagger_s=0.5,
        horizon_s=horizon_s,
        router=router,  # type: ignore[arg-type]
    )
    timed = loop != "closed"
    whole = run(list(short_sessions(number, timed=timed)), fleet)
    lazy = run(short_sessions(number, timed=timed), fleet)
    assert_same(whole.records, lazy.records)
    assert whole.duration_s == lazy.duration_s
    if horizon_s is None:  # else an iterator does not tell what it would still have held
        assert (whole.counts, whole.window) == (lazy.counts, lazy.window)
        assert [replica.window_stats for replica in whole.replicas] == [
            replica.window_stats for replica in lazy.replicas
        ]


def test_an_iterator_is_checked_as_it_is_read() -> None:
    good = next(short_sessions(1))
    bad = replace(good, session_id="bad", turns=(good.turns[0]._replace(num_prompt_tokens=0),))
    with pytest.raises(InputError, match="session bad has a prompt of 0 tokens"):
        run(iter([good, good, bad]), FleetConfig(sessions=1, stagger_s=0.0))
    with pytest.raises(InputError, match="no turns"):
        run(iter([]), FleetConfig())
    late, early = list(short_sessions(2, timed=True))[::-1]
    with pytest.raises(InputError, match="session 0 starts before the session in front of it"):
        run(iter([late, early]), FleetConfig(loop="open"))
    with pytest.raises(InputError, match="no recorded start"):
        run(iter([early, *short_sessions(1)]), FleetConfig(replicas=1, sessions=None, loop="partly-open"))


def test_records_on_disk_are_those_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicast.sim.fleet.record_file.FLUSH_ROWS", 100)
    fleet = FleetConfig(replicas=2, sessions=7, horizon_s=16.0)
    trace = list(short_sessions(200))
    path = tmp_path / "new" / "run.records"
    memory, disk = run(trace, fleet), run(trace, fleet, record_file=path)
    assert len(memory.records) > 250
    assert memory.counts.unfinished > 0
    assert_same(memory.records, disk.records)
    assert memory.suggested_warmup_s == disk.suggested_warmup_s
    assert summarise(memory, None, None) == summarise(disk, None, None)
    assert memory.records.to_frame().equals(disk.records.to_frame())
    again = read_records(path)
    np.testing.assert_array_equal(again.ttft_s, memory.records.ttft_s)
    assert again.to_frame()["session"].tolist() == [str(s) for s in again.session_index.tolist()]
    assert [file.name for file in path.parent.iterdir()] == ["run.records"]


def test_a_failed_run_leaves_no_file_and_a_broken_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.records"
    good = next(short_sessions(1))
    bad = replace(good, turns=(good.turns[0]._replace(num_prompt_tokens=0),))
    with pytest.raises(InputError):
        run(iter([good, bad]), FleetConfig(sessions=1, stagger_s=0.0), record_file=path)
    assert not list(tmp_path.iterdir())
    run([good], FleetConfig(), record_file=path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(InputError, match="cut off"):
        RecordFile(path)
    with pytest.raises(InputError, match="cannot be read"):
        RecordFile(tmp_path / "absent")
    with pytest.raises(InputError, match="cannot be written"):
        run([good], FleetConfig(), record_file=path / "below a file")


def test_memory_does_not_grow_with_the_number_of_requests(tmp_path: Path) -> None:
    """50,000 requests from an iterator to disk: no more is held at the end than at a fifth."""
    held: list[int] = []
    number = 12_500

    def sessions() -> Iterator[Session]:
        for s, session in enumerate(short_sessions(number)):
            if s in (number // 5, number - 100):
                gc.collect()
                held.append(sys.getallocatedblocks())
            yield session

    fleet = FleetConfig(replicas=2, sessions=20, router="session-affinity", stagger_s=1.0)
    gc.collect()
    before = sys.getallocatedblocks()
    result = run(sessions(), fleet, record_file=tmp_path / "run.records")
    assert result.counts.finished == len(result.records) == 50_000 < FLUSH_ROWS
    early, late = (blocks - before for blocks in held)
    assert late < early + 4000  # a tenth of a block a request that came in between
    assert result.records.columns["request_id"].tolist() == list(range(50_000))


def events_of(replicas: int, router: str) -> float:
    """Events a request at equal load per replica."""
    number = 0
    call_at = events.Clock.call_at

    def counting(*args: object) -> None:
        nonlocal number
        number += 1
        call_at(*args)  # type: ignore[arg-type]

    fleet = FleetConfig(replicas=replicas, router=router, sessions=4 * replicas)  # type: ignore[arg-type]
    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setenv("REPLICAST_COMPILED", "0")
        patched.setattr(events.Clock, "call_at", counting)
        result = run(list(short_sessions(16 * replicas)), fleet)
    return number / result.counts.finished


def test_events_a_request_do_not_grow_with_replicas() -> None:
    assert events_of(64, "session-affinity") < 1.2 * events_of(1, "session-affinity") < 10


def mooncake(path: Path, rows: int) -> Path:
    lines = [
        f'{{"timestamp": {700 * i}, "input_length": {700 + 9 * i}, "output_length": {i % 7}, '
        f'"hash_ids": [0, {i + 1}]}}'
        for i in range(rows)
    ]
    path.write_text("\n".join(lines))
    return path


def test_a_kept_trace_is_the_trace_and_never_a_stale_one(tmp_path: Path) -> None:
    trace, kept = mooncake(tmp_path / "trace.jsonl", 30), tmp_path / "kept"
    plain = load_trace([trace])
    assert load_trace([trace], cache=kept) == plain  # makes the entry
    (entry,) = kept.iterdir()
    made_ns = entry.stat().st_mtime_ns
    assert load_trace([trace], cache=kept) == plain  # reads it
    assert entry.stat().st_mtime_ns == made_ns
    assert load_trace([trace], cache=kept, token_scale=2.0) == load_trace([trace], token_scale=2.0)
    mooncake(trace, 31)
    assert load_trace([trace], cache=kept) == load_trace([trace]) != plain
    assert len(list(kept.iterdir())) == 3


def test_a_damaged_or_impossible_entry_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, kept = mooncake(tmp_path / "trace.jsonl", 30), tmp_path / "kept"
    monkeypatch.setenv("REPLICAST_TRACE_CACHE", str(kept))
    plain = load_trace([trace])
    (entry,) = kept.iterdir()
    whole = entry.read_bytes()
    for damaged in (
        b"",
        whole[:100],
        whole[:-50],
        whole[: len(whole) // 2] + b"?" + whole[len(whole) // 2 + 1 :],
    ):
        entry.write_bytes(damaged)
        assert load_trace([trace]) == plain
        assert entry.read_bytes() == whole
    assert load_trace([trace], cache=trace / "below a file") == plain
    assert load_trace([tmp_path / "trace.jsonl"], cache=kept) == plain
    with pytest.raises(InputError, match="cannot be read"):
        load_trace([tmp_path / "absent"])


def test_the_real_sessions_are_kept_as_they_are(shared_dir: Path, tmp_path: Path) -> None:
    trace = shared_dir / "traces/kv-cache-tester/sessions.canonical.jsonl.gz"
    loaded = load_trace([trace], cache=tmp_path)
    assert load_trace([trace], cache=tmp_path) == loaded


class ScoresAll(PrefixAware):
    """The router that looks at every replica."""

    def _candidates(self, path: object, idlest: int) -> range:
        return range(len(self._outstanding))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 9),
    st.integers(50, 400),
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 40), st.booleans()), max_size=120),
)
def test_the_replicas_that_prefix_aware_leaves_out_would_not_have_won(
    replicas: int, pool: int, steps: list[tuple[int, int, bool]]
) -> None:
    routers: list[PrefixAware] = [PrefixAware(replicas, pool), ScoresAll(replicas, pool)]
    flying: list[tuple[Asked, int]] = []
    for session, own, reply in steps:
        prompt = (Segment(session % 3, 0, 20), Segment(session, 100, own), Segment(session, 500 + own, 5))
        request = Asked(prompt, 25 + own, session)
        homes = [router.route(request) for router in routers]
        assert homes[0] == homes[1]
        flying.append((request, homes[0]))
        if reply:
            for router in routers:
                router.replied(*flying[0])
            del flying[0]


@pytest.mark.parametrize(
    "script", [["row.py", "short", "--limit", "200", "--profile"], ["streaming.py", "--requests", "400"]]
)
def test_benchmarks_run(script: list[str]) -> None:
    folder = Path(__file__).resolve().parents[1] / "benchmarks"
    done = subprocess.run([sys.executable, *script], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
