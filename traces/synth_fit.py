"""What synthetic sessions are fitted to: the knobs, and presets with their published figures.

The corpus is kv-cache-tester's ("WEKA") recording of Claude Code, Apache-2.0: 710 files, 49,334
requests. `TARGETS` are figures of that corpus. Median, p90 and p99 inside the quantile tables are
the corpus's too; the points between them were measured on 523 of its files. Only figures are
carried over, no recorded row. `traces/synth.py` says how sessions are made of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution as knots (probability, value), log-linear between them; values above zero."""

    knots: tuple[tuple[float, float], ...]

    def at(self, u: Floats) -> Floats:
        """Values at probabilities `u`."""
        p, v = zip(*self.knots, strict=True)
        return np.exp(np.interp(u, p, np.log(v)))

    def mean(self) -> float:
        """Its mean, by 10,000 equal slices."""
        return float(self.at((np.arange(10_000) + 0.5) / 10_000).mean())


# Turns of a main agent. All 710 files: p50 45, p90 155, max 514; the two kinds apart from the 523.
_TURNS_FRESH = Quantiles(
    ((0, 3), (0.05, 7), (0.1, 11), (0.25, 29), (0.5, 72), (0.75, 121), (0.9, 168), (0.95, 240),
     (0.99, 350), (1, 514))
)  # fmt: skip
_TURNS_CONTINUED = Quantiles(
    ((0, 3), (0.1, 4), (0.25, 12), (0.5, 28), (0.75, 58), (0.9, 112), (0.95, 200), (0.99, 240), (1, 260))
)
# First prompt: fresh session p50 19K; a continuation starts above 40K, 180K on average.
_FIRST_FRESH = Quantiles(
    ((0, 8_000), (0.05, 11_700), (0.1, 13_100), (0.25, 16_900), (0.5, 19_000), (0.75, 20_900),
     (0.9, 24_200), (0.95, 27_600), (0.99, 36_100), (1, 39_500))
)  # fmt: skip
_FIRST_CONTINUED = Quantiles(
    ((0, 40_500), (0.05, 45_800), (0.1, 59_700), (0.25, 75_200), (0.5, 114_000), (0.75, 255_000),
     (0.9, 408_000), (0.95, 485_000), (0.99, 700_000), (1, 850_000))
)  # fmt: skip
# Growth of a turn: p50 688, p90 3.5K, mean 1.6K.
_GROWTH = Quantiles(
    ((0, 60), (0.01, 109), (0.05, 156), (0.1, 194), (0.25, 345), (0.5, 688), (0.6, 905), (0.75, 1_560),
     (0.85, 2_550), (0.9, 3_500), (0.93, 4_700), (0.95, 6_000), (0.97, 8_400), (0.98, 10_300),
     (0.99, 15_000), (0.995, 20_000), (0.999, 45_000), (1, 110_000))
)  # fmt: skip
# Output: p50 216, p90 898, p99 3,686.
_OUTPUT = Quantiles(
    ((0, 30), (0.01, 58), (0.05, 89), (0.1, 106), (0.25, 138), (0.4, 176), (0.5, 216), (0.6, 273),
     (0.7, 361), (0.8, 514), (0.9, 898), (0.95, 1_530), (0.98, 2_700), (0.99, 3_686), (0.999, 8_000),
     (1, 18_000))
)  # fmt: skip
# Gap after a tool: p50 9 s, p90 69 s, p99 613 s; before human text: p50 133 s, p90 1,880 s, 32 % > 300 s.
_TOOL_GAP_S = Quantiles(
    ((0, 1), (0.01, 2), (0.05, 3), (0.1, 4), (0.3, 6), (0.5, 9), (0.6, 11.5), (0.7, 16), (0.8, 27),
     (0.9, 69), (0.95, 160), (0.98, 420), (0.99, 613), (0.995, 1_800), (1, 20_000))
)  # fmt: skip
_HUMAN_GAP_S = Quantiles(
    ((0, 2), (0.05, 10), (0.1, 18), (0.25, 44), (0.5, 133), (0.68, 300), (0.8, 720), (0.9, 1_880),
     (0.95, 3_300), (0.99, 9_000), (1, 30_000))
)  # fmt: skip
# Tools + system text of one group of developers: p50 14.9K.
_SHARED_PREFIX = Quantiles(
    ((0, 9_500), (0.1, 11_900), (0.25, 12_900), (0.5, 14_900), (0.75, 15_500), (0.9, 16_300), (1, 22_500))
)
# Where a changed tool list breaks the prefix: about 13K tokens from the start.
_BREAK_AT = Quantiles(((0, 2_000), (0.1, 9_500), (0.5, 13_100), (0.9, 15_800), (1, 21_000)))
# Prompt after a compaction: 3.9M uncached tokens in 142 requests, 27K each beyond what is kept.
_COMPACTED_TO = Quantiles(((0, 0.2), (0.5, 0.3), (1, 0.46)))
# Sub-agents: 63 in 17 of 710 files, p50 3, max 12; 11 requests (p50; max 24), prompts 10.3K to 70K.
_SUBAGENTS = Quantiles(((0, 1), (0.5, 3), (0.8, 5), (0.94, 8), (1, 12)))
_SUBAGENT_TURNS = Quantiles(((0, 4), (0.5, 11), (0.9, 18), (1, 24)))
# 98 % of a first prompt is shared with earlier sub-agents: tools, system and an own task.
_SUBAGENT_SHARED = 10_100
_SUBAGENT_TASK = Quantiles(((0, 60), (0.5, 200), (0.9, 3_000), (1, 8_000)))
_SUBAGENT_LAST = Quantiles(((0, 38_000), (0.5, 70_000), (0.9, 96_000), (1, 136_000)))
_SUBAGENT_GAP_S = Quantiles(((0, 1.5), (0.5, 4), (0.9, 29), (1, 133)))


