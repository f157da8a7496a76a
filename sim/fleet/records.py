"""What is recorded of each request: columns, one row a request, no object kept.

Intervals are vLLM's own (RULES of the metrics, v1/metrics/stats.py), on one clock:

    arrival -> front end -> engine arrival -> input wait -> QUEUED -> queue -> SCHEDULED -> prefill
            -> first token -> decode -> last token;   delivery is the way of a token to the client

    ttft = front end + input wait + queue + prefill + delivery        e2e = ttft + decode

`queue` excludes the wait for the running step to end, which is `input_wait`. An interval that did not
end is NaN. A rejected request has its front-end time only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from replicast.sim.workload import Session

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Rows = dict[str, NDArray[Any]]
Scalar = TypeVar("Scalar", bound=np.generic)


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


def in_order_of_arrival(rows: Rows) -> Rows:
    """Columns by request id, which counts arrivals."""
    ids = rows["request_id"]
    columns = {}
    for name, values in rows.items():
        columns[name] = np.empty_like(values)
        columns[name][ids] = values
    return columns
