"""The README's commands run, its tables look as printed, and generated pages are up to date."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """`docs/generate.py`."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# What moves with engine and profiles: figures, verdicts, what binds, how well a profile is known.
MOVES = re.compile(
    r"[-+~=$\d.,→:%\[\]]+|\b(nothing|seats|token budget|KV blocks|meets|fails|inconclusive|is|points|m?s|"
    r"provisional|calibrated|uncalibrated|none)\b"
)


def words(text: str) -> list[str]:
    """Lines without what moves; warnings and notes on the profile's range come and go with it."""
    lines = (" ".join(MOVES.sub(" ", line).split()) for line in text.splitlines())
    return [line for line in lines if line and not line.startswith(("Warning", "Extrapolated"))]


def test_readme_commands(generate: ModuleType) -> None:
    assert words(generate.readme()) == words(generate.README.read_text(encoding="utf-8")), "run `make docs`"


def test_readme_opens_with_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first = text.split("```")[1].split()
    assert first == ["make", "demo", "make", "test"]


def test_cli_page(generate: ModuleType) -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert " ".join(page.split()) == " ".join(generate.cli_page().split()), "run `make docs`"


@pytest.mark.parametrize(
    "page", sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]), ids=lambda p: p.name
)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name}: {target}"
