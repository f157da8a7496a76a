"""What one replica did over time: running, waiting, KV usage and what blocked the head of its queue.

All four are step functions that change at step boundaries and arrivals. Their time integrals are
exact sums (running and waiting in whole ticks), so time-weighted means and Little's law are exact; the
series for plots keeps the integrals at equally spaced marks, and drops every second mark when there are
too many, so its memory is bounded and its bins are exact means too. KV usage is held constant
between the boundaries at which the engine is looked at.

What blocks the head: vLLM's scheduler leaves a request waiting for one of three reasons (RULES section
2b), tried in this order here on what can be read after a step has begun with requests waiting:
  seats          `max_num_seqs` requests run
  token_budget   the step is full: `max_num_batched_tokens` scheduled
  kv_blocks      neither, so the allocation failed (or the step preempted)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from replicast.sim.config import EngineConfig
from replicast.sim.ticks import TICKS_PER_S, Tick

Blocker = Literal["seats", "token_budget", "kv_blocks"]
BLOCKERS: tuple[Blocker, ...] = ("seats", "token_budget", "kv_blocks")

MAX_MARKS = 512


class Totals(NamedTuple):
    """Time integrals from the start of the run: request-ticks, and usage x ticks."""

    running: int
    waiting: int
    kv_usage: float
    blocked: tuple[Tick, ...]  # by BLOCKERS


class SeriesPoint(NamedTuple):
    """Means over the bin that ends at `end_s`."""

    end_s: float
    running: float
    waiting: float
    kv_usage: float


@dataclass(slots=True)
class Timeline:
    """Watches one engine; call `look` after each change of it."""

    config: EngineConfig
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    peak_running: int = 0
    peak_waiting: int = 0
    blocker: int | None = None  # index into BLOCKERS
    _now: Tick = 0
    _running: int = 0
    _waiting: int = 0
    _kv: float = 0.0
    _blocked: list[Tick] = field(default_factory=lambda: [0] * len(BLOCKERS))
    _steps: int = 0
    _tokens: int = 0
    _width: Tick = TICKS_PER_S
    _next_mark: Tick = TICKS_PER_S
    _marks: list[tuple[int, int, float]] = field(default_factory=list)
