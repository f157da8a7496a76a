"""What one replica did over time: running, waiting, KV usage and what blocked the head of its queue.

All are step functions that change at step boundaries and arrivals. Their time integrals are kept from the
start of the run (running, waiting and blocked in whole ticks), so a time-weighted mean between two looks is
exact, and so is Little's law. The series for plots keeps these integrals at equally spaced marks and drops
every second mark when there are too many: bounded memory, and every bin is an exact mean. KV usage
is held constant between the looks.

What blocks the head: vLLM's scheduler leaves a request waiting when a seat, the step's budget or KV
blocks are lacking, and looks at them in this order. Read after a step has begun with requests waiting:
  seats         `max_num_seqs` requests run
  token_budget  the step holds `max_num_batched_tokens`, or the free blocks would take any request
  kv_blocks     otherwise: the allocation failed, or somebody was preempted
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from replicast.sim.config import EngineConfig
from replicast.sim.engine import Engine, EngineStats
from replicast.sim.ticks import TICKS_PER_S, Tick

Blocker = Literal["seats", "token_budget", "kv_blocks"]
BLOCKERS: tuple[Blocker, ...] = ("seats", "token_budget", "kv_blocks")

MAX_MARKS = 512


class Totals(NamedTuple):
    """Time integrals since the start of the run; `blocked` in the order of `BLOCKERS`."""

    running: int
    waiting: int
    kv_usage: float
    blocked: tuple[Tick, ...]


class SeriesPoint(NamedTuple):
    """Means over one bin of the run, which ends at `end_s`."""

    end_s: float
    running: float
    waiting: float
    kv_usage: float


class Timeline:
    """Watches one engine; `look` must follow each change of it, in order of time."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._free_for_any = config.num_usable_blocks - -(-config.max_model_len // config.block_size)
        self._now: Tick = 0
        self._running = self._waiting = 0
        self._kv_usage = 0.0
        self._blocker: int | None = None
        self._running_sum = self._waiting_sum = 0
        self._kv_sum = 0.0
        self._blocked = [0] * len(BLOCKERS)
        self._num_steps = self._step_tokens = 0
        self._width: Tick = TICKS_PER_S
        self._next_mark: Tick = TICKS_PER_S
        self._marks: list[tuple[int, int, float]] = []
        self.peak_running = self.peak_waiting = 0

    def look(self, now: Tick, engine: Engine, *, begun: bool = False) -> None:
        """Take over the state of `engine` from `now` on; `begun` if a step could just begin."""
        if now != self._now:
            self.advance(now)
        self._running = running = engine.num_running
        self._waiting = waiting = engine.num_waiting
        self._kv_usage = engine.kv_cache_usage
        if running > self.peak_running:
            self.peak_running = running
        if waiting > self.peak_waiting:
            self.peak_waiting = waiting
        if begun:
            stats = engine.stats
            self._blocker = self._judge(stats) if waiting else None
            self._num_steps = stats.num_steps
            self._step_tokens = stats.step_token_sum

    def _judge(self, stats: EngineStats) -> int | None:
        steps = stats.num_steps - self._num_steps
        if self._running >= self._config.max_num_seqs:
            return 0
        if not steps:
            return self._blocker
        tokens = stats.step_token_sum - self._step_tokens
        full = tokens >= steps * self._config.max_num_batched_tokens
        roomy = self._kv_usage * self._config.num_usable_blocks <= self._free_for_any
        return 1 if full or roomy else 2

    def advance(self, now: Tick) -> None:
        """Let time pass to `now` with nothing changed."""
        if now >= self._next_mark:
            self._pass_marks(now)
        span = now - self._now
        self._now = now
        self._running_sum += self._running * span
        self._kv_sum += self._kv_usage * span
        if self._waiting:
            self._waiting_sum += self._waiting * span
            if self._blocker is not None:
                self._blocked[self._blocker] += span

    def _pass_marks(self, now: Tick) -> None:
        while self._next_mark <= now:
            span = self._next_mark - self._now
            self._marks.append(
                (
                    self._running_sum + self._running * span,
                    self._waiting_sum + self._waiting * span,
                    self._kv_sum + self._kv_usage * span,
                )
            )
            if len(self._marks) == MAX_MARKS:
                self._marks = self._marks[1::2]
                self._width *= 2
            self._next_mark = (len(self._marks) + 1) * self._width

    @property
    def totals(self) -> Totals:
        """Integrals up to the last look or advance."""
        return Totals(self._running_sum, self._waiting_sum, self._kv_sum, tuple(self._blocked))

    @property
    def series(self) -> tuple[SeriesPoint, ...]:
        """Equal bins from the start to the last whole bin, at most `MAX_MARKS` of them."""
        points = []
        before = (0, 0, 0.0)
        for i, mark in enumerate(self._marks):
            means = [(b - a) / self._width for a, b in zip(before, mark, strict=True)]
            points.append(SeriesPoint((i + 1) * self._width / TICKS_PER_S, *means))
            before = mark
        return tuple(points)