@dataclass(frozen=True, slots=True)
class SynthSpec:
    """What to generate. Change a preset with `dataclasses.replace`; scales multiply its figures.

    `prompt_scale` acts on everything in prompts and on context windows alike, `growth_scale` on
    the growth of turns alone. `shared_prefix_tokens` gives every group that many tokens of tools and
    system text instead of the preset's table; `prefix_groups` is how many groups there are (1: all
    developers run the same agent). `subagent_share` is the share of sessions that launch
    sub-agents, `subagent_fan_out` how many start at once, the parent waiting for all of them.
    """

    name: str
    targets: Mapping[str, float]
    continued_share: float  # sessions that start in the midst of a longer conversation
    large_context_share: float  # fresh sessions with a 1M-token window
    large_context_share_continued: float  # the same of continued ones that start below 160K
    turns_scale: float = 1.0
    prompt_scale: float = 1.0
    growth_scale: float = 1.0
    output_scale: float = 1.0
    tool_gap_scale: float = 1.0
    human_gap_scale: float = 1.0
    human_share: float = 0.14  # (2,731 end_turn + 4,330 without a stop reason) of 48,658 replies
    re_prefill_share: float = 694 / 48_658
    deep_edit_share: float = 78 / 48_658
    shared_prefix_tokens: int | None = None
    prefix_groups: int = 343  # distinct pairs of tools and system length in 710 files
    subagent_share: float = 17 / 710
    subagent_scale: float = 1.0
    subagent_fan_out: int = 1
    subagent_shared_tokens: int = _SUBAGENT_SHARED
    max_prompt_tokens: int = 900_000  # the curators of the corpus cut there
    turns_fresh: Quantiles = _TURNS_FRESH
    turns_continued: Quantiles = _TURNS_CONTINUED
    first_fresh: Quantiles = _FIRST_FRESH
    first_continued: Quantiles = _FIRST_CONTINUED
    growth: Quantiles = _GROWTH
    output: Quantiles = _OUTPUT
    tool_gap_s: Quantiles = _TOOL_GAP_S
    human_gap_s: Quantiles = _HUMAN_GAP_S
    shared_prefix: Quantiles = _SHARED_PREFIX
    break_at: Quantiles = _BREAK_AT
    compacted_to: Quantiles = _COMPACTED_TO
    subagents: Quantiles = _SUBAGENTS
    subagent_turns: Quantiles = _SUBAGENT_TURNS
    subagent_task: Quantiles = _SUBAGENT_TASK
    subagent_last: Quantiles = _SUBAGENT_LAST
    subagent_gap_s: Quantiles = _SUBAGENT_GAP_S

    def knobs(self) -> dict[str, Any]:
        """The scalar settings, for the header of the trace and for show."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        return {k: v for k, v in plain.items() if v is None or isinstance(v, str | int | float)}


# Keys are `field` or `field.quantile` of TraceStats.
_WEKA_TARGETS = {
    "turns_per_session.p50": 45,
    "turns_per_session.p90": 155,
    "prompt_tokens.p50": 104_000,
    "prompt_tokens.p90": 234_000,
    "prompt_tokens.p99": 499_000,
    "output_tokens.p50": 216,
    "output_tokens.p90": 898,
    "output_tokens.p99": 3_686,
    "uncached_tokens.p50": 727,
    "uncached_tokens.p90": 4_800,
    "uncached_tokens.mean": 4_500,
    "input_output_ratio": 278,
    "uncached_input_output_ratio": 10.3,
    "hit_rate_within": 0.963,
    "session_hit_rate.p10": 0.83,
    "session_hit_rate.p50": 0.955,
    "session_hit_rate.p90": 0.979,
    "tool_gap_s.p50": 9,
    "tool_gap_s.p90": 69,
    "tool_gap_s.p99": 613,
    "human_gap_s.p50": 133,
    "human_gap_s.p90": 1_880,
    "human_gap_over_300s": 0.32,
    "re_prefill_share": 694 / 48_658,
}
_FRESH_TARGETS = {
    "input_output_ratio": 218,
    "uncached_input_output_ratio": 7.1,
    "hit_rate_within": 0.967,
    "session_hit_rate.p10": 0.88,
    "session_hit_rate.p50": 0.962,
    "session_hit_rate.p90": 0.98,
    "first_prompt_tokens.p50": 19_000,
}

PRESETS: Mapping[str, SynthSpec] = MappingProxyType(
    {
        # All 710 files, 317 of which continue a longer conversation.
        "weka": SynthSpec(
            name="weka",
            targets=_WEKA_TARGETS,
            continued_share=317 / 710,
            large_context_share=0.1,
            large_context_share_continued=0.78,
        ),
        # The 393 files that start a conversation: what a developer's day begins with.
        "fresh": SynthSpec(
            name="fresh",
            targets=_FRESH_TARGETS,
            continued_share=0.0,
            large_context_share=0.1,
            large_context_share_continued=0.0,
        ),
    }
)
