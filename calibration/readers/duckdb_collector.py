"""The metrics collector's DuckDB database, or its EXPORT DATABASE folder -> `Sweep`.

Three tables: `collector_sessions` (one a level, named `<model>_c<N>`), `metric_scrapes` (failed ones
are rows without samples), `metric_samples` (long format, raw cumulative values). The database is
opened read-only and only read with SELECT. Increases are computed in SQL by the rules of
`counters.py`; sessions of one name are windows of one load and are added, unless they overlap in
time: two collectors that watched the same load would count it twice.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from replicast.calibration.readers.counters import (
    CONFIG_GAUGE,
    GAUGES,
    PREFIX,
    CounterWindow,
    engine_of,
    given_of_config,
    is_counter,
    merge_levels,
    order_levels,
    plain_name,
    sub_label,
)
from replicast.calibration.sweep import Given, Sweep, SweepLevel
from replicast.sim.errors import InputError

if TYPE_CHECKING:
    import duckdb

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "collector_sessions": ("session_id", "session_name", "started_at", "stopped_at", "interval_seconds"),
    "metric_scrapes": ("scrape_id", "session_id", "sequence_number", "scraped_at", "status"),
    "metric_samples": ("scrape_id", "metric", "metric_type", "labels", "value"),
}
LEVEL_NAME = re.compile(r"^(?P<model>.+)_c(?P<concurrency>[0-9]+)$", re.DOTALL)
# Families that vLLM added in 0.33: their presence tells the version's side.
MARKERS = (
    "vllm:request_num_preemptions_count", "vllm:prompt_tokens_cached_by_source_total",
    "vllm:admission_rejections_total",
)  # fmt: skip
INSTALL = "pip install 'replicast[sweep]'"


class _Session(NamedTuple):
    session_id: str
    name: str
    model: str
    concurrency: int
    interval_s: float
    start_s: float
    stop_s: float
    scrapes: int
    failed: int
    first_number: int
    largest_gap_s: float | None
    still_open: bool


def read_duckdb(path: Path, *, model: str | None = None, load_s: float | None = None) -> Sweep:
    """All levels of one model. `model` names a series (`<model>_c<N>`) or a served model name."""
    connection = _open(path)
    try:
        return _read(connection, path, model, load_s)
    except InputError:
        raise
    except Exception as error:  # DuckDB's errors share no useful base across versions
        raise InputError(
            f"the database cannot be read to its end ({_first_line(error)})",
            where=str(path),
            remedy="it is probably half-written: stop the collector, copy the file together with its .wal, "
            "and read the copy",
        ) from error
    finally:
        connection.close()


def _open(path: Path) -> duckdb.DuckDBPyConnection:
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
        text = str(error)
        if "lock" in text.lower():
            raise InputError(
                "the database is locked by another process",
                where=str(path),
                remedy="stop the collector first, or copy the file together with its .wal and read the copy",
            ) from error
        raise InputError(
            f"this is not a readable DuckDB database ({_first_line(error)})",
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
                f"not a table of the collector ({_first_line(error)})",
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


def _read(
    connection: duckdb.DuckDBPyConnection, path: Path, model: str | None, load_s: float | None
) -> Sweep:
    dropped: Counter[str] = Counter()
    notes: list[str] = []
    sessions = _sessions(connection, path, dropped)
    names, served = _models(connection, sessions)
    series, model_name = _choose(path, model, names, served, notes)
    sessions = [session for session in sessions if series is None or session.model == series]
    sessions = _without_overlaps(sessions, dropped, notes)
    if not sessions:
        raise InputError(
            "no level has two successful scrapes",
            where=str(path),
            remedy="let the collector run through each level: it needs at least a first and a last scrape",
        )
    _prepare(connection, [session.session_id for session in sessions], model_name)
    totals, engines, resets, late, odd = _increases(connection)
    gauges = _gauges(connection)
    if odd:
        dropped["samples that are not finite"] += odd
    windows: dict[int, list[SweepLevel]] = {}
    for session in sessions:
        window = CounterWindow(
            name=session.name,
            concurrency=session.concurrency,
            start_s=session.start_s,
            stop_s=session.stop_s,
            totals=totals.get(session.session_id, {}),
            gauges=gauges.get(session.session_id, {}),
            engines=tuple(engines.get(session.session_id, ())),
            scrapes=session.scrapes,
            scrapes_failed=session.failed,
            reset_times_s=tuple(resets.get(session.session_id, ())),
            largest_gap_s=session.largest_gap_s,
            interval_s=session.interval_s,
        )
        _note_window(window, session, late.get(session.session_id, 0))
        windows.setdefault(session.concurrency, []).append(window.level(load_s))
    levels = order_levels(merge_levels(parts) for parts in windows.values())
    _note_versions(connection, notes)
    given = given_of_config(_config_labels(connection), notes)
    engine_count = max((level.engines or 1 for level in levels), default=1)
    if engine_count > 1:
        notes.append(f"{engine_count} engines are added: every figure is that of the whole deployment")
    return Sweep(
        source=str(path),
        format="duckdb-collector",
        levels=levels,
        model=series or model_name,
        given=replace(given, model=model_name).over(Given()),
        dropped=tuple(sorted(dropped.items())),
        notes=tuple(notes),
    )


def _sessions(connection: duckdb.DuckDBPyConnection, path: Path, dropped: Counter[str]) -> list[_Session]:
    # Failed scrapes have no samples; one marked ok without samples (server just up) is as empty.
    rows = connection.execute(
        """
        WITH filled AS (SELECT DISTINCT scrape_id FROM metric_samples),
        scrapes AS (
            SELECT s.session_id, s.sequence_number AS n, epoch(s.scraped_at) AS at_s,
                   s.status = 'ok' AND f.scrape_id IS NOT NULL AS good
            FROM metric_scrapes s LEFT JOIN filled f USING (scrape_id)),
        gaps AS (
            SELECT session_id, max(gap) AS gap FROM (
                SELECT session_id, at_s - lag(at_s) OVER (PARTITION BY session_id ORDER BY n) AS gap
                FROM scrapes WHERE good)
            GROUP BY session_id)
        SELECT c.session_id, c.session_name, c.interval_seconds, c.stopped_at IS NULL,
               count(*) FILTER (good), count(*) FILTER (n IS NOT NULL AND NOT coalesce(good, false)),
               min(at_s) FILTER (good), max(at_s) FILTER (good), min(n) FILTER (good), any_value(g.gap)
        FROM collector_sessions c
        LEFT JOIN scrapes USING (session_id) LEFT JOIN gaps g USING (session_id)
        GROUP BY ALL ORDER BY min(at_s) NULLS LAST, c.session_name, c.session_id
        """
    ).fetchall()
    orphans = connection.execute(
        "SELECT count(*) FROM metric_scrapes "
        "WHERE session_id NOT IN (SELECT session_id FROM collector_sessions)"
    ).fetchone()
    if orphans and orphans[0]:
        dropped["scrapes without a session"] += int(orphans[0])
    sessions: list[_Session] = []
    for session_id, name, interval, still_open, good, failed, first, last, number, gap in rows:
        match = LEVEL_NAME.match(name)
        if match is None:
            dropped["sessions not named <model>_c<N>"] += 1
        elif good < 2 or last <= first:
            dropped["sessions with fewer than two successful scrapes"] += 1
        else:
            sessions.append(
                _Session(
                    str(session_id), name, match["model"], int(match["concurrency"]), float(interval or 1.0),
                    float(first), float(last), int(good), int(failed), int(number),
                    float(gap) if gap is not None else None, bool(still_open),
                )
            )  # fmt: skip
    if not sessions:
        listed = ", ".join(sorted({str(row[1]) for row in rows})[:5]) or "none"
        why = "; ".join(f"{n} {what}" for what, n in sorted(dropped.items()))
        raise InputError(
            f"no level can be read: sessions here are {listed}" + (f" ({why})" if why else ""),
            where=str(path),
            remedy="a sweep has one collector session a level, named <model>_c<N>, of two or more scrapes",
        )
    return sessions


def _models(
    connection: duckdb.DuckDBPyConnection, sessions: list[_Session]
) -> tuple[list[str], dict[str, float]]:
    names = list(dict.fromkeys(session.model for session in sessions))
    rows = connection.execute(
        """
        SELECT json_extract_string(labels, '$.model_name') AS model,
               max(CASE WHEN metric = 'vllm:generation_tokens_total' THEN value ELSE 0 END)
        FROM metric_samples GROUP BY 1 HAVING model IS NOT NULL ORDER BY 1
        """
    ).fetchall()
    return names, {str(name): float(tokens) for name, tokens in rows}


def _choose(
    path: Path, model: str | None, names: list[str], served: dict[str, float], notes: list[str]
) -> tuple[str | None, str | None]:
    """The series of sessions and the served model to read: told, or the only one there is."""
    active = [name for name, tokens in served.items() if tokens > 0] or list(served)
    if model is not None:
        if model in names:
            return model, _only_served(path, model, served, active, notes)
        if model in served:
            return _only_series(path, names), model
        raise InputError(
            f"no model {model} in this file",
            where=str(path),
            remedy=f"models here: {', '.join(dict.fromkeys((*names, *served)))}",
        )
    series = _only_series(path, names)
    return series, _only_served(path, series, served, active, notes)


def _only_series(path: Path, names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    raise InputError(
        f"the file holds sweeps of {len(names)} models: {', '.join(names)}",
        where=str(path),
        remedy=f"choose one with --model {names[0]}",
    )


def _only_served(
    path: Path, series: str, served: dict[str, float], active: list[str], notes: list[str]
) -> str | None:
    if len(served) <= 1:
        return next(iter(served), None)
    if series in served:
        chosen = series
    elif len(active) == 1:
        chosen = active[0]
    else:
        raise InputError(
            f"the server answered for {len(served)} models: {', '.join(served)}",
            where=str(path),
            remedy=f"choose one with --model {active[0]}",
        )
    others = ", ".join(name for name in served if name != chosen)
    notes.append(f"counters of {chosen} only; the file also has {others}")
    return chosen


def _without_overlaps(sessions: list[_Session], dropped: Counter[str], notes: list[str]) -> list[_Session]:
    kept: list[_Session] = []
    for session in sorted(sessions, key=lambda one: (-one.scrapes, one.start_s, one.session_id)):
        twin = next(
            (
                other
                for other in kept
                if other.name == session.name
                and session.start_s < other.stop_s
                and other.start_s < session.stop_s
            ),
            None,
        )
        if twin is None:
            kept.append(session)
        else:
            dropped["sessions that overlap another of the same name"] += 1
    kept.sort(key=lambda one: (one.start_s, one.session_id))
    for before, after in pairwise(kept):
        if after.start_s < before.stop_s and after.name != before.name:
            notes.append(
                f"{before.name} was still being scraped when {after.name} began: their counters share "
                f"{before.stop_s - after.start_s:.0f} s"
            )
    return kept


def _prepare(connection: duckdb.DuckDBPyConnection, session_ids: list[str], model_name: str | None) -> None:
    """A temporary table of the samples to read; a label set is a number there."""
    connection.execute("CREATE OR REPLACE TEMP TABLE chosen (session_id VARCHAR)")
    connection.executemany("INSERT INTO chosen VALUES (?)", [[one] for one in session_ids])
    wanted = (
        ""
        if model_name is None
        else "WHERE coalesce(json_extract_string(labels, '$.model_name'), $model) = $model"
    )
    connection.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE series AS
        SELECT row_number() OVER (ORDER BY metric, labels) AS series_id, metric, labels,
               concat_ws('/', json_extract_string(labels, '$.instance'), json_extract_string(labels, '$.pod'),
                         json_extract_string(labels, '$.engine')) AS engine
        FROM (SELECT DISTINCT metric, CAST(labels AS VARCHAR) AS labels FROM metric_samples) {wanted}
        """,
        None if model_name is None else {"model": model_name},
    )
    connection.execute(
        """
        CREATE OR REPLACE TEMP TABLE points AS
        SELECT s.session_id, s.sequence_number AS n, epoch(s.scraped_at) AS at_s, e.series_id, e.metric,
               e.engine, m.value
        FROM metric_samples m
        JOIN metric_scrapes s USING (scrape_id)
        JOIN chosen USING (session_id)
        JOIN series e ON e.metric = m.metric AND e.labels = CAST(m.labels AS VARCHAR)
        WHERE s.status = 'ok'
        """
    )


