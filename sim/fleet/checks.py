"""What a run refuses before it starts: turns that could never be served, and rows that make no sense."""

from __future__ import annotations

from collections.abc import Sequence

from replicast.sim.config import EngineConfig
from replicast.sim.errors import InputError
from replicast.sim.fleet.config import FleetConfig
from replicast.sim.workload import Session, Turn


def check_sessions(sessions: Sequence[Session], config: EngineConfig, fleet: FleetConfig) -> None:
    """Raise for an empty trace, and for the first turn that cannot be served."""
    if not any(session.turns for session in sessions):
        raise InputError("the trace holds no turns", remedy="give a trace with at least one request")
    pool_tokens = config.num_usable_blocks * config.block_size
    may_outgrow_pool = config.max_model_len > pool_tokens
    for session in sessions:
        for index, turn in enumerate(session.turns):
            if any(not 0 <= before < index for before in turn.depends_on):
                raise _bad(session, turn, "depends on a turn that does not come before it")
            if turn.num_prompt_tokens < 1:
                raise _bad(session, turn, f"has a prompt of {turn.num_prompt_tokens} tokens")
            if turn.num_prompt_tokens >= config.max_model_len:
                if fleet.over_length == "error":
                    raise _bad(
                        session,
                        turn,
                        f"has a prompt of {turn.num_prompt_tokens} tokens, "
                        f"max_model_len is {config.max_model_len}",
                        remedy="raise max_model_len, or let such requests be rejected",
                    )
            elif may_outgrow_pool:
                tokens = min(turn.num_prompt_tokens + turn.num_output_tokens, config.max_model_len)
                if tokens > pool_tokens:
                    raise _bad(
                        session,
                        turn,
                        f"needs {tokens} tokens of KV cache, the pool of one replica holds {pool_tokens}",
                        remedy="raise num_gpu_blocks, or lower max_model_len so that it is rejected",
                    )


def _bad(session: Session, turn: Turn, what: str, remedy: str | None = None) -> InputError:
    return InputError(
        f"turn {turn.turn_id} of session {session.session_id} {what}", where=session.source, remedy=remedy
    )
