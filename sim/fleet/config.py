"""What a fleet is told: replicas, router, loop, and what counts as the measured part.

Every default that shapes an answer is a field here, so that a result can show it.

Loops (a result names its loop):
  closed       `sessions` sessions are live; a finished one is replaced by the next in file order; a turn
               starts `delay_s` after the last reply it depends on. Developers with agents are closed.
  partly-open  sessions start at their recorded `start_s`; their turns follow as in the closed loop.
  open         every turn with a recorded `arrival_s` is sent then, reply or no reply: the recorded
               server's own latency is baked into such arrivals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

from replicast.sim.errors import InputError
from replicast.sim.fleet.delays import capped_delay
from replicast.sim.workload import Seconds, Session

RouterName = Literal["round-robin", "random", "least-loaded", "session-affinity", "prefix-aware"]
Loop = Literal["closed", "partly-open", "open"]
OverLength = Literal["reject", "truncate-session", "error"]

SESSIONS_PER_REPLICA = 10
MAX_STAGGER_S = 60.0
LONGEST_S = 1e9  # 30 years; ticks of longer times are no numbers any more


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """Time outside the engine: before a request is handed to it, and from its output to the client.

    Handling (rendering, tokenisation) takes `fixed_s + per_prompt_token_s x prompt tokens`, without queueing.
    """

    fixed_s: Seconds = 0.0
    per_prompt_token_s: Seconds = 0.0
    delivery_s: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """One fleet and its clients. `resolved` fills what is None.

    `sessions`: live sessions of a closed loop; None means 10 a replica. `loop`: None means open where
    all sessions have a recorded start and `sessions` is not given, else closed.
    `stagger_s`: the first live sessions start at uniform random times within it, because sessions that
    all start at once meet each other in step for a long while; 0 starts them together, None means 60 s, or
    the delays of a mean session added up where those are less.
    `think_cap_s` caps the human part of a turn's delay (the whole delay where its parts are unknown).
    `warmup_s`: the measured part begins there; None lets `run.py` decide and say so. At `horizon_s` clients
    stop sending; requests in flight get `cooldown_s` more to finish, then they count as unfinished.
    `stops_at_eos`: replies end by EOS, which async scheduling cannot foresee, not by their length limit.
    """

    replicas: int = 1
    router: RouterName = "session-affinity"
    loop: Loop | None = None
    sessions: int | None = None
    stagger_s: Seconds | None = None
    think_cap_s: Seconds | None = 600.0
    warmup_s: Seconds | None = None
    horizon_s: Seconds | None = None
    cooldown_s: Seconds = 0.0
    over_length: OverLength = "reject"
    stops_at_eos: bool = True
    front_end: FrontEnd = FrontEnd()

    def resolved(self, sessions: Sequence[Session]) -> FleetConfig:
        """The same with loop and live sessions known, after checking all values."""
        self._check()
        timed = bool(sessions) and all(session.start_s is not None for session in sessions)
        loop = self.loop or ("open" if timed and self.sessions is None else "closed")
        if loop != "closed" and not timed:
            raise InputError(
                f"the trace has no recorded start for every session, so it cannot be replayed {loop}",
                remedy="replay it in the closed loop",
            )
        if loop != "closed":
            return replace(self, loop=loop, sessions=None, stagger_s=0.0)
        stagger_s = self.stagger_s
        if stagger_s is None:
            delays_s = sum(capped_delay(t, self.think_cap_s)[0] for s in sessions for t in s.turns)
            stagger_s = min(MAX_STAGGER_S, delays_s / max(len(sessions), 1))
        live = self.sessions if self.sessions is not None else SESSIONS_PER_REPLICA * self.replicas
        return replace(self, loop=loop, sessions=live, stagger_s=stagger_s)

    def _check(self) -> None:
        if self.replicas < 1:
            raise InputError(f"{self.replicas} replicas", remedy="use at least 1")
        if self.sessions is not None and self.sessions < 1:
            raise InputError(f"{self.sessions} live sessions", remedy="use at least 1")
        for name, choices in (("router", RouterName), ("loop", Loop), ("over_length", OverLength)):
            value = getattr(self, name)
            if value is not None and value not in get_args(choices):
                raise InputError(
                    f"{name} {value!r} is unknown", remedy=f"use one of {', '.join(get_args(choices))}"
                )
        times = {
            name: getattr(self, name)
            for name in ("stagger_s", "think_cap_s", "warmup_s", "horizon_s", "cooldown_s")
        }
        times |= {f.name: getattr(self.front_end, f.name) for f in fields(FrontEnd)}
        for name, value in times.items():
            if value is not None and not 0 <= value <= LONGEST_S:
                raise InputError(f"{name} is {value}", remedy=f"use a time of 0 to {LONGEST_S:.0e} s")
        if self.horizon_s == 0:
            raise InputError("horizon_s is 0", remedy="use a positive time, or none to run the whole trace")