def _increases(
    connection: duckdb.DuckDBPyConnection,
) -> tuple[
    dict[str, dict[tuple[str, str], float]], dict[str, list[str]], dict[str, list[float]], dict[str, int], int
]:
    odd = connection.execute(
        "SELECT count(*) FROM points WHERE value IS NULL OR NOT isfinite(value)"
    ).fetchone()
    connection.execute(
        """
        CREATE OR REPLACE TEMP TABLE steps AS
        SELECT *, lag(value) OVER (PARTITION BY session_id, series_id ORDER BY n) AS before,
               min(n) OVER (PARTITION BY session_id) AS first_n
        FROM points
        WHERE isfinite(value) AND (metric LIKE '%\\_total' ESCAPE '\\' OR metric LIKE '%\\_bucket' ESCAPE '\\'
              OR metric LIKE '%\\_sum' ESCAPE '\\' OR metric LIKE '%\\_count' ESCAPE '\\')
        """
    )
    connection.execute(
        """
        CREATE OR REPLACE TEMP TABLE falls AS
        SELECT DISTINCT session_id, engine, n, at_s FROM steps WHERE value < before
        """
    )
    rows = connection.execute(
        """
        SELECT t.session_id, s.metric, s.labels,
               sum(CASE WHEN t.before IS NULL THEN (CASE WHEN t.n > t.first_n THEN t.value ELSE 0 END)
                        WHEN f.n IS NOT NULL THEN t.value
                        ELSE t.value - t.before END),
               max(CASE WHEN t.before IS NULL AND t.n > t.first_n AND t.value > 0 THEN 1 ELSE 0 END)
        FROM steps t
        JOIN series s USING (series_id)
        LEFT JOIN falls f ON f.session_id = t.session_id AND f.engine = t.engine AND f.n = t.n
        GROUP BY t.session_id, s.metric, s.labels ORDER BY t.session_id, s.metric, s.labels
        """
    ).fetchall()
    totals: dict[str, dict[tuple[str, str], float]] = {}
    engines: dict[str, list[str]] = {}
    late: dict[str, int] = {}
    for session_id, metric, labels, increase, born_late in rows:
        name, label_map = plain_name(metric), json.loads(labels)
        if not is_counter(name):
            continue
        of_session = totals.setdefault(str(session_id), {})
        key = (name, sub_label(label_map))
        of_session[key] = of_session.get(key, 0.0) + float(increase)
        known = engines.setdefault(str(session_id), [])
        if (engine := engine_of(label_map)) not in known:
            known.append(engine)
        late[str(session_id)] = late.get(str(session_id), 0) + int(born_late)
    resets: dict[str, list[float]] = {}
    for session_id, at in connection.execute(
        "SELECT DISTINCT session_id, at_s FROM falls ORDER BY session_id, at_s"
    ).fetchall():
        resets.setdefault(str(session_id), []).append(float(at))
    return totals, engines, resets, late, int(odd[0]) if odd else 0


