"""What a run refuses before it starts: turns that could never be served, and rows that make no sense."""

from __future__ import annotations

from replicast.sim.config import EngineConfig
from replicast.sim.errors import InputError
from replicast.sim.fleet.config import FleetConfig
from replicast.sim.workload import Session, Turn


class SessionCheck:
    """Raises for the first turn of a session that cannot be served."""

    def __init__(self, config: EngineConfig, fleet: FleetConfig) -> None:
        self._max_model_len = config.max_model_len
        self._pool_tokens = config.num_usable_blocks * config.block_size
        self._may_outgrow_pool = config.max_model_len > self._pool_tokens
        self._refuses_long = fleet.over_length == "error"

    def __call__(self, session: Session) -> None:
        """Check all turns."""
        for index, turn in enumerate(session.turns):
            for before in turn.depends_on:
                if not 0 <= before < index:
                    raise _bad(session, turn, "depends on a turn that does not come before it")
            prompt = turn.num_prompt_tokens
            if prompt < 1:
                raise _bad(session, turn, f"has a prompt of {prompt} tokens")
            if prompt >= self._max_model_len:
                if self._refuses_long:
                    raise _bad(
                        session,
                        turn,
                        f"has a prompt of {prompt} tokens, max_model_len is {self._max_model_len}",
                        remedy="raise max_model_len, or let such requests be rejected",
                    )
            elif self._may_outgrow_pool:
                tokens = min(prompt + turn.num_output_tokens, self._max_model_len)
                if tokens > self._pool_tokens:
                    raise _bad(
                        session,
                        turn,
                        f"needs {tokens} tokens of KV cache, the pool of one replica holds "
                        f"{self._pool_tokens}",
                        remedy="raise num_gpu_blocks, or lower max_model_len so that it is rejected",
                    )


def _bad(session: Session, turn: Turn, what: str, remedy: str | None = None) -> InputError:
    return InputError(
        f"turn {turn.turn_id} of session {session.session_id} {what}", where=session.source, remedy=remedy
    )
