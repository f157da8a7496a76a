"""The metrics collector's DuckDB database, or its EXPORT DATABASE folder -> `Sweep`.

Three tables: `collector_sessions` (one a level, named `<model>_c<N>`), `metric_scrapes` (failed ones
are rows without samples), `metric_samples` (long format, raw cumulative values). The database is
opened read-only and only read with SELECT. Increases are computed in SQL by the rules of
`counters.py`; sessions of one name are windows of one load and are added, unless they overlap in
time: two collectors that watched the same load would count it twice.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from replicast.calibration.readers.counters import (
    CounterWindow,
    given_of_config,
    merge_levels,
    order_levels,
)
from replicast.calibration.readers.duckdb_open import first_line, open_collector
from replicast.calibration.readers.duckdb_queries import (
    config_labels,
    gauges,
    increases,
    note_versions,
    prepare,
)
from replicast.calibration.readers.text import input_file
from replicast.calibration.sweep import Given, Sweep, SweepLevel
from replicast.sim.errors import InputError

if TYPE_CHECKING:
    import duckdb

LEVEL_NAME = re.compile(r"^(?P<model>.+)_c(?P<concurrency>0*[1-9][0-9]*)$", re.DOTALL)


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
    connection = open_collector(path)
    try:
        return _read(connection, path, model, load_s)
    except InputError:
        raise
    except Exception as error:  # DuckDB's errors share no useful base across versions
        raise InputError(
            f"the database cannot be read to its end ({first_line(error)})",
            where=str(path),
            remedy="it is probably half-written: stop the collector, copy the file together with its .wal, "
            "and read the copy",
        ) from error
    finally:
        connection.close()


def _read(
    connection: duckdb.DuckDBPyConnection, path: Path, model: str | None, load_s: float | None
) -> Sweep:
    dropped: Counter[str] = Counter()
    notes: list[str] = []
    sessions = _sessions(connection, path, dropped, notes)
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
    prepare(connection, [session.session_id for session in sessions], model_name)
    rises = increases(connection)
    seen = gauges(connection)
    if rises.not_finite:
        dropped["samples that are not finite"] += rises.not_finite
    windows: dict[int, list[SweepLevel]] = {}
    for session in sessions:
        window = CounterWindow(
            name=session.name,
            concurrency=session.concurrency,
            start_s=session.start_s,
            stop_s=session.stop_s,
            totals=rises.totals.get(session.session_id, {}),
            gauges=seen.get(session.session_id, {}),
            engines=tuple(rises.engines.get(session.session_id, ())),
            scrapes=session.scrapes,
            scrapes_failed=session.failed,
            reset_times_s=tuple(rises.resets.get(session.session_id, ())),
            largest_gap_s=session.largest_gap_s,
            interval_s=session.interval_s,
        )
        _note_window(window, session, rises.born_late.get(session.session_id, 0))
        windows.setdefault(session.concurrency, []).append(window.level(load_s))
    levels = order_levels(merge_levels(parts) for parts in windows.values())
    note_versions(connection, notes)
    given = given_of_config(config_labels(connection), notes)
    engine_count = max((level.engines or 1 for level in levels), default=1)
    if engine_count > 1:
        notes.append(f"{engine_count} engines are added: every figure is that of the whole deployment")
    return Sweep(
        source=str(path),
        format="duckdb-collector",
        levels=levels,
        model=series or model_name,
        given=Given(model=model_name, sources=(("model", "model_name"),) if model_name else ()).over(given),
        inputs=(input_file(path, sum(session.scrapes for session in sessions)),) if path.is_file() else (),
        dropped=tuple(sorted(dropped.items())),
        notes=tuple(notes),
    )


def _sessions(
    connection: duckdb.DuckDBPyConnection, path: Path, dropped: Counter[str], notes: list[str]
) -> list[_Session]:
    # Failed scrapes have no samples; one marked ok without samples (server just up) is as empty.
    rows = connection.execute(
        """
        WITH filled AS (SELECT DISTINCT scrape_id FROM metric_samples),
        scrapes AS (
            SELECT s.session_id, s.sequence_number AS n, epoch(s.scraped_at) AS at_s,
                   s.status = 'ok' AND f.scrape_id IS NOT NULL AND s.scraped_at IS NOT NULL AS good
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
    timeless = connection.execute("SELECT count(*) FROM metric_scrapes WHERE scraped_at IS NULL").fetchone()
    if timeless and timeless[0]:
        dropped["scrapes without a time (scraped_at is NULL)"] += int(timeless[0])
    sessions: list[_Session] = []
    for session_id, name, interval, still_open, good, failed, first, last, number, gap in rows:
        match = LEVEL_NAME.match(name)
        if match is None:
            dropped["sessions not named <model>_c<N>"] += 1
            notes.append(f"{name} is left out: its name is not <model>_c<N>")
        elif good < 2 or last <= first:
            dropped["sessions with fewer than two successful scrapes"] += 1
            notes.append(f"{name} is left out: it has fewer than two successful scrapes")
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
        WITH series AS (
            SELECT CAST(labels AS VARCHAR) AS labels,
                   max(CASE WHEN metric = 'vllm:generation_tokens_total' THEN value ELSE 0 END) AS tokens
            FROM metric_samples GROUP BY 1)
        SELECT json_extract_string(labels, '$.model_name') AS model, max(tokens)
        FROM series GROUP BY 1 HAVING model IS NOT NULL ORDER BY 1
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
            notes.append(f"one of two runs of {session.name} at the same time is left out")
    kept.sort(key=lambda one: (one.start_s, one.session_id))
    for before, after in pairwise(kept):
        if after.start_s < before.stop_s and after.name != before.name:
            notes.append(
                f"{before.name} was still being scraped when {after.name} began: their counters share "
                f"{before.stop_s - after.start_s:.0f} s"
            )
    return kept


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
