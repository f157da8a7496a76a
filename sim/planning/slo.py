"""What developers are promised: `metric:quantile<limit`, such as `ttft:p90<10s` or `tpot:p50<80ms`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from replicast.sim.errors import InputError
from replicast.sim.fleet.records import Records

METRICS = ("ttft", "tpot", "e2el", "queue")
_ALIASES = {"e2e": "e2el", "latency": "e2el", "queue_time": "queue"}
_UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0}
_FORM = re.compile(r"\s*([a-z0-9_]+)\s*:\s*(mean|p[0-9.]+)\s*<=?\s*([0-9.eE+-]+)\s*([a-z]*)\s*")


@dataclass(frozen=True, slots=True)
class SLO:
    """`metric` at `quantile` (None: the mean) must stay below `limit_s`."""

    metric: str
    quantile: float | None
    limit_s: float

    @property
    def name(self) -> str:
        """`ttft:p90`."""
        return f"{self.metric}:{'mean' if self.quantile is None else f'p{100 * self.quantile:g}'}"

    def __str__(self) -> str:
        small = self.limit_s < 1
        return f"{self.name}<{1000 * self.limit_s:g}ms" if small else f"{self.name}<{self.limit_s:g}s"

    def value_s(self, records: Records) -> float:
        """The figure of one run; infinite where more than the quantile allows got no answer at all.

        A measured request that was still without a first token when the run ended counts as slower than
        any limit: leaving it out would make a congested fleet look fast.
        """
        values = metric_values(self.metric, records)
        if not len(values):
            return float("nan")
        if self.quantile is None:
            return float(values.mean())
        return float(np.quantile(values, self.quantile, method="inverted_cdf"))


def metric_values(metric: str, records: Records) -> NDArray[np.float64]:
    """One value a measured request; requests in flight at the end are infinite, rejected ones left out."""
    from replicast.sim.fleet.records import RecordStatus

    served = records.measured & (records.status != RecordStatus.REJECTED)
    if metric == "tpot":
        served = served & ((records.output_tokens > 1) | ~records.finished)
    column: NDArray[np.float64] = {
        "ttft": records.ttft_s,
        "tpot": records.tpot_s,
        "e2el": records.e2e_s,
        "queue": records.queue_s,
    }[metric]
    values: NDArray[np.float64] = column[served]
    if metric == "tpot":  # a request in flight is decoding, or will: its pace is not known
        return values[np.isfinite(values)]
    return np.where(np.isfinite(values), values, np.inf)  # type: ignore[no-any-return,unused-ignore]


def parse_slo(text: str) -> SLO:
    """One SLO from its text.

    >>> parse_slo("ttft:p90<10s"), str(parse_slo("tpot:p50 < 80ms"))
    (SLO(metric='ttft', quantile=0.9, limit_s=10.0), 'tpot:p50<80ms')
    """
    form = _FORM.fullmatch(text.lower())
    if form is None:
        raise _bad(text, "is not metric:quantile<limit")
    metric, quantile, number, unit = form.groups()
    metric = _ALIASES.get(metric, metric)
    if metric not in METRICS:
        raise _bad(text, f"has the unknown metric {metric!r}; known: {', '.join(METRICS)}")
    if unit not in _UNITS:
        raise _bad(text, f"has the unknown unit {unit!r}" if unit else "has a limit without a unit")
    share = None
    try:
        limit_s = float(number) * _UNITS[unit]
        if quantile != "mean":
            share = float(quantile[1:]) / 100
    except ValueError:
        raise _bad(text, "holds something that is not a number") from None
    if share is not None and not 0 < share < 1:
        raise _bad(text, f"asks for {quantile}, which does not lie between p0 and p100")
    if not 0 < limit_s < float("inf"):
        raise _bad(text, "has a limit that is not above 0")
    return SLO(metric, share, limit_s)


def parse_slos(texts: Sequence[str]) -> tuple[SLO, ...]:
    """Several, each metric and quantile once."""
    if not texts:
        raise InputError("no SLO given", remedy='Give one or more, such as --slo "ttft:p90<10s".')
    slos = tuple(parse_slo(text) for text in texts)
    names = [slo.name for slo in slos]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{name} is limited twice", where="--slo")
    return slos


def _bad(text: str, what: str) -> InputError:
    return InputError(
        f"SLO {text!r} {what}",
        where="--slo",
        remedy="Write metric:quantile<limit with a unit, such as ttft:p90<10s or tpot:p50<80ms.",
    )
