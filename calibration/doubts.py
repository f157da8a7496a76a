"""What speaks against a calibration: contradicted facts, hardware it would beat, guesses it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from replicast.calibration.learned import Learned
from replicast.calibration.lengths import TYPICAL_PROMPT, lengths_of
from replicast.calibration.model import ENGINE
from replicast.calibration.server import ServerFacts
from replicast.calibration.sweep import SweepLevel
from replicast.calibration.uncertainty import Uncertainty

APART = 3.0  # times: what evictions and cold starts add to what is new


def contradicted(levels: Sequence[SweepLevel], facts: ServerFacts) -> list[str]:
    """What is told of the server, and cannot be by what was counted."""
    config, said = facts.config, []
    running = max((level.running.peak or 0.0 for level in levels if level.running), default=0.0)
    if running > config.max_num_seqs:
        said.append(f"{running:g} requests ran at once, more than max_num_seqs {config.max_num_seqs} allows")
    if not config.enable_prefix_caching and any(level.cached_tokens for level in levels):
        said.append("tokens were cached, and enable_prefix_caching is told to be off")
    return [f"{text}: is the server told right?" for text in said]


def of_another_load(
    levels: Sequence[SweepLevel], facts: ServerFacts, latents: Mapping[str, float]
) -> list[str]:
    """A trace whose sessions begin longer than the sweep's prompts are, or compute what it did not count."""
    lengths = [lengths_of(level, facts) for level in levels]
    first = latents["first_tokens"] + latents.get("shared_tokens", 0.0)
    longest = max(known.prompt for known in lengths)
    said = []
    if first > longest:
        said.append(
            f"first prompts of the trace hold {first:,.0f} tokens, prompts of the sweep {longest:,.0f} or "
            "fewer on average"
        )
    counted = [known.computed for known in lengths if known.computed is not None]
    told = latents["computed_tokens"]
    if counted and not min(counted) / APART < told < max(counted) * APART:
        said.append(
            f"requests of the trace compute {told:,.0f} tokens, those of the sweep {min(counted):,.0f} to "
            f"{max(counted):,.0f}"
        )
    return [f"{text}: is it a trace of this load?" for text in said]


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
