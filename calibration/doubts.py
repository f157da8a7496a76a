"""What speaks against a calibration: contradicted facts, hardware it would beat, guesses it rests on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from replicast.calibration.fit import Fitted
from replicast.calibration.learned import Learned
from replicast.calibration.lengths import TYPICAL_PROMPT
from replicast.calibration.model import ENGINE, point_at
from replicast.calibration.noise import surplus
from replicast.calibration.server import ServerFacts
from replicast.calibration.sweep import SweepLevel
from replicast.calibration.uncertainty import Uncertainty

APART = 1.5  # times: levels of few sessions meet long ones or short ones
LENGTHS = ("prompts", "output tokens per prompt token", "computed tokens")  # of `noise.surplus`


def contradicted(levels: Sequence[SweepLevel], facts: ServerFacts) -> list[str]:
    """What is told of the server, and cannot be by what was counted."""
    config, said = facts.config, []
    running = max((level.running.peak or 0.0 for level in levels if level.running), default=0.0)
    if running > config.max_num_seqs:
        said.append(f"{running:g} requests ran at once, more than max_num_seqs {config.max_num_seqs} allows")
    if not config.enable_prefix_caching and any(level.cached_tokens for level in levels):
        said.append("tokens were cached, and enable_prefix_caching is told to be off")
    return [f"{text}: is the server told right?" for text in said]


def of_another_load(fitted: Fitted) -> list[str]:
    """Lengths of a replayed trace that are not those of the sweep."""
    point = point_at(fitted.params, fitted.x)
    levels = [
        np.mean([surplus(run, model) for run in model.simulate(point, fitted.seeds)], axis=0)
        for model in fitted.problem.models
    ]
    times = np.exp(np.mean(levels, axis=0)).tolist()
    return [
        f"{what} of the replayed trace are {factor:.1f} times those of the sweep: is it a trace of this load?"
        for what, factor in zip(LENGTHS, times, strict=True)
        if not 1 / APART < factor < APART
    ]


def at_bounds(known: Uncertainty) -> list[str]:
    """Step times that physics had to hold back: the server is hardly what it is told to be."""
    held = [it.name for it in known.intervals if it.name in ENGINE and it.status.startswith("at its lower")]
    if not held:
        return []
    return [
        f"{', '.join(held)} at the bound of physics: faster than this hardware could be; are GPU, "
        "tensor_parallel_size, model and quantization told right?"
    ]


def assumed(learned: Learned) -> list[str]:
    """Lengths that no source tells: what is learnt rests on a guess."""
    levels = ", ".join(str(level.concurrency) for level in learned.levels if level.lengths.source == "guess")
    if not levels:
        return []
    return [
        f"prompts of level {levels} are told by nothing (no requests counted, no KV usage): "
        f"{TYPICAL_PROMPT:,.0f} tokens are assumed"
    ]
