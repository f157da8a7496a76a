"""Routers: what each promises, and what none may see."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replicast.sim.fleet.prefix_router import PrefixAware, PrefixIndex
from replicast.sim.fleet.routers import (
    LeastLoaded,
    RandomChoice,
    RoundRobin,
    RoutedRequest,
    Router,
    SessionAffinity,
)
from replicast.sim.workload import Content, Segment, join, num_tokens

sys.path.insert(0, str(Path(__file__).parent))

from router_cases import Asked


def request(session: int = 0, *segments: tuple[int, int, int]) -> Asked:
    prompt = join(Segment(*segment) for segment in segments or ((session + 1, 0, 100),))
    return Asked(prompt, num_tokens(prompt), session)


def test_a_router_sees_nothing_of_the_output() -> None:
    seen = {name for name in vars(RoutedRequest) if not name.startswith("_")}
    assert seen == {"prompt", "num_prompt_tokens", "session_key", "priority"}


def test_round_robin_goes_in_turn() -> None:
    router = RoundRobin(3)
    assert [router.route(request()) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_random_is_uniform_and_follows_its_generator() -> None:
    choices = [RandomChoice(4, np.random.default_rng(9)) for _ in range(2)]
    first, second = ([router.route(request()) for _ in range(4000)] for router in choices)
    assert first == second
    assert all(850 < count < 1150 for count in Counter(first).values())


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 50)), max_size=200), st.integers(1, 5))
def test_least_loaded_always_takes_the_least_of_its_order(
    steps: list[tuple[bool, int]], replicas: int
) -> None:
    router = LeastLoaded(replicas)
    outstanding: list[tuple[Asked, int]] = []
    sent = [0] * replicas
    for reply, tokens in steps:
        if reply and outstanding:
            router.replied(*outstanding.pop(tokens % len(outstanding)))
            continue
        order = []
        for replica in range(replicas):
            here = [routed.num_prompt_tokens for routed, where in outstanding if where == replica]
            order.append((len(here), sum(here), sent[replica], replica))
        routed = request(0, (1, 0, tokens))
        chosen = router.route(routed)
        assert chosen == min(order)[3]
        outstanding.append((routed, chosen))
        sent[chosen] += 1


def test_affinity_is_sticky_and_places_new_sessions_on_the_least_loaded() -> None:
    router = SessionAffinity(3)
    homes = [router.route(request(session)) for session in range(6)]
    assert sorted(homes) == [0, 0, 1, 1, 2, 2]
    assert [router.route(request(session)) for session in range(6)] == homes
    router.replied(request(0), homes[0])
    router.replied(request(0), homes[0])
    assert router.route(request(99)) == homes[0]


def test_affinity_spreads_sessions_that_never_overlap() -> None:
    router = SessionAffinity(4)
    placed = []
    for session in range(40):
        placed.append(router.route(request(session)))
        router.replied(request(session), placed[-1])
    assert set(Counter(placed).values()) == {10}


def grown(session: int, turn: int, system: int = 15_000) -> Asked:
    """Turn of a session whose prompts all start with one system prompt."""
    return request(session, (0, 0, system), (session + 1, 0, 2_000 + 3_000 * turn))


@pytest.mark.parametrize("overlap", [0, 1, 30])
def test_prefix_aware_keeps_sessions_at_their_cache_and_spreads_what_all_share(overlap: int) -> None:
    router: Router = PrefixAware(4, pool_tokens=2_000_000)
    rng = np.random.default_rng(4)
    turns = [0] * 40
    homes: list[list[int]] = [[] for _ in turns]
    flying: list[tuple[Asked, int]] = []
    for session in np.repeat(np.arange(40), 12)[rng.permutation(480)].tolist():
        routed = grown(session, turns[session])
        turns[session] += 1
        homes[session].append(router.route(routed))
        flying.append((routed, homes[session][-1]))
        if len(flying) > overlap:
            router.replied(*flying.pop(int(rng.integers(len(flying)))))
    load = Counter(home for session in homes for home in session)
    assert len(load) == 4
    assert max(load.values()) < 2 * 480 / 4
    moves = sum(a != b for session in homes for a, b in pairwise(session))
    assert moves < 0.15 * 480


def test_prefix_aware_gathers_groups_by_what_they_share() -> None:
    router = PrefixAware(4, pool_tokens=2_000_000)
    homes: dict[int, list[int]] = {group: [] for group in range(4)}
    for i in range(200):
        group = i % 4
        routed = request(i, (group, 0, 50_000), (100 + i, 0, 1_000))
        homes[group].append(router.route(routed))
        router.replied(routed, homes[group][-1])
    for where in homes.values():
        assert Counter(where[10:]).most_common(1)[0][1] > 0.9 * len(where[10:])


def test_prefix_aware_leaves_a_busy_replica_even_at_a_full_match() -> None:
    router = PrefixAware(2, pool_tokens=1_000_000)
    assert {router.route(request(0)) for _ in range(6)} == {0, 1}


contents = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=5
).map(lambda parts: join(Segment(*part) for part in parts))


def tokens_of(content: Content) -> list[tuple[int, int]]:
    return [(stream, offset + i) for stream, offset, length in content for i in range(length)]


@given(st.lists(st.tuples(contents, st.integers(0, 1)), max_size=20), contents)
def test_index_matches_exactly_the_longest_prefix_sent(
    sent: list[tuple[Content, int]], prompt: Content
) -> None:
    index = PrefixIndex(2, capacity_tokens=10**9)
    longest = [0, 0]
    wanted = tokens_of(prompt)
    for content, replica in sent:
        index.insert(content, replica)
        same = 0
        for ours, theirs in zip(wanted, tokens_of(content), strict=False):
            if ours != theirs:
                break
            same += 1
        longest[replica] = max(longest[replica], same)
    assert index.match(prompt) == longest


@given(st.lists(st.tuples(contents, st.integers(0, 1)), max_size=60), st.integers(1, 40))
def test_index_memory_is_bounded(sent: list[tuple[Content, int]], capacity: int) -> None:
    index = PrefixIndex(2, capacity)
    for content, replica in sent:
        index.insert(content, replica)
        assert max(index.tokens) <= capacity
        assert max(index.match(content)) <= min(capacity, num_tokens(content))


def test_index_forgets_the_least_recently_sent_tail_first() -> None:
    index = PrefixIndex(1, capacity_tokens=100)
    system = Segment(0, 0, 40)
    first, second, third = ((system, Segment(stream, 0, 30)) for stream in (1, 2, 3))
    for prompt in (first, second, third):
        index.insert(prompt, 0)
    assert [index.match(prompt) for prompt in (first, second, third)] == [[40], [70], [70]]
