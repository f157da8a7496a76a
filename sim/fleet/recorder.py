"""Where requests become rows: packed one after the other as they end, no object kept."""

from __future__ import annotations

import sys
from struct import Struct
from typing import Final

import numpy as np
from replicast.sim.fleet.flight import Flight
from replicast.sim.fleet.record_file import RecordWriter
from replicast.sim.fleet.records import INTS, TIMES, RecordStatus, Rows
from replicast.sim.ticks import TICKS_PER_S, Tick

FINISHED: Final = int(RecordStatus.FINISHED)
REJECTED: Final = int(RecordStatus.REJECTED)
UNFINISHED: Final = int(RecordStatus.UNFINISHED)
ABORTED: Final = int(RecordStatus.ABORTED)

_ROW = Struct(f"={len(INTS)}q{len(TIMES)}d")
_DTYPE = np.dtype([(name, np.int64) for name in INTS] + [(name, np.float64) for name in TIMES])
_NAN = float("nan")


class Recorder:
    """Takes requests as they end, in any order; `delivery` is the way of a token to the client.

    A `writer` is given rows whenever a batch has come together, and none are kept here.
    """

    def __init__(self, delivery: Tick, writer: RecordWriter | None = None) -> None:
        self._delivery = delivery
        self._rows = bytearray()
        self._writer = writer
        self._limit = writer.batch_rows * _ROW.size if writer is not None else sys.maxsize
        self._pack = _ROW.pack

    def add(self, flight: Flight, status: int) -> None:
        """Record `flight` as it is now."""
        sent, handed = flight.sent_tick, flight.arrival_tick
        queued, scheduled = flight.queued_tick, flight.scheduled_tick
        first, last = flight.first_token_tick, flight.finish_tick
        rows = self._rows
        rows += self._pack(
            flight.request_id,
            flight.session_key,
            flight.turn_index,
            flight.replica,
            flight.num_prompt_tokens,
            flight.num_cached_tokens or 0,
            flight.num_output_tokens,
            flight.num_preemptions,
            status,
            sent,
            handed - sent,
            _NAN if queued is None else queued - handed,
            _NAN if queued is None or scheduled is None else scheduled - queued,
            _NAN if scheduled is None or first is None else first - scheduled,
            _NAN if first is None or last is None else last - first,
            self._delivery,
        )
        if len(rows) >= self._limit:
            self.flush()

    def flush(self) -> None:
        """Hand over the rows so far."""
        assert self._writer is not None, "somebody takes the rows"
        self._writer.write(self.rows())
        self._rows = bytearray()

    def rows(self) -> Rows:
        """The rows that are here, in the order of their ends."""
        rows = np.frombuffer(self._rows, dtype=_DTYPE)
        return {name: rows[name].copy() for name in INTS} | {name: rows[name] / TICKS_PER_S for name in TIMES}
