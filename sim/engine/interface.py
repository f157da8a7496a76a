"""`Engine`: all that a fleet knows of one replica."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from replicast.sim.request import Request
from replicast.sim.ticks import Tick

if TYPE_CHECKING:  # by the package: that of compiled engines is another
    from replicast.sim.engine import EngineStats


class Engine(Protocol):
    """One vLLM engine on the fleet's clock."""

    stats: EngineStats

    @property
    def next_tick(self) -> Tick | None:
        """When `complete` must be called next; None if nothing is in flight.

        May move earlier after a `submit` (a jump is cut), never later.
        """

    @property
    def num_running(self) -> int:
        """Requests in `running`."""

    @property
    def num_waiting(self) -> int:
        """Requests in `waiting`, those still in the input queue included."""

    @property
    def kv_cache_usage(self) -> float:
        """1 - free/usable; idle cached blocks count as free (RULES section 10)."""

    def submit(self, request: Request, now: Tick) -> None:
        """Put a request into the input queue; the scheduler takes it at the next step boundary."""

    def abort(self, request: Request, now: Tick) -> None:
        """Drop a request wherever it is, at the next step boundary."""

    def complete(self, now: Tick) -> list[Request]:
        """Process the output due at `now` (= `next_tick`); the requests that finished, in output order."""

    def settle(self, now: Tick) -> None:
        """The run ends at `now`, perhaps inside a jump: bring live requests' counts and ticks there.

        What is due at `now` itself has not happened. The engine must not be used afterwards.
        """

    def begin(self, now: Tick) -> None:
        """Take in the input queue and start steps until one must be waited for.

        Call it after `complete`, and after `submit` while `next_tick` is None.
        """
