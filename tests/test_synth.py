"""Synthetic sessions: same seed same bytes, valid whatever the knobs, fitted whatever the seed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replicast.sim.errors import InputError
from replicast.sim.workload import Session
from replicast.traces.canonical import CanonicalTrace, CountPrefix, TraceRequest, TraceSession
from replicast.traces.canonical_io import encode, write_canonical
from replicast.traces.load import load_trace
from replicast.traces.report import ImportReport
from replicast.traces.stats import describe
from replicast.traces.synth import compare, generate
from replicast.traces.synth_fit import PRESETS, SynthSpec
from replicast.traces.turns import Builder

WEKA = PRESETS["weka"]


def sessions_of(trace: CanonicalTrace) -> list[Session]:
    return Builder(ImportReport("canonical")).sessions(trace)


def requests_of(trace: CanonicalTrace) -> list[TraceRequest]:
    return [line for line in trace.lines if isinstance(line, TraceRequest)]


specs = st.builds(
    replace,
    st.sampled_from(list(PRESETS.values())),
    turns_scale=st.sampled_from([0.02, 0.3, 1.0]),
    prompt_scale=st.sampled_from([0.01, 0.2, 1.0, 3.0]),
    growth_scale=st.sampled_from([0.1, 1.0, 20.0]),
    output_scale=st.sampled_from([0.01, 1.0]),
    shared_prefix_tokens=st.sampled_from([None, 0, 15_000, 1_000_000]),
    prefix_groups=st.sampled_from([1, 343]),
    max_prompt_tokens=st.sampled_from([1_000, 30_000, 900_000]),
    re_prefill_share=st.sampled_from([0.0, 0.014, 1.0]),
    deep_edit_share=st.sampled_from([0.0, 1.0]),
    human_share=st.sampled_from([0.0, 0.14, 1.0]),
    subagent_share=st.sampled_from([0.0, 0.024, 1.0]),
    subagent_fan_out=st.sampled_from([1, 4]),
)


@settings(max_examples=25, deadline=None)
@given(specs, st.integers(1, 12), st.integers(0, 1000))
def test_every_session_is_valid(spec: SynthSpec, sessions: int, seed: int) -> None:
    trace = generate(spec, sessions, seed)
    prompts: dict[str, int] = {}
    turns: dict[str, int] = {}
    for line in trace.lines:
        if isinstance(line, TraceSession):
            assert line.session not in turns
            assert line.parent is None or line.parent in turns
            turns[line.session] = 0
            continue
        assert isinstance(line, TraceRequest)
        assert line.turn == turns[line.session]
        turns[line.session] += 1
        assert line.wait_for is not None
        assert all(name in prompts for name in line.wait_for)
        prefix = line.prefix
        assert isinstance(prefix, CountPrefix)
        assert 0 <= prefix.keep_tokens <= line.prompt_tokens
        if prefix.base is not None:
            assert prefix.keep_tokens <= prompts[prefix.base]
        assert 1 <= line.prompt_tokens <= spec.max_prompt_tokens
        assert line.output_tokens >= 1
        assert line.delay_s is not None
        assert line.delay_s >= 0
        prompts[line.id] = line.prompt_tokens
    assert sum(isinstance(line, TraceSession) and line.kind == "root" for line in trace.lines) == sessions
    assert all(turns.values())
    assert describe(sessions_of(trace)).requests == len(prompts)


def test_same_seed_same_bytes() -> None:
    def text(seed: int) -> bytes:
        return b"".join(encode(generate(WEKA, 40, seed)))

    assert text(7) == text(7)
    assert text(7) != text(8)


@pytest.mark.parametrize(("sessions", "seed"), [(500, 1), (500, 7), (500, 20), (400, 3), (710, 4)])
def test_weka_figures_within_ten_percent(sessions: int, seed: int) -> None:
    stats = describe(sessions_of(generate(WEKA, sessions, seed)))
    rows = compare(WEKA, stats)
    assert len(rows) == len(WEKA.targets)
    assert {row.name: row.error for row in rows if row.error is None or abs(row.error) > 0.1} == {}
    assert stats.hit_rate_within is not None
    assert 1 - stats.hit_rate_within == pytest.approx(1 - 0.963, rel=0.1)
    assert stats.shared_prefix_tokens.p90 is not None
    assert stats.human_turn_share == pytest.approx(WEKA.human_share, rel=0.05)
    assert stats.sessions_with_subagents == round(WEKA.subagent_share * sessions)


def test_fresh_figures_follow_without_being_fitted() -> None:
    spec = PRESETS["fresh"]
    rows = compare(spec, describe(sessions_of(generate(spec, 300, 5))))
    assert {row.name: row.error for row in rows if row.error is None or abs(row.error) > 0.1} == {}


def test_few_sessions_are_sane() -> None:
    rows = compare(WEKA, describe(sessions_of(generate(WEKA, 30, 11))))
    loose = {
        "prompt_tokens.p90",
        "prompt_tokens.p99",
        "output_tokens.p99",
        "tool_gap_s.p99",
        "human_gap_s.p90",
    }
    assert {r.name: r.error for r in rows if r.error is None or abs(r.error) > 0.2}.keys() <= loose


def test_knobs_do_what_they_say() -> None:
    base = describe(sessions_of(generate(WEKA, 60, 2)))
    spec = replace(
        WEKA,
        tool_gap_scale=0.1,
        output_scale=2.0,
        prompt_scale=0.5,
        shared_prefix_tokens=9_000,
        prefix_groups=1,
    )
    stats = describe(sessions_of(generate(spec, 60, 2)))
    names = [row.name for row in compare(spec, stats)]
    assert "prompt_tokens.p50" not in names
    assert "tool_gap_s.p50" in names
    assert stats.prompt_tokens.p50 == pytest.approx(base.prompt_tokens.p50 * 0.5, rel=0.1)
    assert stats.output_tokens.p50 == pytest.approx(base.output_tokens.p50 * 2, rel=0.05)
    assert stats.tool_gap_s.p50 == pytest.approx(base.tool_gap_s.p50 * 0.1, rel=0.1)
    assert stats.shared_prefix_tokens.p50 == 9_000


def test_sub_agents_fork_and_join() -> None:
    trace = generate(replace(WEKA, subagent_share=0.5, subagent_fan_out=4), 60, 2)
    stats = describe(sessions_of(trace))
    assert stats.sessions_with_subagents == 30
    assert stats.subagents_per_launch.max == 4
    joins = [request for request in requests_of(trace) if request.trigger == "join"]
    assert joins
    assert all(len(request.wait_for or ()) >= 2 for request in joins)


@pytest.mark.parametrize(
    "change", [{"human_share": 1.5}, {"prompt_scale": 0.0}, {"prefix_groups": 0}, {"max_prompt_tokens": 0}]
)
def test_absurd_knobs_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(change))):
        generate(replace(WEKA, **change), 3, 1)  # type: ignore[arg-type]


def test_no_session_is_refused() -> None:
    with pytest.raises(InputError, match="sessions is 0"):
        generate(WEKA, 0, 1)


def test_written_and_loaded_is_the_same_workload(tmp_path: Path) -> None:
    trace = generate(WEKA, 20, 3)
    write_canonical(trace, tmp_path / "synth.jsonl.gz")
    loaded = load_trace([tmp_path / "synth.jsonl.gz"])
    assert not loaded.report.dropped
    assert describe(loaded.sessions) == describe(sessions_of(trace))
