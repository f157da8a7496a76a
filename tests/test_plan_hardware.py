"""A choice of hardware: the published break-even, Pareto by hand, and the whole way through the library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replicast.library import choose_hardware
from replicast.library.reports import write_report
from replicast.sim.errors import InputError
from replicast.sim.planning.hardware import Capacity, Choice, _on_front, break_even
from replicast.traces.canonical_io import write_canonical
from replicast.traces.synth import generate
from replicast.traces.synth_fit import PRESETS

L40S = Capacity("L40S", 5, 3.004)
SLICE = Capacity("slice", 30, 7.912)
WHOLE = Capacity("p5en", 30, 7.912, box=8)


def test_published_economics() -> None:
    """Sessions a replica, prices and sums of the published comparison of one L40S with eight H200."""
    assert L40S.usd_per_hour(100) == pytest.approx(60.08)
    assert SLICE.usd_per_hour(100) == pytest.approx(31.65, abs=0.01)
    assert WHOLE.usd_per_hour(100) == pytest.approx(63.30, abs=0.01)
    assert break_even(L40S, WHOLE, 1000).developers == 106
    assert break_even(WHOLE, L40S, 1000) == break_even(L40S, WHOLE, 1000)


@settings(max_examples=50, deadline=None)
@given(st.floats(1, 20), st.floats(1, 60), st.floats(1, 10), st.floats(1, 10), st.integers(1, 8))
def test_break_even_equals_looking_at_every_number(
    carries_a: float, carries_b: float, price_a: float, price_b: float, box: int
) -> None:
    a, b = Capacity("a", carries_a, price_a), Capacity("b", carries_b, price_b, box)
    found = break_even(a, b, 300)
    large, small = (a, b) if found.cheaper == "a" else (b, a)
    cheaper = [large.usd_per_hour(n) < small.usd_per_hour(n) for n in range(1, 301)]
    last = max((n for n in range(1, 301) if not cheaper[n - 1]), default=0)
    assert found.developers == (last + 1 if last < 300 else None)


def test_front() -> None:
    def row(name: str, usd: float, wait_s: float) -> Choice:
        return Choice(name, 1, 1, usd, usd, wait_s, "meets", True)

    rows = [row("a", 1, 5), row("b", 2, 3), row("c", 2, 4), row("d", 3, 3)]
    assert [_on_front(r, rows) for r in rows] == [True, True, False, False]


def test_two_kinds_through_the_library(tmp_path: Path) -> None:
    write_canonical(generate(PRESETS["weka"], 25, 7), tmp_path / "s.jsonl.gz")
    kinds = [
        {"profile": "qwen3.8-27b-h200", "price": 7.912, "box": 8},
        {"profile": "qwen3.6-35b-h200", "price": 7.912, "name": "slice"},
    ]
    options = {"developers": 8, "slo": ["ttft:p90<20s"], "replications": 4, "with_sensitivity": False}
    answer = choose_hardware(tmp_path / "s.jsonl.gz", kinds, **options)  # type: ignore[arg-type]
    assert answer.exit_code == 0
    assert answer.choices[0].name == "slice"
    assert answer.text().startswith("Answer: slice, 1 replica for 8 developers, $7.91/h")
    document = json.loads(answer.document())
    assert document["schema"] == "replicast/hardware/1"
    assert set(document["plans"]) == {"qwen3.8-27b-h200-tp1", "slice"}
    assert len(answer.to_frame()) == 2
    assert {"front.svg", "report.html"} <= {path.name for path in write_report(answer, tmp_path, "again")}
    for bad in (kinds[:1], [kinds[0], kinds[0]]):
        with pytest.raises(InputError):
            choose_hardware(tmp_path / "s.jsonl.gz", bad, **options)  # type: ignore[arg-type]
