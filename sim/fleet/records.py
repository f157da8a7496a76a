"""What is recorded of each request: columns, one row a request, no object kept.

Intervals are vLLM's own (RULES of the metrics, v1/metrics/stats.py), on one clock:

    arrival -> front end -> engine arrival -> input wait -> QUEUED -> queue -> SCHEDULED -> prefill
            -> first token -> decode -> last token;   delivery is the way of a token to the client

    ttft = front end + input wait + queue + prefill + delivery        e2e = ttft + decode

`queue` excludes the wait for the running step to end, which is `input_wait`. An interval that did not
end is NaN. A rejected request has its front-end time only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from replicast.sim.fleet.routers import RoutedRequest
from replicast.sim.request import Request
from replicast.sim.ticks import TICKS_PER_S, Tick
from replicast.sim.workload import Session

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Rows = dict[str, NDArray[Any]]
Scalar = TypeVar("Scalar", bound=np.generic)

FLUSH_ROWS = 65_536


class RecordStatus(IntEnum):
    """How a request ended. submitted = finished + rejected + aborted + unfinished."""

    FINISHED = 0
    REJECTED = 1  # HTTP 400: longer than max_model_len
    UNFINISHED = 2  # in flight when the run ended
    ABORTED = 3


class _Column(Generic[Scalar]):
    """A column of `Records`, taken from where it is kept."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, records: Records, owner: type) -> NDArray[Scalar]:
        return records.columns[self._name]


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Columns in order of arrival. `session_index` and `turn_index` point into `sessions`.

    `columns` are arrays in memory, or a file that is read column by column (`record_file.py`).
    `sessions` is empty where they were not kept. `window` is the measured part of the run.
    """

    sessions: Sequence[Session] = field(repr=False)
    columns: Mapping[str, NDArray[Any]] = field(repr=False)
    num_requests: int
    window: tuple[float, float]

    session_index = _Column[np.int64]()
    turn_index = _Column[np.int64]()
    replica = _Column[np.int64]()
    prompt_tokens = _Column[np.int64]()
    cached_tokens = _Column[np.int64]()  # hit tokens of the first admission, 0 if there was none
    output_tokens = _Column[np.int64]()
    preemptions = _Column[np.int64]()
    status = _Column[np.int64]()
    arrival_s = _Column[np.float64]()
    front_end_s = _Column[np.float64]()
    input_wait_s = _Column[np.float64]()
    queue_s = _Column[np.float64]()
    prefill_s = _Column[np.float64]()
    decode_s = _Column[np.float64]()
    delivery_s = _Column[np.float64]()

    def __len__(self) -> int:
        return self.num_requests

    @property
    def measured(self) -> Bools:
        """Rows of requests that arrived in the measured window."""
        arrival_s = self.arrival_s
        return (arrival_s >= self.window[0]) & (arrival_s <= self.window[1])

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
        """One row a request, units in the names; places instead of names where sessions were not kept."""
        import pandas as pd

        at = list(zip(self.session_index.tolist(), self.turn_index.tolist(), strict=True))
        sessions = self.sessions
        names = [status.name.lower() for status in RecordStatus]
        return pd.DataFrame(
            {
                "request_id": np.arange(len(self)),
                "session": [sessions[s].session_id if sessions else str(s) for s, _ in at],
                "turn": [sessions[s].turns[t].turn_id if sessions else str(t) for s, t in at],
                "agent": [sessions[s].turns[t].agent if sessions else "" for s, t in at],
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


INTS = (
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
TIMES = ("arrival_s", "front_end_s", "input_wait_s", "queue_s", "prefill_s", "decode_s", "delivery_s")
_ROW = Struct(f"={len(INTS)}q{len(TIMES)}d")
_DTYPE = np.dtype([(name, np.int64) for name in INTS] + [(name, np.float64) for name in TIMES])
_NAN = float("nan")


class Flight(NamedTuple):
    """What the fleet remembers of a request on its way."""

    session_index: int
    turn_index: int
    arrival: Tick
    replica: int
    routed: RoutedRequest


class Recorder:
    """Takes requests as they end, in any order, and packs them row after row.

    With `flush` it is given rows whenever `FLUSH_ROWS` have come together, and none are kept here.
    """

    def __init__(self, flush: Callable[[Rows], None] | None = None) -> None:
        self._rows = bytearray()
        self._flush = flush
        self._limit = FLUSH_ROWS * _ROW.size if flush is not None else sys.maxsize

    def add(self, request: Request, flight: Flight, delivery: Tick, status: RecordStatus) -> None:
        """Record `request` as it is now."""
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

        if len(self._rows) >= self._limit:
            self.flush()

    def flush(self) -> None:
        """Hand over the rows so far."""
        assert self._flush is not None, "somebody takes the rows"
        self._flush(self.rows())
        self._rows = bytearray()

    def rows(self) -> Rows:
        """The rows that are here, in the order of their ends."""
        rows = np.frombuffer(self._rows, dtype=_DTYPE)
        return {name: rows[name].copy() for name in INTS} | {name: rows[name] / TICKS_PER_S for name in TIMES}


def in_order_of_arrival(rows: Rows) -> Rows:
    """Columns by request id, which counts arrivals."""
    ids = rows["request_id"]
    columns = {}
    for name, values in rows.items():
        columns[name] = np.empty_like(values)
        columns[name][ids] = values
    return columns
