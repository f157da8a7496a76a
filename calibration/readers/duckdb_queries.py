"""From the collector's long table to increases and gauges, by the rules of `counters.py`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from replicast.calibration.readers.counters import (
    CONFIG_GAUGE,
    GAUGES,
    PREFIX,
    engine_of,
    is_counter,
    plain_name,
    sub_label,
)
from replicast.sim.errors import InputError

if TYPE_CHECKING:
    import duckdb

# Families that vLLM added in 0.33: their presence tells the version's side.
MARKERS = (
    "vllm:request_num_preemptions_count", "vllm:prompt_tokens_cached_by_source_total",
    "vllm:admission_rejections_total",
)  # fmt: skip


def prepare(connection: duckdb.DuckDBPyConnection, session_ids: list[str], model_name: str | None) -> None:
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
        WHERE s.status = 'ok' AND s.scraped_at IS NOT NULL
        """
    )


class Increases(NamedTuple):
    """By session: increase of each counter, engines seen, times of restarts, series born late."""

    totals: dict[str, dict[tuple[str, str], float]]
    engines: dict[str, list[str]]
    resets: dict[str, list[float]]
    born_late: dict[str, int]
    not_finite: int


def increases(connection: duckdb.DuckDBPyConnection) -> Increases:
    """What every counter of every session rose by."""
    odd = connection.execute(
        "SELECT count(*) FROM points WHERE value IS NULL OR NOT isfinite(value)"
    ).fetchone()
    below = connection.execute(
        """
        SELECT metric, value FROM points WHERE value < 0
            AND (suffix(metric, '_total') OR suffix(metric, '_count') OR suffix(metric, '_bucket'))
        ORDER BY 1, 2 LIMIT 1
        """
    ).fetchone()
    if below is not None:
        raise InputError(
            f"the counter {below[0]} is {below[1]:g}, and a counter is never below 0",
            remedy="the values were changed after the scrape: give the collector's own file",
        )
    # A restart resets all counters together, so the few that are not buckets show it.
    connection.execute(
        """
        CREATE OR REPLACE TEMP TABLE falls AS
        SELECT DISTINCT session_id, engine, n, at_s FROM (
            SELECT session_id, engine, n, at_s, value,
                   lag(value) OVER (PARTITION BY session_id, series_id ORDER BY n) AS before
            FROM points WHERE isfinite(value)
                AND (suffix(metric, '_total') OR suffix(metric, '_count') OR suffix(metric, '_sum')))
        WHERE value < before
        """
    )
    fallen = connection.execute(
        "SELECT DISTINCT session_id, at_s FROM falls ORDER BY session_id, at_s"
    ).fetchall()
    # The life of the server that a scrape belongs to: how often it had restarted by then.
    life = (
        "(SELECT count(*) FROM falls f "
        "WHERE f.session_id = p.session_id AND f.engine = p.engine AND f.n <= p.n)"
        if fallen
        else "0"
    )
    rows = connection.execute(
        f"""
        WITH starts AS (SELECT session_id, min(n) AS first_n FROM points GROUP BY session_id),
        ends AS (
            SELECT p.session_id, p.series_id, {life} AS life, min(p.n) AS born,
                   arg_min(p.value, p.n) AS low, arg_max(p.value, p.n) AS high
            FROM points p
            WHERE isfinite(p.value) AND (suffix(p.metric, '_total') OR suffix(p.metric, '_count')
                  OR suffix(p.metric, '_sum') OR suffix(p.metric, '_bucket'))
            GROUP BY 1, 2, 3)
        SELECT e.session_id, s.metric, s.labels, e.high,
               CASE WHEN e.life = 0 AND e.born = t.first_n THEN e.low ELSE 0 END,
               e.life = 0 AND e.born > t.first_n AND e.high > 0
        FROM ends e JOIN series s USING (series_id) JOIN starts t USING (session_id)
        ORDER BY e.session_id, e.series_id, e.life
        """
    ).fetchall()
    totals: dict[str, dict[tuple[str, str], float]] = {}
    engines: dict[str, list[str]] = {}
    late: dict[str, int] = {}
    for session_id, metric, labels, high, low, born_late in rows:
        name, label_map = plain_name(metric), json.loads(labels)
        if not is_counter(name):
            continue
        of_session = totals.setdefault(str(session_id), {})
        key = (name, sub_label(label_map))
        of_session[key] = of_session.get(key, 0.0) + (float(high) - float(low))
        known = engines.setdefault(str(session_id), [])
        if (engine := engine_of(label_map)) not in known:
            known.append(engine)
        late[str(session_id)] = late.get(str(session_id), 0) + int(born_late)
    resets: dict[str, list[float]] = {}
    for session_id, at in fallen:
        resets.setdefault(str(session_id), []).append(float(at))
    return Increases(totals, engines, resets, late, int(odd[0]) if odd else 0)


def gauges(
    connection: duckdb.DuckDBPyConnection,
) -> dict[str, dict[tuple[str, str], list[tuple[float, str, float]]]]:
    """By session and metric: (time, engine, value) of each scrape."""
    found: dict[str, dict[tuple[str, str], list[tuple[float, str, float]]]] = {}
    names = [PREFIX + name for name in (*GAUGES, "gpu_cache_usage_perc")]
    rows = connection.execute(
        """
        SELECT p.session_id, p.at_s, p.metric, s.labels, p.value FROM points p JOIN series s USING (series_id)
        WHERE isfinite(p.value) AND list_contains($names, p.metric) ORDER BY p.session_id, p.n, p.series_id
        """,
        {"names": names},
    ).fetchall()
    parsed: dict[str, dict[str, str]] = {}
    for session_id, at, metric, labels, value in rows:
        if labels not in parsed:
            parsed[labels] = json.loads(labels)
        label_map = parsed[labels]
        key = (plain_name(metric), sub_label(label_map))
        series = found.setdefault(str(session_id), {}).setdefault(key, [])
        series.append((float(at), engine_of(label_map), float(value)))
    return found


def config_labels(connection: duckdb.DuckDBPyConnection) -> list[dict[str, str]]:
    """Label sets of `vllm:cache_config_info`."""
    rows = connection.execute(
        "SELECT DISTINCT s.labels FROM points p JOIN series s USING (series_id) "
        "WHERE p.metric = $name ORDER BY 1",
        {"name": PREFIX + CONFIG_GAUGE},
    ).fetchall()
    return [json.loads(labels) for (labels,) in rows]


def note_versions(connection: duckdb.DuckDBPyConnection, notes: list[str]) -> None:
    """Note levels of different vLLM versions."""
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