def _gauges(
    connection: duckdb.DuckDBPyConnection,
) -> dict[str, dict[tuple[str, str], list[tuple[float, str, float]]]]:
    gauges: dict[str, dict[tuple[str, str], list[tuple[float, str, float]]]] = {}
    names = [PREFIX + name for name in (*GAUGES, "gpu_cache_usage_perc")]
    rows = connection.execute(
        """
        SELECT p.session_id, p.at_s, p.metric, s.labels, p.value FROM points p JOIN series s USING (series_id)
        WHERE isfinite(p.value) AND list_contains($names, p.metric) ORDER BY p.session_id, p.n, p.series_id
        """,
        {"names": names},
    ).fetchall()
    parsed: dict[str, Any] = {}
    for session_id, at, metric, labels, value in rows:
        label_map = parsed.setdefault(labels, None) or json.loads(labels)
        parsed[labels] = label_map
        key = (plain_name(metric), sub_label(label_map))
        series = gauges.setdefault(str(session_id), {}).setdefault(key, [])
        series.append((float(at), engine_of(label_map), float(value)))
    return gauges


def _config_labels(connection: duckdb.DuckDBPyConnection) -> list[dict[str, str]]:
    rows = connection.execute(
        "SELECT DISTINCT s.labels FROM points p JOIN series s USING (series_id) "
        "WHERE p.metric = $name ORDER BY 1",
        {"name": PREFIX + CONFIG_GAUGE},
    ).fetchall()
    return [json.loads(labels) for (labels,) in rows]


