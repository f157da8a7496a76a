"""Opening the collector's database, or its EXPORT DATABASE folder, read-only; and what can be wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from replicast.sim.errors import InputError

if TYPE_CHECKING:
    import duckdb

INSTALL = "pip install 'replicast[sweep]'"
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "collector_sessions": ("session_id", "session_name", "started_at", "stopped_at", "interval_seconds"),
    "metric_scrapes": ("scrape_id", "session_id", "sequence_number", "scraped_at", "status"),
    "metric_samples": ("scrape_id", "metric", "metric_type", "labels", "value"),
}


def open_collector(path: Path) -> duckdb.DuckDBPyConnection:
    try:
        import duckdb
    except ImportError as error:
        raise InputError(
            "reading the collector's database needs the package duckdb", where=str(path), remedy=INSTALL
        ) from error
    if path.is_dir():
        return _open_export(duckdb.connect(), path)
    try:
        connection = duckdb.connect(str(path), read_only=True)
    except Exception as error:
        # "block" is in many messages of damage, so the whole words of DuckDB are looked for.
        if any(words in str(error).lower() for words in ("set lock", "conflicting lock", "another process")):
            raise InputError(
                "the database is locked by another process",
                where=str(path),
                remedy="stop the collector first, or copy the file together with its .wal and read the copy",
            ) from error
        raise InputError(
            f"this is not a readable DuckDB database ({first_line(error)})",
            where=str(path),
            remedy="a half-written file cannot be read: copy it again once the collector has stopped; "
            f"a file of a newer DuckDB needs a newer package ({INSTALL})",
        ) from error
    try:
        _check_schema(connection, path)
    except Exception:
        connection.close()
        raise
    return connection


def _open_export(connection: duckdb.DuckDBPyConnection, folder: Path) -> duckdb.DuckDBPyConnection:
    """Tables of an EXPORT DATABASE folder; its SQL scripts are not run."""
    for table in COLUMNS:
        found = [file for suffix in ("parquet", "csv") if (file := folder / f"{table}.{suffix}").is_file()]
        if not found:
            raise InputError(
                f"the exported database has no {table}.parquet or {table}.csv",
                where=str(folder),
                remedy="export it again with EXPORT DATABASE 'folder'",
            )
        name = str(found[0]).replace("'", "''")
        source = (
            f"read_parquet('{name}')"
            if found[0].suffix == ".parquet"
            else f"read_csv('{name}', header = true, sample_size = -1, types = {_csv_types(table)})"
        )
        try:
            connection.execute(f"CREATE TABLE {table} AS SELECT * FROM {source}")
        except Exception as error:
            raise InputError(
                f"not a table of the collector ({first_line(error)})",
                where=name,
                remedy="export the collector's own database; docs/sweep-formats.md shows its columns",
            ) from error
    _check_schema(connection, folder)
    return connection


def _csv_types(table: str) -> str:
    texts = {
        "collector_sessions": "{'session_id': 'VARCHAR', 'session_name': 'VARCHAR', "
        "'started_at': 'TIMESTAMPTZ', 'stopped_at': 'TIMESTAMPTZ'}",
        "metric_scrapes": "{'session_id': 'VARCHAR', 'scraped_at': 'TIMESTAMPTZ', 'error': 'VARCHAR'}",
        "metric_samples": "{'metric': 'VARCHAR', 'labels': 'VARCHAR', 'value': 'DOUBLE'}",
    }
    return texts[table]


def _check_schema(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    found: dict[str, list[str]] = {}
    for table, column in connection.execute(
        "SELECT table_name, column_name FROM information_schema.columns ORDER BY ALL"
    ).fetchall():
        found.setdefault(table, []).append(column)
    for table, columns in COLUMNS.items():
        lacking = [column for column in columns if column not in found.get(table, [])]
        if not lacking:
            continue
        what = f"table {table} lacks {', '.join(lacking)}" if table in found else f"there is no table {table}"
        raise InputError(
            f"not a database of the metrics collector: {what} "
            f"(tables here: {', '.join(sorted(found)) or 'none'})",
            where=str(path),
            remedy="give the file that the collector wrote during the sweep (throughput-metrics.duckdb)",
        )


def first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
