"""What one run says, and what binds in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from replicast.sim.config import EngineConfig
from replicast.sim.engine import EngineStats
from replicast.sim.fleet.config import FleetConfig
from replicast.sim.fleet.operations import Lifetime
from replicast.sim.fleet.records import Records
from replicast.sim.ticks import Tick, seconds

Blocker = Literal["seats", "token_budget", "kv_blocks"]
BLOCKERS: tuple[Blocker, ...] = ("seats", "token_budget", "kv_blocks")

BINDS_FROM = 0.05


class Window(NamedTuple):
    """The measured part of the run, and the rule that chose each end."""

    start_s: float
    end_s: float
    start_rule: str
    end_rule: str


class RunWarning(NamedTuple):
    """A short code and one sentence."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Counts:
    """What was asked and what came of it, over the whole run.

    Always submitted = finished + rejected + unfinished + aborted. `turns` is all the trace holds; those
    never sent (horizon, truncated sessions) are `turns - submitted + aborted`.
    """

    submitted: int
    finished: int
    rejected: int
    unfinished: int
    turns: int
    sessions: int
    sessions_started: int
    sessions_finished: int
    sessions_truncated: int
    capped_delays: int  # human part cut to `think_cap_s`
    clipped_outputs: int  # `max_tokens` cut to what `max_model_len` leaves
    raised_outputs: int  # recorded output of 0 tokens raised to 1
    aborted: int = 0  # on a replica that was lost; sent again as new requests


class SeriesPoint(NamedTuple):
    """Means over one bin of the run, which ends at `end_s`."""

    end_s: float
    running: float
    waiting: float
    kv_usage: float


class Marks(NamedTuple):
    """Time integrals of running and waiting requests and used blocks at equally spaced marks."""

    width: Tick
    num_blocks: int
    integrals: tuple[tuple[int, int, int], ...]

    def series(self) -> tuple[SeriesPoint, ...]:
        """Equal bins from the start of the run to the last whole one."""
        width, points, before = self.width, [], (0, 0, 0)
        for i, mark in enumerate(self.integrals):
            running, waiting, used = ((b - a) / width for a, b in zip(before, mark, strict=True))
            points.append(SeriesPoint(seconds((i + 1) * width), running, waiting, used / self.num_blocks))
            before = mark
        return tuple(points)


@dataclass(frozen=True, slots=True)
class ReplicaResult:
    """One replica: vLLM's counters (whole run, and window) and time-weighted means of the window.

    Peaks and series are of the whole run. `mean_running` and `mean_waiting` count requests;
    `blocked_share` is the share of the window in which each limit blocked the head of the queue.
    """

    stats: EngineStats
    window_stats: EngineStats
    mean_running: float
    mean_waiting: float
    mean_kv_usage: float
    peak_running: int
    peak_waiting: int
    peak_kv_usage: float
    blocked_share: dict[Blocker, float]
    marks: Marks

    @property
    def series(self) -> tuple[SeriesPoint, ...]:
        """The run in equal bins, each an exact mean; reckoned when it is asked for."""
        return self.marks.series()


class Binding(NamedTuple):
    """Share of the window in which each limit blocked the head of the queue, and the one that binds."""

    binds: Blocker | None
    seats: float
    token_budget: float
    kv_blocks: float


@dataclass(frozen=True, slots=True, eq=False)
class RunResult:
    """All that one run says. `fleet` has its loop and live sessions resolved."""

    fleet: FleetConfig
    engine: EngineConfig
    seed: int
    records: Records
    replicas: tuple[ReplicaResult, ...]
    counts: Counts
    window: Window
    suggested_warmup_s: float | None  # by MSER-5; None from fewer than 100 finished requests
    duration_s: float
    warnings: tuple[RunWarning, ...]
    lifetimes: tuple[Lifetime, ...] = ()  # of replicas that come and go


def binding(result: RunResult) -> Binding:
    """What binds: the limit that blocked the head of the queue longest, if all did for 5 % of the time.

    Shares are means over replicas. None: requests hardly ever waited for anything but a step to end.
    """
    seats, budget, blocks = (
        sum(replica.blocked_share[name] for replica in result.replicas) / len(result.replicas)
        for name in BLOCKERS
    )
    shares = (seats, budget, blocks)
    binds = BLOCKERS[shares.index(max(shares))] if sum(shares) >= BINDS_FROM else None
    return Binding(binds, seats, budget, blocks)


def run_warnings(
    fleet: FleetConfig, config: EngineConfig, counts: Counts, window: Window, suggested_warmup_s: float | None
) -> tuple[RunWarning, ...]:
    """What a reader must know before he trusts the numbers."""
    max_model_len = config.max_model_len
    few = fleet.loop == "closed" and window.start_s == 0.0 and fleet.warmup_s is None
    late = suggested_warmup_s is not None and suggested_warmup_s > window.start_s
    found = {
        "over-length": counts.rejected
        and f"{counts.rejected} of {counts.submitted} requests were rejected (HTTP 400): "
        f"their prompts reach max_model_len = {max_model_len}",
        "truncated": counts.sessions_truncated
        and f"{counts.sessions_truncated} sessions ended at an over-length request",
        "unfinished": counts.unfinished
        and f"{counts.unfinished} of {counts.submitted} requests were in flight when the run ended; "
        "latencies of the finished ones alone are too low",
        "clipped": counts.clipped_outputs
        and f"{counts.clipped_outputs} outputs were cut to what max_model_len = {max_model_len} leaves",
        "empty-output": counts.raised_outputs
        and f"{counts.raised_outputs} recorded outputs of 0 tokens were run as 1 token",
        "window": few
        and f"no warm-up was cut: {counts.sessions} sessions are too few to keep {fleet.sessions} live and "
        "replace each twice, or the horizon came too soon",
        "warm-up": late
        and f"MSER-5 on TTFT would start measuring at {suggested_warmup_s:.0f} s, "
        f"the window starts at {window.start_s:.0f} s",
    }
    return tuple(RunWarning(code, text) for code, text in found.items() if isinstance(text, str))
