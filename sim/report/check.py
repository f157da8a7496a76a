"""The verdict on a sweep: on the screen, as JSON `replicast/check/1`, and as an entry of a findings log.

The answer comes first, in one line; then a table of checks against levels, the findings with their figures
and remedies, and the next command. What a check found is given as it is: nothing is decided here.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from replicast.sim.report.document import plain
from replicast.sim.report.files import write_text
from replicast.sim.report.numbers import significant
from replicast.sim.report.text import plural, table

CHECK_SCHEMA = "replicast/check/1"
LOG_TITLE = "# Findings"
WIDTH = 108
MARKS = {"fail": "FAIL", "warn": "WARN"}
NOT_SEEN = ("", "-")
LEGIBLE = 1e15  # of larger figures nobody reads the digits
WIDEST = 24  # characters of a cell; longer ones are figures that law 7 calls no measurement


class FindingLike(Protocol):
    """One finding; `level` is a position, None for the whole sweep."""

    @property
    def law(self) -> int: ...
    @property
    def check(self) -> str: ...
    @property
    def severity(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def evidence(self) -> tuple[tuple[str, float | int | str | None], ...]: ...
    @property
    def remedy(self) -> str: ...
    @property
    def level(self) -> int | None: ...


class RowLike(Protocol):
    """One row of the table."""

    @property
    def check(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def cells(self) -> tuple[str, ...]: ...
    @property
    def law(self) -> str: ...


class CheckLike(Protocol):
    """What a check of a sweep gives."""

    @property
    def verdict(self) -> str: ...
    @property
    def findings(self) -> Sequence[FindingLike]: ...
    @property
    def left_out(self) -> tuple[int, ...]: ...
    @property
    def rows(self) -> Sequence[RowLike]: ...
    @property
    def laws(self) -> tuple[int, ...]: ...
    @property
    def parallel_per_session(self) -> int | None: ...
    @property
    def source(self) -> str: ...
    @property
    def model(self) -> str | None: ...
    @property
    def given(self) -> Mapping[str, object]: ...
    @property
    def concurrencies(self) -> tuple[int | None, ...]: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    def labels(self) -> tuple[str, ...]: ...


def answer(result: CheckLike) -> str:
    """The verdict in one line."""
    labels = result.labels()
    if result.verdict == "usable":
        return (
            f"Usable: {'all ' if len(labels) > 1 else ''}{plural(len(labels), 'level')} "
            f"hold{'s' * (len(labels) == 1)}."
        )
    if result.verdict == "not-usable":
        whole = any(f.severity == "fail" and f.level is None for f in result.findings)
        failed = len(labels) if whole else len(result.left_out)
        verb = "fails" if len(labels) == 1 else "fail"
        return (
            f"Not usable: {failed} of {plural(len(labels), 'level')} {verb}. Do not calibrate on this sweep."
        )
    out = ", ".join(labels[i] for i in result.left_out)
    warned = dict.fromkeys(f.check for f in result.findings if f.severity == "warn")
    why = [f"{out} fail{'s' * (len(result.left_out) == 1)}"] if out else []
    why += [f"mind {', '.join(warned)}"] if warned else []
    return f"Usable with care ({plural(len(result.left_out), 'level')} left out): {'; '.join(why)}."


def check_text(result: CheckLike) -> str:
    """All of it, as it is shown on the screen."""
    parts = [answer(result), "", check_table(result), ""]
    serious = [f for f in result.findings if f.severity in MARKS]
    notes = [f for f in result.findings if f.severity not in MARKS]
    labels = result.labels()
    told = ""
    for finding in serious:
        parts += _shown(finding, labels, remedy=finding.remedy != told)
        told = finding.remedy
    if serious:
        parts.append("")
    if notes:
        parts += [line for finding in notes for line in _noted(finding, labels)]
        parts.append("")
    parts.append(next_command(result))
    return "\n".join(parts)


def check_table(result: CheckLike) -> str:
    """Checks against levels, with FAIL and WARN where a finding says so, and the law of each row."""
    rows = []
    for row in result.rows:
        if all(cell in NOT_SEEN for cell in row.cells):
            continue
        marks = _marks(result.findings, row)
        legible = [cell if len(cell) <= WIDEST else "absurd" for cell in row.cells]
        cells = [f"{cell or ' '}  {marks[i]}" if marks[i] else cell for i, cell in enumerate(legible)]
        rows.append([row.title, *cells, row.law])
    header = ["level", *result.labels(), "law"]
    return table(header, rows, left=range(len(header)))


def next_command(result: CheckLike) -> str:
    """What to do with the verdict."""
    if result.verdict == "not-usable":
        return "Next: replicast check NEW_SWEEP   (exit 3)"
    kept = [c for i, c in enumerate(result.concurrencies) if i not in result.left_out]
    levels = f" --levels {','.join(str(c) for c in kept)}" if result.left_out and None not in kept else ""
    return f"Next: replicast calibrate {result.source}{levels} --out profile.toml"


def check_document(result: CheckLike) -> dict[str, object]:
    """The document without `tool`, `inputs` and `timing`, which the command adds."""
    labels = result.labels()
    return {
        "schema": CHECK_SCHEMA,
        "verdict": result.verdict,
        "usable": result.verdict != "not-usable",
        "answer": answer(result),
        "model": result.model,
        "config": {
            "given": plain(result.given),
            "parallel_per_session": result.parallel_per_session,
            "laws": list(result.laws),
        },
        "levels": [
            {
                "level": labels[i],
                "concurrency": concurrency,
                "left_out": i in result.left_out,
                "checks": {row.check: row.cells[i] for row in result.rows},
                "worst": _worst(f for f in result.findings if f.level == i),
            }
            for i, concurrency in enumerate(result.concurrencies)
        ],
        "levels_left_out": [labels[i] for i in result.left_out],
        "findings": [
            {
                "law": finding.law,
                "check": finding.check,
                "severity": finding.severity,
                "level": None if finding.level is None else labels[finding.level],
                "concurrency": None if finding.level is None else result.concurrencies[finding.level],
                "text": finding.text,
                "evidence": {name: plain(value) for name, value in finding.evidence},
                "remedy": finding.remedy or None,
            }
            for finding in result.findings
        ],
        "notes": list(result.notes),
        "next": next_command(result),
    }


def log_entry(result: CheckLike, date: str) -> str:
    """A dated Markdown entry: model, hardware, verdict, findings, settings."""
    labels = result.labels()
    given = result.given
    where = " ".join(str(given[name]) for name in ("gpus", "gpu", "instance") if given.get(name) is not None)
    lines = [
        f"## {date}: {result.model or 'model not named'}" + (f" on {where}" if where else ""),
        "",
        f"**{answer(result)}** Source: `{result.source}`.",
        "",
    ]
    for finding in result.findings:
        if finding.severity in MARKS:
            at = "" if finding.level is None else f" {labels[finding.level]}"
            said = f"- {MARKS[finding.severity]}{at} (law {finding.law}): {finding.text}. {finding.remedy}"
            lines.append(said.rstrip())
    settings = [f"{name}={value}" for name, value in given.items() if name != "model"]
    if result.parallel_per_session is not None:
        settings.append(f"parallel_per_session={result.parallel_per_session}")
    lines += [""] * (lines[-1] != "")
    lines.append(f"Settings: {', '.join(settings) or 'not told'}.")
    return "\n".join(lines) + "\n"


def add_to_log(path: Path, entry: str) -> None:
    """Put the entry on top of the others of a findings file; a new file gets a title."""
    old = path.read_text(encoding="utf-8") if path.exists() else f"{LOG_TITLE}\n"
    lines = old.splitlines(keepends=True)
    at = next((i for i, line in enumerate(lines) if line.startswith("## ")), len(lines))
    head, rest = "".join(lines[:at]).rstrip("\n"), "".join(lines[at:])
    write_text(path, f"{head}\n\n{entry}" + (f"\n{rest}" if rest else ""))


def _marks(findings: Sequence[FindingLike], row: RowLike) -> list[str]:
    marks = []
    for i, cell in enumerate(row.cells):
        here = [
            f.severity
            for f in findings
            if f.check == row.check and (f.level == i or (f.level is None and cell not in NOT_SEEN))
        ]
        marks.append(next((mark for severity, mark in MARKS.items() if severity in here), ""))
    return marks


def _worst(findings: Iterable[FindingLike]) -> str:
    severities = {f.severity for f in findings}
    return next((severity for severity in MARKS if severity in severities), "ok")


def _shown(finding: FindingLike, labels: Sequence[str], *, remedy: bool) -> list[str]:
    """The finding and its figures, and its remedy unless the one before has said the same."""
    at = "all levels" if finding.level is None else labels[finding.level]
    lines = _wrapped(
        f"{MARKS[finding.severity]} {at}: {finding.text}. (law {finding.law}, {finding.check})", " "
    )
    figures = ", ".join(f"{name} {_figure(value)}" for name, value in finding.evidence if value is not None)
    if figures:
        lines += _wrapped(f"Figures: {figures}.", "      ")
    if finding.remedy and remedy:
        lines += _wrapped(f"Remedy: {finding.remedy}", "      ")
    return lines


def _noted(finding: FindingLike, labels: Sequence[str]) -> list[str]:
    at = "" if finding.level is None else f"{labels[finding.level]}: "
    return _wrapped(f"Note: {at}{finding.text}.", " ")


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + " " * 5,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _figure(value: float | int | str | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if abs(value) >= LEGIBLE:
        return f"{value:.3g}"
    return str(value) if isinstance(value, int) else significant(value)
