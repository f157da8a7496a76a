"""The hit rate emerges: N real sessions over a shared pool, against replays of them by other code.

Table: hit rate in percent of prompt tokens, each session's first request left out, by live sessions and
pool size in tokens, from an LRU replay of real coding-agent sessions (40 consecutive turns each, prompts up
to 200K, human and tool gaps up to 60 s, 3 draws), computed by other code on blocks. On the left nothing is
shared between sessions, on the right the first 15K tokens (tools and system prompt) by all.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from replicast.sim.config import EngineConfig
from replicast.sim.engine.step_time import StepTime
from replicast.sim.fleet.config import FleetConfig
from replicast.sim.fleet.run import simulate
from replicast.sim.workload import Content, Segment, Session, Turn, cut, join
from replicast.traces.load import load_trace

POOLS = (200_000, 350_000, 500_000, 700_000, 1_400_000, 2_800_000)
NOTHING_SHARED = {
    2: (97, 97, 97, 97, 97, 97),
    5: (46, 80, 97, 97, 97, 97),
    7: (31, 64, 85, 97, 97, 97),
    10: (22, 45, 66, 85, 98, 98),
    20: (4, 10, 20, 37, 79, 98),
}
PREFIX_SHARED = {
    2: (98, 98, 98, 98, 98, 98),
    5: (60, 90, 97, 97, 97, 97),
    7: (47, 76, 93, 97, 97, 97),
    10: (38, 61, 79, 96, 98, 98),
    20: (19, 27, 38, 54, 89, 98),
}
SHARED_TOKENS = 15_000
FRESH_BELOW = 40_000  # a longer first prompt continues an older conversation
TURNS = 40
SEED = 20261130
DRAWS = 4

# The published replay has no server: replies take what they took when recorded (they are in the delays
# here), so that sessions meet in the cache and never in the queue.
STEP_TIME = StepTime.from_seconds(memory_fixed_s=1e-5, compute_per_token_s=1e-9)


def _main_turns(session: Session) -> tuple[Turn, ...]:
    return tuple(turn for turn in session.turns if turn.agent == session.session_id)


def _fresh(sessions: tuple[Session, ...]) -> list[tuple[Turn, ...]]:
    turns = [_main_turns(session) for session in sessions]
    return [
        t
        for t in turns
        if len(t) > TURNS
        and t[0].num_prompt_tokens <= FRESH_BELOW
        and max(turn.num_prompt_tokens for turn in t) <= POOLS[0]
    ]


def _window(turns: tuple[Turn, ...], start: int, name: str, content: _Renamer) -> Session:
    """`TURNS` consecutive turns as a session of its own, its content renamed."""
    chosen = [
        Turn(
            turn_id=f"{name}#{i}",
            agent=name,
            depends_on=(i - 1,) if i else (),
            delay_s=_recorded_reply_s(turns, start + i) + min(turn.delay_s, 60.0) if i else 0.0,
            prompt=content(turn.prompt),
            output=content(turn.output),
            num_prompt_tokens=turn.num_prompt_tokens,
            num_output_tokens=turn.num_output_tokens,
        )
        for i, turn in enumerate(turns[start : start + TURNS])
    ]
    return Session(name, tuple(chosen))


def _recorded_reply_s(turns: tuple[Turn, ...], index: int) -> float:
    """How long the recorded server took for the turn before `index`."""
    turn, before = turns[index], turns[index - 1]
    assert turn.arrival_s is not None
    assert before.arrival_s is not None
    return max(turn.arrival_s - before.arrival_s - turn.delay_s, 0.0)


class _Renamer:
    """Gives a session streams of its own, so that nothing is shared by accident of its tools."""

    def __init__(self, session: int, shared_tokens: int) -> None:
        self._session = session
        self._shared_tokens = shared_tokens

    def __call__(self, content: Content) -> Content:
        own = tuple(Segment((s << 10) + self._session + 1, o, n) for s, o, n in content)
        if not self._shared_tokens:
            return own
        length = sum(n for _, _, n in own)
        head = min(self._shared_tokens, length)
        return join((Segment(0, 0, head), *cut(own, head, length)))


def _hit_rate(chosen: list[Session], pool_tokens: int) -> float:
    config = EngineConfig(
        num_gpu_blocks=pool_tokens // 16 + 1, max_model_len=pool_tokens, async_scheduling=False
    )
    fleet = FleetConfig(replicas=1, router="round-robin", sessions=len(chosen), stagger_s=60.0)
    records = simulate(chosen, config, STEP_TIME, fleet, seed=SEED).records
    later = records.finished & (records.turn_index > 0)
    return 100 * records.cached_tokens[later].sum() / records.prompt_tokens[later].sum()


@pytest.fixture(scope="module")
def trace_file(shared_dir: Path) -> Path:
    return shared_dir / "traces/kv-cache-tester/sessions.canonical.jsonl.gz"


@pytest.fixture(scope="module")
def fresh(trace_file: Path) -> list[tuple[Turn, ...]]:
    return _fresh(load_trace([trace_file]).sessions)


def _draw(fresh: list[tuple[Turn, ...]], live: int, draw: int, shared_tokens: int) -> list[Session]:
    rng = np.random.default_rng(np.random.SeedSequence(SEED, spawn_key=(draw, live)))
    out = []
    for i, k in enumerate(rng.choice(len(fresh), live, replace=False).tolist()):
        start = int(rng.integers(0, len(fresh[k]) - TURNS))
        out.append(_window(fresh[k], start, f"s{i}", _Renamer(i, shared_tokens)))
    return out


@pytest.mark.parametrize("shared_tokens", [0, SHARED_TOKENS])
@pytest.mark.parametrize("live", [2, 5, 7, 10, 20])
def test_pool_sweep(fresh: list[tuple[Turn, ...]], live: int, shared_tokens: int) -> None:
    expected = (PREFIX_SHARED if shared_tokens else NOTHING_SHARED)[live]
    draws = [_draw(fresh, live, draw, shared_tokens) for draw in range(DRAWS)]
    got = [float(np.mean([_hit_rate(chosen, pool) for chosen in draws])) for pool in POOLS]
    assert got == pytest.approx(expected, abs=10)


@pytest.mark.parametrize("live", [5, 10, 20])
def test_the_cliff_stands_at_70_to_100k_tokens_a_session(fresh: list[tuple[Turn, ...]], live: int) -> None:
    chosen = _draw(fresh, live, 0, 0)
    ample, enough, half = (_hit_rate(chosen, live * tokens) for tokens in (120_000, 70_000, 40_000))
    assert ample > 94
    assert 70 < enough < 94
    assert half < enough - 15


# kvcache.ai, kv_cache_lab, trace kv_cache_tester_claude_code: LRU hit rate by pool size in tokens, all
# sessions from t = 0 on, measured in the second half of the requests. Here a third of them is missing.
ALL_SESSIONS = {2_958_912: 52.8, 4_473_920: 71.4, 6_937_600: 83.7, 16_235_392: 94.9, 10**9: 97.5}


def test_all_sessions_at_once(trace_file: Path) -> None:
    sessions = load_trace([trace_file], share_prefixes=False).sessions
    sessions = tuple(replace(session, start_s=0.0) for session in sessions)
    got = []
    for pool in ALL_SESSIONS:
        config = EngineConfig(
            num_gpu_blocks=pool // 64 + 1,
            block_size=64,
            max_model_len=1_000_000,
            max_num_batched_tokens=1_000_000,
            async_scheduling=False,
        )
        fleet = FleetConfig(replicas=1, router="round-robin", loop="open")
        records = simulate(sessions, config, STEP_TIME, fleet, seed=SEED).records
        later = records.finished & (np.arange(len(records)) >= len(records) // 2)
        got.append(100 * records.cached_tokens[later].sum() / records.prompt_tokens[later].sum())
    assert got == pytest.approx(list(ALL_SESSIONS.values()), abs=8)
    assert got[-1] == pytest.approx(ALL_SESSIONS[10**9], abs=0.5)
