"""What can go wrong while the engine is compiled: one message, and no half of a build is ever taken."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from replicast.sim.engine import compiled
from replicast.sim.errors import InputError

Run = Callable[..., subprocess.CompletedProcess[str]]


def compiler(monkeypatch: pytest.MonkeyPatch, folder: Path, meanwhile: Callable[[], object]) -> None:
    """A compiler that does nothing, while something happens."""

    def run(*arguments: object, **more: object) -> subprocess.CompletedProcess[str]:
        meanwhile()
        return subprocess.CompletedProcess([], 0, "", "")

    monkeypatch.setenv("REPLICAST_CACHE", str(folder))
    monkeypatch.setattr("replicast.sim.engine.compiled.subprocess.run", run)


def test_of_two_builds_at_once_the_first_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tmp_path / compiled.package_name() / "first"
    compiler(monkeypatch, tmp_path, lambda: (first.parent.mkdir(), first.touch()))
    assert compiled.build() == first.parent
    assert list(tmp_path.iterdir()) == [first.parent]
    assert list(first.parent.iterdir()) == [first]


def test_text_changed_while_it_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = compiled.package_name()

    def edit() -> None:
        monkeypatch.setattr("replicast.sim.engine.compiled.sys.version", "another")

    compiler(monkeypatch, tmp_path, edit)
    with pytest.raises(InputError, match="changed meanwhile"):
        compiled.build()
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("broken", ["folder", "compiler"])
def test_one_message_where_it_cannot_be_compiled(broken: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    if broken == "folder":
        cache.touch()
    else:
        (tmp_path / "mypyc").mkdir()
        (tmp_path / "mypyc" / "__init__.py").write_text("raise ImportError('no mypyc')")
    done = subprocess.run(
        [sys.executable, "-m", "replicast.sim.engine.compiled"],
        env={**os.environ, "REPLICAST_CACHE": str(cache), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not cache.is_dir() or not list(cache.iterdir())
