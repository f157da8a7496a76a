"""Trace statistics: the prefix tree against plain token lists, and hand-made sessions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replicast.sim.workload import Content, Segment, Session, Turn, join, num_tokens
from replicast.traces.load import load_trace
from replicast.traces.stats import PrefixTree, Spread, common_prefix, describe, spread

# Few streams and offsets, so that prompts meet, part within a run and meet again.
segments = st.builds(Segment, st.integers(0, 2), st.sampled_from([0, 2, 3, 5]), st.integers(1, 6))
contents = st.lists(segments, max_size=5).map(join)


def tokens_of(content: Content) -> list[tuple[int, int]]:
    return [(s.stream, s.offset + i) for s in content for i in range(s.length)]


def common(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(contents, max_size=4), max_size=4))
def test_tree_finds_the_longest_seen_prefix(owners: list[list[Content]]) -> None:
    tree = PrefixTree()
    before: list[tuple[int, list[tuple[int, int]]]] = []
    for owner, prompts in enumerate(owners):
        for prompt in prompts:
            tokens = tokens_of(prompt)
            seen, own = tree.insert(prompt, owner)
            assert seen == max((common(tokens, old) for _, old in before), default=0)
            assert own == max((common(tokens, old) for who, old in before if who == owner), default=0)
            before.append((owner, tokens))
    for i, (_, tokens) in enumerate(before):
        others = (common(tokens, old) for j, (_, old) in enumerate(before) if j != i)
        prompt = join(Segment(s, o, 1) for s, o in tokens)
        assert tree.shared(prompt) == max(others, default=0)


@given(contents, contents)
def test_common_prefix(a: Content, b: Content) -> None:
    assert common_prefix(a, b) == common(tokens_of(a), tokens_of(b))


def turn(
    name: str,
    agent: str,
    after: tuple[int, ...],
    *prompt: Segment,
    delay_s: float = 1.0,
    trigger: str = "tool",
) -> Turn:
    content = join(prompt)
    return Turn(name, agent, after, delay_s, content, (), num_tokens(content), 10, trigger=trigger)


def test_describe_by_hand() -> None:
    system, own = Segment(0, 0, 100), 1
    session = Session(
        "a",
        (
            turn("a0", "a", (), system, Segment(own, 0, 100), delay_s=0.0, trigger="user"),
            turn("a1", "a", (0,), system, Segment(own, 0, 300), delay_s=4.0),
            turn("s0", "a/1", (1,), Segment(5, 0, 64), delay_s=0.0, trigger="spawn"),
            turn("s1", "a/2", (1,), Segment(5, 0, 64), delay_s=0.0, trigger="spawn"),
            turn("a2", "a", (1, 2, 3), Segment(0, 0, 80), Segment(2, 0, 400), trigger="join"),
            turn("a3", "a", (4,), Segment(0, 0, 80), Segment(3, 0, 60), delay_s=400.0, trigger="user"),
        ),
    )
    other = Session("b", (turn("b0", "b", (), system, Segment(9, 0, 60), delay_s=0.0, trigger="user"),))
    stats = describe([session, other], block_size=16)
    assert (stats.sessions, stats.requests, stats.subagent_requests, stats.subagents) == (2, 7, 2, 2)
    assert stats.turns_per_session.max == 4
    assert {name: cause.requests for name, cause in stats.causes.items()} == {
        "first": 4, "growth": 1, "re_prefill": 1, "deep_edit": 0, "shrink": 1,
    }  # fmt: skip
    hits = 192 + 64 + 80 + 80
    prompts = 200 + 400 + 64 + 64 + 480 + 140 + 160
    assert stats.hit_rate_within == hits / prompts
    assert stats.hit_rate_across == (hits + 96) / prompts
    assert stats.uncached_tokens.n == 7
    assert stats.uncached_tokens.mean == (prompts - hits) / 7
    assert stats.re_prefill_share == 1 / 3
    assert (stats.tool_gap_s.p50, stats.human_gap_s.p50, stats.human_gap_over_300s) == (4.0, 400.0, 1.0)
    assert stats.shared_prefix_tokens.p50 == 100
    assert (stats.subagents_per_launch.max, stats.sessions_with_subagents) == (2, 1)


def test_nothing_to_describe_is_plain_json() -> None:
    assert spread([]) == Spread(0)
    assert json.loads(json.dumps(describe([]).to_dict(), allow_nan=False))["hit_rate_within"] is None


def test_published_figures_of_real_traces(shared_dir: Path) -> None:
    """STATS of the recordings; 523 of the 710 files that the published table is about."""
    weka = load_trace([shared_dir / "traces/kv-cache-tester/sessions.canonical.jsonl.gz"]).sessions
    stats = describe(weka, block_size=64)
    assert (stats.turns_per_session.p50, stats.tool_gap_s.p50) == (45, 9)
    assert stats.prompt_tokens.p50 == pytest.approx(104_000, rel=0.01)
    assert stats.uncached_tokens.p50 == pytest.approx(727, rel=0.01)
    assert stats.hit_rate_within == pytest.approx(0.963, abs=0.002)
    assert stats.re_prefill_share == pytest.approx(0.014, rel=0.1)
    mooncake = load_trace([shared_dir / "traces/mooncake/conversation_trace.jsonl"]).sessions
    assert describe(mooncake, block_size=512).hit_rate_across == pytest.approx(0.374, abs=0.002)
