"""Per-request records of all runs in one file: CSV always, Parquet where pyarrow is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from replicast.sim.fleet.result import RunResult
from replicast.sim.report.files import write_atomically

if TYPE_CHECKING:
    import pandas as pd

NANOSECOND = "%.9f"


def write_records(results: Sequence[RunResult], folder: Path) -> list[Path]:
    """`requests.csv` and `requests.parquet`, one row a request, `replicas` says of which run."""
    csv, parquet = folder / "requests.csv", folder / "requests.parquet"
    write_atomically(csv, lambda path: _csv(results, path))
    if importlib.util.find_spec("pyarrow") is None:
        return [csv]
    write_atomically(parquet, lambda path: _parquet(results, path))
    return [csv, parquet]


def _frame(result: RunResult) -> pd.DataFrame:
    frame = result.records.to_frame()
    frame.insert(0, "replicas", result.fleet.replicas)
    return frame


def _csv(results: Sequence[RunResult], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as out:
        for number, result in enumerate(results):
            _frame(result).to_csv(
                out, header=number == 0, index=False, float_format=NANOSECOND, lineterminator="\n"
            )


def _parquet(results: Sequence[RunResult], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None
    with path.open("wb") as out:  # pyarrow takes no path that is no UTF-8
        try:
            for result in results:
                part = pa.Table.from_pandas(_frame(result), preserve_index=False)
                writer = writer or pq.ParquetWriter(out, part.schema)
                writer.write_table(part.cast(writer.schema))
        finally:
            if writer:
                writer.close()