def _note_versions(connection: duckdb.DuckDBPyConnection, notes: list[str]) -> None:
    rows = connection.execute(
        """
        SELECT session_id, bool_or(list_contains($markers, metric)) FROM points GROUP BY 1 ORDER BY 1
        """,
        {"markers": list(MARKERS)},
    ).fetchall()
    if len({newer for _, newer in rows}) > 1:
        notes.append(
            "some levels have counters that only vLLM 0.33 or later exports and others lack them: "
            "the levels come from different vLLM versions"
        )


def _note_window(window: CounterWindow, session: _Session, late: int) -> None:
    if session.failed:
        window.notes.append(f"{session.failed} of {session.failed + session.scrapes} scrapes failed")
    if window.reset_times_s:
        window.notes.append(
            f"counters fell {len(window.reset_times_s)} time(s): the server restarted; "
            "what it counted between the last scrape and the restart is lost"
        )
    if session.still_open:
        window.notes.append("its collector session was never closed: the window may be cut off")
    if session.largest_gap_s is not None and session.largest_gap_s > max(10.0, 5 * session.interval_s):
        window.notes.append(f"no successful scrape for {session.largest_gap_s:.0f} s")
    if late:
        window.notes.append(f"{late} counter series appeared after the first scrape and are counted from 0")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
