"""What one replica did over time: running, waiting, KV usage and what blocked the head of its queue.

All are step functions that change at step boundaries and arrivals. Their time integrals are kept from the
start of the run, in whole ticks of whole requests and blocks, so a time-weighted mean between two looks is
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

from typing import Final, NamedTuple

from replicast.sim.config import EngineConfig
from replicast.sim.engine import EngineStats
from replicast.sim.engine.interface import Engine
from replicast.sim.fleet.result import BLOCKERS, Marks
from replicast.sim.ticks import TICKS_PER_S, Tick, ratio

MAX_MARKS: Final = 512


class Totals(NamedTuple):
    """Time integrals since the start of the run; `blocked` in the order of `BLOCKERS`."""

    running: int
    waiting: int
    kv_usage: float
    blocked: tuple[Tick, ...]


class Timeline:
    """Watches one engine; `look` must follow each change of it, in order of time.

    Integrals are kept as what they were at the last mark and what has come since: small numbers are fast.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._blocks = config.num_usable_blocks
        self._max_num_seqs = config.max_num_seqs
        self._max_num_batched_tokens = config.max_num_batched_tokens
        self._free_for_any = self._blocks - -(-config.max_model_len // config.block_size)
        self._now: Tick = 0
        self._running = self._waiting = self._used_blocks = 0
        self._running_since = self._waiting_since = self._used_since = 0  # integrals from the last mark on
        self._blocker: int | None = None
        self._blocked_since: Tick = 0
        self._blocked = [0] * len(BLOCKERS)
        self._num_steps = self._step_tokens = 0
        self._width: Tick = TICKS_PER_S
        self._next_mark: Tick = TICKS_PER_S
        self._at_mark = (0, 0, 0)
        self._marks: list[tuple[int, int, int]] = []
        self.peak_running = self.peak_waiting = 0

    def look(self, now: Tick, engine: Engine, *, begun: bool = False) -> None:
        """Take over the state of `engine` from `now` on; `begun` if a step could just begin."""
        self.look_at_queue(now, engine.num_waiting)
        running, kv_usage = engine.num_running, engine.kv_cache_usage
        self._running = running
        if running > self.peak_running:
            self.peak_running = running
        self._used_blocks = int(kv_usage * self._blocks + 0.5)
        if begun:
            stats = engine.stats
            if self._waiting or self._blocker is not None:
                self._blame(now, stats)
            self._num_steps = stats.num_steps
            self._step_tokens = stats.step_token_sum

    def look_at_queue(self, now: Tick, waiting: int) -> None:
        """Only the number of waiting requests may have changed."""
        self.advance(now)
        self._waiting = waiting
        if waiting > self.peak_waiting:
            self.peak_waiting = waiting

    def _blame(self, now: Tick, stats: EngineStats) -> None:
        """Who blocks the head of the queue from now on; nobody waits without a blocker after a begin."""
        before = self._blocker
        blocker = self._judge(stats) if self._waiting else None
        if blocker != before:
            if before is not None:
                self._blocked[before] += now - self._blocked_since
            self._blocker, self._blocked_since = blocker, now

    def _judge(self, stats: EngineStats) -> int | None:
        steps = stats.num_steps - self._num_steps
        if self._running >= self._max_num_seqs:
            return 0
        if not steps:
            return self._blocker
        tokens = stats.step_token_sum - self._step_tokens
        full = tokens >= steps * self._max_num_batched_tokens
        return 1 if full or self._used_blocks <= self._free_for_any else 2

    def end(self, now: Tick) -> None:
        """From now on nothing runs, waits or is held: the replica is gone."""
        self.look_at_queue(now, 0)
        self._running = self._used_blocks = 0
        if self._blocker is not None:
            self._blocked[self._blocker] += now - self._blocked_since
            self._blocker = None

    def advance(self, now: Tick) -> None:
        """Let time pass to `now` with nothing changed."""
        while now >= self._next_mark:
            self._pass_mark()
        self._go_to(now)

    def _go_to(self, now: Tick) -> None:
        span = now - self._now
        self._now = now
        self._running_since += self._running * span
        self._waiting_since += self._waiting * span
        self._used_since += self._used_blocks * span

    def _integrals(self) -> tuple[int, int, int]:
        running, waiting, used = self._at_mark
        return running + self._running_since, waiting + self._waiting_since, used + self._used_since

    def _pass_mark(self) -> None:
        self._go_to(self._next_mark)
        self._at_mark = self._integrals()
        self._running_since = self._waiting_since = self._used_since = 0
        self._marks.append(self._at_mark)
        if len(self._marks) == MAX_MARKS:
            self._marks = self._marks[1::2]
            self._width *= 2
        self._next_mark = (len(self._marks) + 1) * self._width

    @property
    def totals(self) -> Totals:
        """Integrals up to the last look or advance."""
        blocked = list(self._blocked)
        if self._blocker is not None:
            blocked[self._blocker] += self._now - self._blocked_since
        running, waiting, used = self._integrals()
        return Totals(running, waiting, ratio(used, self._blocks), tuple(blocked))

    @property
    def marks(self) -> Marks:
        """The integrals at all marks so far, at most `MAX_MARKS` of them."""
        return Marks(self._width, self._blocks, tuple(self._marks))
