"""What a schedule() call has decided so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from replicast.sim.request import Request

from reference.output import ScheduledRow


@dataclass(slots=True)
class Step:
    """A schedule() call under way."""

    token_budget: int
    long_prefill_token_threshold: int
    defer_prefills: bool
    rows: dict[int, ScheduledRow] = field(default_factory=dict)
    preempted: list[Request] = field(default_factory=list)
    prefill_was_running: bool = False
    prefill_admitted: bool = False

    def add(self, row: ScheduledRow) -> None:
        self.rows[row.request.request_id] = row
        self.token_budget -= row.num_scheduled_tokens

    def drop(self, request: Request) -> bool:
        """Take back a victim's row, if it has one."""
        row = self.rows.pop(request.request_id, None)
        if row is None:
            return False
        self.token_budget += row.num_scheduled_tokens
        return True
