"""What the client of each turn waited, whatever became of its requests.

A request on a replica that was lost is sent again as a new request. To the developer both are one turn:
it began with the first of them and its first token is that of the last. A turn that got no answer at all
counts as slower than any limit, as everywhere in planning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from replicast.sim.fleet.records import Records, RecordStatus
from replicast.sim.planning.slo import SLO

Floats = NDArray[np.float64]


class Waits(NamedTuple):
    """Turns by when they were first asked, and one value each."""

    asked_s: Floats
    value_s: Floats

    def between(self, start_s: float, end_s: float) -> Floats:
        """Values of the turns asked from `start_s` to before `end_s`."""
        values: Floats = self.value_s[(self.asked_s >= start_s) & (self.asked_s < end_s)]
        return values


def turn_waits(metric: str, records: Records) -> Waits:
    """All turns of a run but rejected ones; of `tpot` only those whose pace is known."""
    status, arrival_s = records.status, records.arrival_s
    column = {
        "ttft": records.ttft_s,
        "tpot": records.tpot_s,
        "e2el": records.e2e_s,
        "queue": records.queue_s,
    }[metric]
    turns = list(zip(records.session_index.tolist(), records.turn_index.tolist(), strict=True))
    aborted = np.flatnonzero(np.equal(status, RecordStatus.ABORTED)).tolist()
    first: dict[tuple[int, int], int] = {}
    for row in aborted:
        first.setdefault(turns[row], row)
    kept = np.asarray((status != RecordStatus.REJECTED) & (status != RecordStatus.ABORTED))
    asked_s, value_s = arrival_s.copy(), column.copy()
    if first:
        for row in np.flatnonzero(kept).tolist():
            begun = first.pop(turns[row], None)
            if begun is not None:
                asked_s[row] = arrival_s[begun]
                if metric != "tpot":
                    value_s[row] += arrival_s[row] - arrival_s[begun]
        for row in first.values():  # nobody sent them again
            kept[row], value_s[row] = True, np.nan
    if metric == "tpot":
        kept = kept & np.isfinite(value_s) & (records.output_tokens > 1)
    value_s = np.where(np.isfinite(value_s), value_s, np.inf)
    return Waits(asked_s[kept], value_s[kept])


def slo_value_s(slo: SLO, values: Floats) -> float | None:
    """The SLO's figure of some turns; None of none."""
    if not len(values):
        return None
    if slo.quantile is None:
        return float(values.mean())
    return float(np.quantile(values, slo.quantile, method="inverted_cdf"))


def holds(slos: Sequence[SLO], values_s: Sequence[float | None]) -> bool:
    """Every SLO that has a figure is below its limit."""
    return all(v is None or v < slo.limit_s for slo, v in zip(slos, values_s, strict=True))


def late_share(slos: Sequence[SLO], values: Sequence[Floats]) -> float:
    """Share of turns above the limit, of the SLO that most miss."""
    shares = [float((v >= slo.limit_s).mean()) for slo, v in zip(slos, values, strict=True) if len(v)]
    return max(shares, default=0.0)
