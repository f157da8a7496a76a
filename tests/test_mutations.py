"""The random cases are sharp: each planted fault makes the fast engine differ."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fuzz_engines import difference
from mutations import MUTATIONS, Mutation
from replicast.sim.engine.compiled import copy_sources

MOST_CASES = 1500


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_a_planted_fault_is_caught(
    mutation: Mutation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"faulty_engine_{MUTATIONS.index(mutation)}"
    copy_sources(tmp_path, name)
    path = tmp_path / name / "engine" / f"{mutation.module}.py"
    text = path.read_text()
    assert text.count(mutation.old) == 1, "the code changed: plant the fault anew"
    path.write_text(text.replace(mutation.old, mutation.new))
    monkeypatch.syspath_prepend(str(tmp_path))
    is_hybrid = mutation.module.startswith("hybrid")
    engines = vars(importlib.import_module(f"{name}.engine.{'hybrid.engine' if is_hybrid else 'macro'}"))
    engine = engines["HybridEngine" if is_hybrid else "MacroEngine"]
    counts: Counter[str] = Counter()
    assert any(
        difference(seed, features, counts, engine) is not None
        for seed in range(MOST_CASES)
        for features in (("hybrid",) if is_hybrid else ("", "tight"))
    )
