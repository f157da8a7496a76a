"""What-ifs: the grammar of changes, paired differences, mechanisms that move hits, saved results compared."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replicast.sim.errors import InputError
from replicast.sim.planning.changes import Change, label, parse_change, parse_variant, parse_vary
from replicast.sim.planning.compare import compare, welch
from replicast.sim.planning.parallel import Runner
from replicast.sim.planning.quantiles import Estimate
from replicast.sim.planning.replications import Task
from replicast.sim.planning.rows import Money
from replicast.sim.planning.whatif import Difference, make_whatif, paired, variants_of
from replicast.sim.report.whatif import comparison_object, comparison_text, lines, whatif_object, whatif_text

sys.path.insert(0, str(Path(__file__).parent))

import planning_cases as cases

# Grammar


@pytest.mark.parametrize(
    ("text", "base", "value"),
    [
        ("max-num-batched-tokens=16384", None, 16384),
        ("KV_pool=+50%", 200, 300),
        ("kv-pool=-25%", 200, 150),
        ("tool-gap=x0.5", 1, 0.5),
        ("--prefix-cache-hit-rate = .14", None, 0.14),
    ],
)
def test_changes(text: str, base: float | None, value: float) -> None:
    assert parse_change(text).number(base) == pytest.approx(value)


@pytest.mark.parametrize(
    ("texts", "what"),
    [
        (["kv-pool"], "not name=value"),
        (["kv-pool="], "not name=value"),
        (["cache-hit-rate=0.1"], "Did you mean prefix-cache-hit-rate"),
        (["qqq=1"], "cannot be set"),
        (["kv-pool=1", "kv_pool=2"], "set twice"),
    ],
)
def test_bad_changes(texts: list[str], what: str) -> None:
    with pytest.raises(InputError, match=what):
        parse_variant(texts)


@pytest.mark.parametrize(
    "text",
    [
        "prefix-cache-hit-rate=1.5", "prefix-cache-hit-rate=x", "router=nobody", "kv-pool=-100%",
        "kv-pool=nan",
        "max-num-seqs=1.5", "enable-prefix-caching=maybe", "block-size=0", "compute-time=x0", "subagents=3",
        "spec-accept=a", "scheduling-policy=lifo", "tools-prefix=+10%", "active=7", "developers=0",
    ],
)  # fmt: skip
def test_values_that_cannot_be(text: str) -> None:
    scenario, variant = cases.scenario(), parse_variant([text])
    with pytest.raises(InputError):
        scenario.study(variant)


def test_vary_and_set_together() -> None:
    vary = parse_vary("prefix-cache-hit-rate=0,0.14,0.9")
    arms = variants_of(parse_variant(["router=random"]), vary)
    assert label(arms[0]) == "router=random prefix-cache-hit-rate=0"
    with pytest.raises(InputError, match="set and varied"):
        variants_of(parse_variant(["kv-pool=1"]), parse_vary("kv-pool=1,2"))
    for text, said in (("kv-pool=1,1", "a value twice"), ("kv-pool=,", "names no value")):
        with pytest.raises(InputError, match=said):
            parse_vary(text)


def test_engine_changes_reach_the_engine() -> None:
    scenario = cases.scenario()
    base = scenario.study().engine
    tokens = base.num_usable_blocks * base.block_size

    def engine(text: str):  # type: ignore[no-untyped-def]
        return scenario.study(parse_variant([text])).engine

    assert engine("kv-pool=+50%").num_usable_blocks * 16 == pytest.approx(1.5 * tokens, abs=16)
    assert engine("block-size=64").num_usable_blocks * 64 == pytest.approx(tokens, abs=64)
    assert engine("max-num-batched-tokens=x2").max_num_batched_tokens == 4096
    assert engine("enable-prefix-caching=false").enable_prefix_caching is False
    assert scenario.study(parse_variant(["router=prefix-aware"])).fleet.router == "prefix-aware"
    slow = scenario.study(parse_variant(["compute-time=+25%"])).step_time
    assert slow.compute_per_token == round(1.25 * scenario.step_time.compute_per_token)
    assert slow.memory_fixed == scenario.step_time.memory_fixed


def test_sessions_end_where_a_changed_server_takes_no_more() -> None:
    whole = cases.scenario()
    longest = max(turn.num_prompt_tokens for session in whole.load.sessions for turn in session.turns)
    short = whole.study(parse_variant(["max-model-len=2500", "output-tokens=x2"])).load
    assert whole.load.left_out == 0
    assert short.left_out == sum(len(s.turns) for s in whole.load.sessions) - sum(
        len(s.turns) for s in short.sessions
    )
    assert all(turn.num_prompt_tokens < 2500 for session in short.sessions for turn in session.turns)
    cut = replace(whole, load=short, flags=replace(whole.flags, max_model_len=2500))
    again = cut.study(parse_variant([f"max-model-len={longest + 1}"])).load
    assert (short.left_out > 20, again.left_out) == (True, 0)


# Differences


def hits(changes: list[str], replicas: int = 2, pool_tokens: int = 40_000) -> float:
    with Runner(cases.scenario(8, pool_tokens=pool_tokens)) as runner:
        runs = runner.run_all([Task(parse_variant(changes), replicas, number) for number in range(3)])
    return sum(run.hit_rate for run in runs) / len(runs)


def test_mechanisms_move_the_hit_rate() -> None:
    as_it_is = hits([])
    assert hits(["prefix-cache-hit-rate=0.3"]) == pytest.approx(0.3, abs=0.01)
    assert hits(["prefix-cache-hit-rate=0"]) == 0.0
    assert hits(["broken-prefix=1"]) == 0.0
    assert hits(["tools-prefix=0"]) < as_it_is
    assert hits(["tools-prefix=3000"]) > as_it_is
    assert hits(["router=random"], pool_tokens=17_000) < hits([], pool_tokens=17_000)
    assert hits(["kv-pool=+100%"], 1, 17_000) > hits([], 1, 17_000)


def test_paired_intervals_are_smaller_than_unpaired() -> None:
    """Both arms share their sessions: what differs between hours cancels."""
    variant = parse_variant(["compute-time=+5%"])
    with Runner(cases.scenario()) as runner:
        before, after = (
            [run.ttft_mean_s for run in runner.run_all([Task(arm, 2, number) for number in range(14)])]
            for arm in ((), variant)
        )
    ours, theirs = paired(before, after), welch(before, after)
    assert ours.value == pytest.approx(theirs.value)
    assert _width(ours) < 0.9 * _width(theirs)


def _width(estimate: Estimate) -> float:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.high - estimate.low


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9)), min_size=2, max_size=9))
def test_a_difference_with_itself_is_nothing(pairs: list[tuple[float, float]]) -> None:
    values = [a for a, _ in pairs]
    assert paired(values, values) == Estimate(0.0, 0.0, 0.0, len(values))


@pytest.fixture(scope="module")
def pinned():  # type: ignore[no-untyped-def]
    with Runner(cases.scenario(8, ("ttft:p90<4s", "e2el:p50<60s"))) as runner:
        return make_whatif(
            runner, 2, [parse_variant(["prefix-cache-hit-rate=0.1"])], Money(2.0), replications=4
        )


def test_whatif_text(pinned) -> None:  # type: ignore[no-untyped-def]
    text = whatif_text(pinned, ["an assumption"])
    first = text.splitlines()[0]
    assert first.startswith("Replicas for ttft:p90<4s and e2el:p50<60s: 2 → ")
    assert "Key: ~ changed, = no clear change" in first
    assert "pinned: not what these sessions would produce" in text
    assert " ~ TTFT p90" in text
    assert "$/task" in text


def test_no_clear_change_is_said() -> None:
    differences = (
        Difference("TTFT p90", "time", 2.9, 18.9, Estimate(16.0, 14.0, 18.0, 20)),
        Difference("TPOT p50", "time", 0.030, 0.031, Estimate(0.001, -0.002, 0.004, 20)),
        Difference("hit rate", "share", 0.91, 0.14, Estimate(-0.77, -0.78, -0.76, 20)),
        Difference("$/task", "dollars", 0.88, 1.19, Estimate(0.31, 0.27, 0.36, 20)),
    )
    assert lines(differences) == [
        " ~ TTFT p90  +16 s [+14, +18]             (2.90 s → 18.9 s)",
        " = TPOT p50  +1 ms [-2, +4]               (30.0 ms → 31.0 ms)",
        " ~ hit rate  -77.0 points [-78.0, -76.0]  (91% → 14%)",
        " ~ $/task    +$0.31 [+$0.27, +$0.36]      ($0.880 → $1.19)",
    ]


def test_equal_differences_have_three_digits() -> None:
    same = Estimate(1.0, 0.9999999999, 1.0000000001, 2)
    assert lines([Difference("requests/h", "rate", 500.0, 501.0, same)]) == [
        " ~ requests/h  +1.00 [+1.00, +1.00]  (500 → 501)"
    ]


def test_nothing_changed_or_impossible() -> None:
    with Runner(cases.scenario()) as runner:
        for variants, replicas, replications in (
            ([], 2, 4),
            ([()], 2, 4),
            ([parse_variant(["active=1"])], 0, 4),
        ):
            with pytest.raises(InputError):
                make_whatif(runner, replicas, variants, Money(), replications=replications)
        with pytest.raises(InputError, match="2 replications"):
            make_whatif(runner, 2, [parse_variant(["router=random"])], Money(), replications=1)
        assert runner.num_run == 0


def test_more_replicas_as_a_change() -> None:
    with Runner(cases.scenario()) as runner:
        found = make_whatif(
            runner, 1, [parse_variant(["replicas=2"])], Money(2.0), replications=3, search=False
        )
    (arm,) = found.arms
    assert arm.replicas == 2
    hour = next(d for d in arm.differences if d.name == "$/h")
    assert (hour.before, hour.after) == (2.0, 4.0)


# Saved results


def document(whatif, seed: int = 1) -> dict[str, object]:  # type: ignore[no-untyped-def]
    from replicast.sim.report.document import dumps

    found = {"schema": "replicast/whatif/1", "seed": seed, "inputs": [{"sha256": "x"}], "config": {}}
    return json.loads(dumps({**found, **whatif_object(whatif)}))  # type: ignore[no-any-return]


def test_compare_a_document_with_itself(pinned) -> None:  # type: ignore[no-untyped-def]
    saved = document(pinned)
    found = compare(saved, saved)
    (row,) = found.rows
    assert row.paired
    assert not any(d.is_clear for d in row.differences)
    assert "(paired)" in comparison_text(found)
    assert comparison_object(found)["schema"] == "replicast/compare/1"
    other = compare(saved, document(pinned, seed=2))
    assert (other.rows[0].paired, other.changed_inputs) == (False, ("seed",))


def test_compare_refuses_what_it_does_not_know(pinned) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match="schema"):
        compare({"schema": "x"}, {"schema": "x"})
    with pytest.raises(InputError, match="cannot be compared"):
        compare(document(pinned), {"schema": "replicast/plan/1", "rows": []})


def test_welch_by_hand() -> None:
    found = welch([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    assert found.value == 3.0
    assert found.high == pytest.approx(3 + 2.7764 * (2 / 3) ** 0.5, rel=1e-4)
    assert Change("a", "1") == Change("a", "1")
