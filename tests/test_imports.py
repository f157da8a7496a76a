"""The arrows between packages, read from the source: who may import whom, and where libraries may appear.

cli, commands -> library -> calibration -> traces -> sim;
inside sim: report -> planning -> fleet -> engine -> the rest.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from replicast.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
LEVELS = ["replicast.sim", "replicast.traces", "replicast.calibration", "replicast.library", "replicast.cli"]
SIM_LEVELS = ["engine", "fleet", "planning", "report"]
# Library -> the only places that may import it; a trailing "()" means inside functions only.
LIBRARIES = {
    "simpy": ["sim/fleet"],
    "matplotlib": ["sim/report()"],
    "click": ["cli.py", "commands"],
    "pandas": ["sim/report()", "sim/fleet()", "sim/planning()", "traces()", "calibration", "library()"],
    "pyarrow": ["sim/report()", "sim/fleet()", "traces()", "calibration"],
    "scipy": ["sim/planning()", "calibration", "traces"],
}


def sources() -> list[Path]:
    folders = [ROOT / name for name in ("sim", "traces", "calibration", "library", "commands")]
    return sorted([*ROOT.glob("*.py"), *(file for folder in folders for file in folder.rglob("*.py"))])


def imports(file: Path) -> Iterator[tuple[str, bool]]:
    """(module, inside a function) of every import that runs; those for type checkers alone do not."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    inside: set[ast.AST] = set()
    typing_only: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside.update(ast.walk(node))
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            typing_only.update(ast.walk(node))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative import"
            names = [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            if node not in typing_only or name.startswith("replicast"):
                yield name, node in inside


def level(module: str) -> int:
    """Height of a module in the order of the arrows: 0 to 4 inside sim, then traces and so on up to cli."""
    parts = module.split(".")
    if module == "replicast.__version__":
        return 0
    if parts[:2] == ["replicast", "sim"]:
        return SIM_LEVELS.index(parts[2]) + 1 if len(parts) > 2 and parts[2] in SIM_LEVELS else 0
    heights = {"traces": 5, "calibration": 6, "library": 7}
    return heights.get(parts[1], 8) if len(parts) > 1 else 8


@pytest.mark.parametrize("file", sources(), ids=lambda file: str(file.relative_to(ROOT)))
def test_arrows(file: Path) -> None:
    relative = file.relative_to(ROOT)
    here = level(".".join(["replicast", *relative.with_suffix("").parts]).removesuffix(".__init__"))
    for module, inside_function in imports(file):
        if module.startswith("replicast."):
            assert level(module) <= here, f"{relative} imports {module}: against the arrows"
        library = module.split(".")[0]
        for place in LIBRARIES.get(library, [""]):
            folder = place.removesuffix("()")
            if str(relative).startswith(folder) and (inside_function or not place.endswith("()")):
                break
        else:
            pytest.fail(f"{relative} imports {library}, allowed in {LIBRARIES[library]} only")


def test_the_test_sees_what_it_should() -> None:
    assert (
        level("replicast.sim.report.text")
        > level("replicast.sim.planning")
        > level("replicast.sim.fleet.run")
    )
    assert level("replicast.sim.engine") > level("replicast.sim.workload")
    assert level("replicast.cli") > level("replicast.calibration.profile") > level("replicast.traces.load")
    assert ("click", False) in list(imports(ROOT / "cli.py"))


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)])
def test_help_loads_no_heavy_library(arguments: list[str]) -> None:
    program = (
        "import sys\nfrom replicast.cli import main\n"
        f"try: main({arguments!r})\nexcept SystemExit: pass\n"
        "heavy = {'numpy', 'pandas', 'matplotlib', 'scipy', 'simpy', 'msgspec'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {sorted(heavy)}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
