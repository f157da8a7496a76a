"""What must be known beside an answer: of profile, engine and trace, and of each changed case."""

from __future__ import annotations

from collections.abc import Sequence

from replicast.calibration.profile import Profile
from replicast.library.answers import Context, Warned
from replicast.sim.defaults import ResolvedConfig
from replicast.sim.planning.changes import Variant, label
from replicast.sim.report.text import plural
from replicast.traces.load import LoadedTrace


def input_warnings(profile: Profile, resolved: ResolvedConfig, trace: LoadedTrace) -> list[Warned]:
    """Warnings of all that an answer rests on."""
    report = trace.report
    found = [("config", text) for text in resolved.warnings]
    if profile.status != "calibrated":
        found.append((profile.status, f"profile {profile.name} is {profile.status}: its error is not known"))
    if report.dropped:
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in sorted(report.dropped.items()))
        text = f"{report.dropped.total():,} of {report.rows_read:,} rows dropped: {reasons}"
        found.append(("dropped-rows", text))
    if report.estimated_outputs:
        text = f"the output length of {plural(report.estimated_outputs, 'request')} is estimated"
        found.append(("estimated-outputs", text))
    return found


def variant_warnings(context: Context, variants: Sequence[Variant]) -> list[Warned]:
    """Warnings of changed cases that are not those of the case as it is."""
    found = []
    for variant in variants:
        study = context.scenario.study(variant)
        texts = [text for text in study.warnings if text not in context.resolved.warnings]
        if study.load.left_out > context.load.left_out:
            texts.append(
                f"{plural(study.load.left_out, 'request')} left out: sessions end before a prompt of "
                f"{study.engine.max_model_len:,} tokens"
            )
        found += [("config", f"with {label(variant)}: {text}") for text in texts]
    return found
