"""What is recorded of each request: columns, one row a request, no object kept.

Intervals are vLLM's own (RULES of the metrics, v1/metrics/stats.py), on one clock:

    arrival -> front end -> engine arrival -> input wait -> QUEUED -> queue -> SCHEDULED -> prefill
            -> first token -> decode -> last token;   delivery is the way of a token to the client

    ttft = front end + input wait + queue + prefill + delivery        e2e = ttft + decode

`queue` excludes the wait for the running step to end, which is `input_wait`. An interval that did not
end is NaN. A rejected request has its front-end time only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from replicast.sim.fleet.routers import RoutedRequest
from replicast.sim.request import Request
from replicast.sim.ticks import TICKS_PER_S, Tick
from replicast.sim.workload import Session

if TYPE_CHECKING:
    import pandas as pd

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class RecordStatus(IntEnum):
    """How a request ended. submitted = finished + rejected + aborted + unfinished."""

    FINISHED = 0
    REJECTED = 1  # HTTP 400: longer than max_model_len
    UNFINISHED = 2  # in flight when the run ended
    ABORTED = 3


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Columns in order of arrival. `session_index` and `turn_index` point into `sessions`.

    `measured` marks the requests that arrived in the measured window. `cached_tokens` are the hit tokens
    of the first admission, 0 if there was none.
    """

    sessions: Sequence[Session]
    session_index: Ints
    turn_index: Ints
    replica: Ints
    prompt_tokens: Ints
    cached_tokens: Ints
    output_tokens: Ints
    preemptions: Ints
    status: Ints
    measured: Bools
    arrival_s: Floats
    front_end_s: Floats
    input_wait_s: Floats
    queue_s: Floats
    prefill_s: Floats
    decode_s: Floats
    delivery_s: Floats

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def ttft_s(self) -> Floats:
        """Time to first token as the client sees it."""
        return self.front_end_s + self.input_wait_s + self.queue_s + self.prefill_s + self.delivery_s

    @property
    def e2e_s(self) -> Floats:
        """Arrival to the last token at the client; of a rejected request, to its error."""
        e2e = self.ttft_s + self.decode_s
        return np.where(self.status == RecordStatus.REJECTED, self.front_end_s + self.delivery_s, e2e)

    @property
    def tpot_s(self) -> Floats:
        """decode / (outputs - 1); 0 for one output token, as vLLM reports it."""
        finished = self.status == RecordStatus.FINISHED
        tpot = self.decode_s / np.maximum(self.output_tokens - 1, 1)
        return np.where(finished, tpot, np.nan)

    @property
    def finished(self) -> Bools:
        """Rows of requests that finished."""
        return np.equal(self.status, RecordStatus.FINISHED)

    def to_frame(self) -> pd.DataFrame:
        """One row a request, units in the names."""
        import pandas as pd

        turns = [
            self.sessions[s].turns[t]
            for s, t in zip(self.session_index.tolist(), self.turn_index.tolist(), strict=True)
        ]
        names = [status.name.lower() for status in RecordStatus]
        return pd.DataFrame(
            {
                "request_id": np.arange(len(self)),
                "session": [self.sessions[s].session_id for s in self.session_index.tolist()],
                "turn": [turn.turn_id for turn in turns],
                "agent": [turn.agent for turn in turns],
                "replica": self.replica,
                "status": [names[status] for status in self.status.tolist()],
                "measured": self.measured,
                "arrival_s": self.arrival_s,
                "front_end_s": self.front_end_s,
                "input_wait_s": self.input_wait_s,
                "queue_s": self.queue_s,
                "prefill_s": self.prefill_s,
                "decode_s": self.decode_s,
                "delivery_s": self.delivery_s,
                "ttft_s": self.ttft_s,
                "tpot_s": self.tpot_s,
                "e2e_s": self.e2e_s,
                "prompt_tokens": self.prompt_tokens,
                "cached_tokens": self.cached_tokens,
                "output_tokens": self.output_tokens,
                "preemptions": self.preemptions,
            }
        )


_INTS = (
    "request_id",
    "session_index",
    "turn_index",
    "replica",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "preemptions",
    "status",
)
_TIMES = ("arrival_s", "front_end_s", "input_wait_s", "queue_s", "prefill_s", "decode_s", "delivery_s")
_ROW = Struct(f"={len(_INTS)}q{len(_TIMES)}d")
_DTYPE = np.dtype([(name, np.int64) for name in _INTS] + [(name, np.float64) for name in _TIMES])
_NAN = float("nan")


class Flight(NamedTuple):
    """What the fleet remembers of a request on its way."""

    session_index: int
    turn_index: int
    arrival: Tick
    replica: int
    routed: RoutedRequest


class Recorder:
    """Takes requests as they end, in any order, and packs them row after row."""

    def __init__(self) -> None:
        self._rows = bytearray()

    def add(self, request: Request, flight: Flight, delivery: Tick, status: RecordStatus) -> None:
        """Record `request` as it is now; times in ticks, as floats."""
        session_index, turn_index, arrival, replica, _ = flight
        handed = request.arrival_tick
        queued, scheduled = request.queued_tick, request.scheduled_tick
        first, last = request.first_token_tick, request.finish_tick
        self._rows += _ROW.pack(
            request.request_id,
            session_index,
            turn_index,
            replica,
            request.num_prompt_tokens,
            request.num_cached_tokens or 0,
            request.num_output_tokens,
            request.num_preemptions,
            status,
            arrival,
            handed - arrival,
            _NAN if queued is None else queued - handed,
            _NAN if queued is None or scheduled is None else scheduled - queued,
            _NAN if scheduled is None or first is None else first - scheduled,
            _NAN if first is None or last is None else last - first,
            delivery,
        )

    def finish(self, sessions: Sequence[Session], window: tuple[float, float]) -> Records:
        """The columns in order of arrival; requests that arrived in `window` are the measured ones."""
        rows = np.frombuffer(self._rows, dtype=_DTYPE)
        rows = rows[np.argsort(rows["request_id"])]
        columns: dict[str, Any] = {name: rows[name].copy() for name in _INTS if name != "request_id"}
        columns |= {name: rows[name] / TICKS_PER_S for name in _TIMES}
        arrival_s = columns["arrival_s"]
        measured = (arrival_s >= window[0]) & (arrival_s <= window[1])
        return Records(sessions=sessions, measured=measured, **columns)
