"""The report page: self-contained, the same bytes each time, and it opens in a browser without complaint."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from replicast.sim.errors import InputError
from replicast.sim.planning.changes import parse_variant
from replicast.sim.planning.cliff import cache_cliff
from replicast.sim.planning.parallel import Runner
from replicast.sim.planning.plan import make_plan
from replicast.sim.planning.replications import simulate_replication
from replicast.sim.planning.rows import Money
from replicast.sim.planning.whatif import make_whatif
from replicast.sim.report.figures_timeline import computed_tokens, timeline_figure
from replicast.sim.report.html import Section, page
from replicast.sim.report.plan_page import (
    plan_page,
    plan_pictures,
    whatif_page,
    whatif_pictures,
    write_pictures,
)

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import planning_cases as cases


@pytest.fixture(scope="module")
def made():  # type: ignore[no-untyped-def]
    """A small plan with all its pictures, and the run of one of its hours."""
    scenario = cases.scenario(8, ("ttft:p90<4s",), pool_tokens=20_000)
    with Runner(scenario) as runner:
        plan = make_plan(runner, Money(2.0), replications=4)
        points = cache_cliff(runner, 2)
    study = scenario.study()
    run = simulate_replication(study, study.load.draw(0), 2, 0)
    return plan, points, run


def a_page(made) -> str:  # type: ignore[no-untyped-def]
    plan, points, run = made
    pictures = plan_pictures(plan, points, run)
    assert list(pictures) == ["waiting", "parts", "cost", "cliff", "timeline"]
    return plan_page(plan, ["a < b & c"], [], ["a warning"], 'replicast plan "x"', pictures)


class _Outside(HTMLParser):
    """Collects whatever would make a browser ask somebody."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data", "action") and not (value or "").startswith("#"):
                self.found.append(f"{tag} {name}={value}")
            if name == "id":
                self.ids.append(value or "")
        if tag in ("script", "link", "iframe", "img", "object"):
            self.found.append(tag)


def test_page_asks_nobody_and_has_each_id_once(made) -> None:  # type: ignore[no-untyped-def]
    html = a_page(made)
    outside = _Outside()
    outside.feed(html)
    assert outside.found == []
    assert len(outside.ids) == len(set(outside.ids))
    wanted = re.findall(r"url\(#([^)]+)\)", html) + re.findall(r'href="#([^"]+)"', html)
    assert set(wanted) <= set(outside.ids)
    assert "@import" not in html
    assert "a &lt; b &amp; c" in html
    assert 'replicast plan "x"' in html or "replicast plan &quot;x&quot;" in html


def test_same_bytes(made) -> None:  # type: ignore[no-untyped-def]
    assert a_page(made) == a_page(made)


def test_pictures_are_sound_files(made, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    written = write_pictures(plan_pictures(*made), tmp_path)
    assert len(written) == 10
    for path in written:
        if path.suffix == ".svg":
            ET.parse(path)
        else:
            assert path.read_bytes().startswith(b"\x89PNG")


def test_computed_tokens_add_up(made) -> None:  # type: ignore[no-untyped-def]
    run = made[2]
    edges = np.linspace(0.0, run.duration_s, 50)
    width = edges[1]
    total = sum(
        float(part.sum()) * width for replica in (0, 1) for part in computed_tokens(run, replica, edges)
    )
    records = run.records
    expected = (records.prompt_tokens - records.cached_tokens + records.output_tokens - 1)[records.finished]
    assert total == pytest.approx(float(expected.sum()), rel=1e-6)


def test_impossible_windows(made) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError):
        timeline_figure(made[2], replica=7)
    with pytest.raises(InputError):
        timeline_figure(made[2], window_s=(10.0, 10.0))


def test_cliff_falls_with_the_pool(made) -> None:  # type: ignore[no-untyped-def]
    points = [p for p in made[1] if p.live_sessions == 16]
    ordered = sorted(points)
    assert ordered[0].hit_rate <= ordered[-1].hit_rate


def test_empty_sections_are_left_out() -> None:
    assert "<h2>" not in page("t", [Section("nothing")])


@pytest.mark.parametrize("kind", ["plan", "whatif"])
def test_in_a_browser(made, kind: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Headless Chromium loads the page, logs no error, and the figures are drawn."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium is installed")
    if kind == "plan":
        html = a_page(made)
    else:
        with Runner(cases.scenario(8)) as runner:
            whatif = make_whatif(
                runner, 2, [parse_variant(["router=random"])], Money(), replications=3, search=False
            )
        html = whatif_page(whatif, ["x"], [], "replicast whatif", whatif_pictures(whatif))
    path = tmp_path / "report.html"
    path.write_text(html, encoding="utf-8")
    common = [
        browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0",
        f"--user-data-dir={tmp_path / 'profile'}", "--proxy-server=127.0.0.1:9", "--disable-dev-shm-usage",
    ]  # fmt: skip
    dumped = subprocess.run(
        [*common, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    assert "<h1>" in dumped.stdout
    assert dumped.stdout.count("<svg") == html.count("<svg")
    assert "CONSOLE" not in dumped.stderr
    shot = tmp_path / "page.png"
    subprocess.run(
        [*common, f"--screenshot={shot}", "--window-size=1000,1600", path.as_uri()],
        capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    from matplotlib.image import imread

    pixels = imread(shot)[:, :, :3]
    assert pixels.std() > 0.02  # something is drawn
