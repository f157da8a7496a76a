"""Can this sweep be trusted? All laws, and what follows from them.

A level with a failing finding is left out. The sweep is

* not usable, if a law that concerns all of it fails, or if more than half of its levels fail, or fewer than
  two (of several) are left;
* usable with care, if levels were left out or anything warns;
* usable otherwise. Notes change nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from replicast.calibration.facts import INSTANCES, Gpu, find_gpu, find_model
from replicast.calibration.laws.baseline import baseline
from replicast.calibration.laws.closed_loop import closed_loop
from replicast.calibration.laws.dilution import dilution
from replicast.calibration.laws.findings import Answer, Case, Finding, Row, Severity, label
from replicast.calibration.laws.hardware import hardware
from replicast.calibration.laws.histograms import histograms
from replicast.calibration.laws.hygiene import hygiene
from replicast.calibration.laws.little import little
from replicast.calibration.laws.prefix_cache import prefix_cache
from replicast.calibration.laws.queueing import queueing
from replicast.calibration.laws.replication import replication
from replicast.calibration.laws.residuals import residuals
from replicast.calibration.laws.tokens import token_balance
from replicast.calibration.physics import check_group
from replicast.calibration.profile import Profile
from replicast.calibration.server import ServerFacts, server_facts
from replicast.calibration.sweep import Sweep
from replicast.sim.errors import InputError

Verdict = Literal["usable", "usable-with-care", "not-usable"]

LAWS: dict[int, Callable[[Case], Answer]] = {
    1: baseline,
    2: closed_loop,
    3: little,
    4: queueing,
    5: token_balance,
    6: dilution,
    7: hygiene,
    8: histograms,
    9: hardware,
    10: prefix_cache,
    11: replication,
    12: residuals,
}
_ORDER: dict[Severity, int] = {"fail": 0, "warn": 1, "note": 2}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What the laws say of one sweep; `left_out` are positions of levels in `sweep.levels`."""

    sweep: Sweep
    verdict: Verdict
    findings: tuple[Finding, ...]
    left_out: tuple[int, ...]
    rows: tuple[Row, ...]
    laws: tuple[int, ...]
    parallel_per_session: int | None = None

    @property
    def ok(self) -> bool:
        """Whether something can be learned from the sweep."""
        return self.verdict != "not-usable"

    def labels(self) -> tuple[str, ...]:
        """Names of the levels, in their order."""
        return tuple(label(level) for level in self.sweep.levels)

    @property
    def source(self) -> str:
        """Where the sweep comes from."""
        return self.sweep.source

    @property
    def model(self) -> str | None:
        """The model, where it is named."""
        return self.sweep.model

    @property
    def given(self) -> Mapping[str, object]:
        """Facts that are told about the server, by name."""
        return self.sweep.given.told()

    @property
    def concurrencies(self) -> tuple[int | None, ...]:
        """Sessions of each level."""
        return tuple(level.concurrency for level in self.sweep.levels)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader noted, of the file and of its levels."""
        of_levels = (f"{label(level)}: {note}" for level in self.sweep.levels for note in level.notes)
        return (*self.sweep.notes, *of_levels)

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        """Findings of one severity."""
        return tuple(finding for finding in self.findings if finding.severity == severity)


def check_sweep(
    sweep: Sweep,
    *,
    parallel_per_session: int | None = None,
    profile: Profile | None = None,
    against: Sweep | None = None,
    without: Collection[int] = (),
) -> CheckResult:
    """Run all laws but those in `without`.

    `parallel_per_session` is how many requests one session can have in the server at once (1: no sub-agents).
    `profile` is asked to predict the levels (law 12), `against` holds other runs of them (law 11).
    """
    if parallel_per_session is not None and parallel_per_session < 1:
        raise InputError(
            f"{parallel_per_session} parallel requests a session",
            remedy="--parallel-per-session takes 1 (no sub-agents) or more",
        )
    if against is not None:
        _check_same_model(sweep, against)
    gpu, gpus = _gpu(sweep)
    if gpu is not None:
        check_group(gpu, sweep.given.tensor_parallel_size or 1, sweep.source)
    case = Case(sweep, parallel_per_session, gpu, gpus, _facts(sweep), profile, against)
    run = tuple(number for number in LAWS if number not in without)
    answers = [LAWS[number](case) for number in run]
    findings = sorted(
        (finding for answer in answers for finding in answer.findings),
        key=lambda f: (_ORDER[f.severity], f.law, -1 if f.level is None else f.level),
    )
    failed = {f.level for f in findings if f.severity == "fail"}
    left_out = tuple(i for i in range(len(sweep.levels)) if i in failed)
    return CheckResult(
        sweep=sweep,
        verdict=_verdict(len(sweep.levels), left_out, findings),
        findings=tuple(findings),
        left_out=left_out,
        rows=tuple(row for answer in answers for row in answer.rows),
        laws=run,
        parallel_per_session=parallel_per_session,
    )


class NotUsableError(InputError):
    """A sweep that nothing can be learned from."""

    exit_code = 3


def usable_levels(result: CheckResult) -> Sweep:
    """The sweep without the levels that fail; `NotUsableError` if it is that."""
    if not result.ok:
        first = result.of("fail")[0]
        raise NotUsableError(
            f"not usable: {first.text}",
            where=result.sweep.source,
            remedy="see `replicast check`; --force learns from it all the same",
        )
    kept = tuple(level for i, level in enumerate(result.sweep.levels) if i not in result.left_out)
    return replace(result.sweep, levels=kept)


def _check_same_model(sweep: Sweep, against: Sweep) -> None:
    """Refuse another model's sweep; served names of one model differ in case and organisation."""
    if not same_model(sweep.model, against.model):
        raise InputError(
            f"no level of {sweep.model} in it: its model is {against.model}",
            where=against.source,
            remedy=f"--against takes another run of {sweep.model}",
        )


def same_model(one: str | None, other: str | None) -> bool:
    """Whether two names may be of one model; a name that is not told may be of any."""
    a, b = _plain(one), _plain(other)
    if not a or not b or a in b or b in a:
        return True
    known = [find_model(name) for name in (one or "", other or "")]
    return None not in known and known[0] == known[1]


def _plain(model: str | None) -> str:
    """A model's name without its organisation, in small letters and digits."""
    return re.sub(r"[^a-z0-9.]", "", (model or "").rsplit("/", 1)[-1].lower())


def _verdict(levels: int, left_out: tuple[int, ...], findings: list[Finding]) -> Verdict:
    whole = any(f.severity == "fail" and f.level is None for f in findings)
    left = levels - len(left_out)
    if whole or 2 * len(left_out) > levels or left < min(2, levels):
        return "not-usable"
    if left_out or any(f.severity == "warn" for f in findings):
        return "usable-with-care"
    return "usable"


def _gpu(sweep: Sweep) -> tuple[Gpu | None, int | None]:
    """GPU and how many, where the sweep names them or an instance that is known."""
    given = sweep.given
    instance = INSTANCES.get(given.instance or "")
    name = given.gpu or (instance[0] if instance else None)
    if name is None:
        return None, None
    try:
        gpu = find_gpu(name)
    except InputError:
        return None, None
    count = given.gpus or given.tensor_parallel_size
    return gpu, count or (instance[1] if instance and instance[0] == gpu.name else None)


def _facts(sweep: Sweep) -> ServerFacts | None:
    """The server, if its GPU and its model are known."""
    try:
        facts = server_facts(sweep)
    except InputError:
        return None
    return facts if facts.known_model else None
