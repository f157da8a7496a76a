"""A collector's DuckDB database, written from the state of a server at each scrape.

The test bed of calibration: a simulated sweep writes what a real one would have left behind, and the
readers cannot tell. Tables, views, column types, sample names, label JSON and value conventions are
those of the collector (docs/sweep-formats.md). The caller gives raw cumulative states, as a server
has them: nothing resets between levels unless the caller lets the server restart.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from replicast.calibration.buckets import HISTOGRAM_EDGES, N_EDGES, token_edges
from replicast.calibration.readers.duckdb_open import INSTALL
from replicast.sim.errors import InputError

# The label, beside model and engine, that splits a metric.
SPLIT_LABEL: Mapping[str, str] = {
    "request_success_total": "finished_reason",
    "prompt_tokens_by_source_total": "source",
    "num_requests_waiting_by_reason": "reason",
}
TOKEN_HISTOGRAMS = (
    "request_prompt_tokens", "request_generation_tokens", "request_prefill_kv_computed_tokens",
    "request_max_num_generation_tokens", "request_params_max_tokens",
)  # fmt: skip
SCHEMA = """
CREATE TABLE collector_sessions(
  session_id VARCHAR PRIMARY KEY, session_name VARCHAR NOT NULL, started_at TIMESTAMPTZ NOT NULL,
  stopped_at TIMESTAMPTZ, metrics_url VARCHAR NOT NULL, interval_seconds DOUBLE NOT NULL,
  collector_pid INTEGER NOT NULL);
CREATE SEQUENCE metric_scrape_id_seq START 1;
CREATE TABLE metric_scrapes(
  scrape_id BIGINT PRIMARY KEY DEFAULT nextval('metric_scrape_id_seq'), session_id VARCHAR,
  sequence_number BIGINT, scraped_at TIMESTAMPTZ, scrape_duration_ms DOUBLE, status VARCHAR, error VARCHAR,
  sample_count INTEGER);
CREATE TABLE metric_samples(scrape_id BIGINT, metric VARCHAR, metric_type VARCHAR, labels JSON, value DOUBLE);
CREATE VIEW vllm_metric_samples AS
  SELECT m.scrape_id, s.session_id, c.session_name, s.sequence_number, s.scraped_at, s.scrape_duration_ms,
         m.metric, m.metric_type, m.labels, json_extract_string(m.labels, '$.model_name') AS model_name,
         json_extract_string(m.labels, '$.engine') AS engine, m.value
  FROM metric_samples m JOIN metric_scrapes s USING (scrape_id) JOIN collector_sessions c USING (session_id);
CREATE VIEW vllm_metric_deltas AS
  SELECT *, value - lag(value) OVER (
    PARTITION BY session_id, metric, labels ORDER BY sequence_number) AS delta
  FROM vllm_metric_samples;
"""


@dataclass(frozen=True, slots=True)
class HistogramState:
    """A histogram at one instant: sum, and counts per bucket (not cumulative) with the one beyond."""

    sum: float
    counts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class EngineState:
    """One engine's metrics at one instant, names without `vllm:`.

    A counter or gauge that is split by a label (a finish reason, a source) maps label values.
    """

    counters: Mapping[str, float | Mapping[str, float]] = field(default_factory=dict)
    gauges: Mapping[str, float | Mapping[str, float]] = field(default_factory=dict)
    histograms: Mapping[str, HistogramState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scrape:
    """One scrape at `at_s` (seconds since the epoch). Without engines it failed, with `error`."""

    at_s: float
    engines: tuple[EngineState, ...] = ()
    error: str = ""
    duration_ms: float = 5.0


@dataclass(frozen=True, slots=True)
class CollectorSession:
    """One collector session: a level, or one of its repeats. An unclosed one has no `stopped_at`."""

    concurrency: int
    scrapes: tuple[Scrape, ...]
    closed: bool = True
    name: str | None = None  # default '<model>_c<N>'


class Sample(NamedTuple):
    """One Prometheus sample as the collector keeps it."""

    metric: str
    metric_type: str
    labels: str
    value: float


def samples_of(
    state: EngineState,
    *,
    model_name: str,
    engine: str = "0",
    max_model_len: int = 200_000,
    config: Mapping[str, str] | None = None,
) -> list[Sample]:
    """All samples of one engine, in vLLM's order of families: gauges, counters, histograms."""
    base = {"engine": engine, "model_name": model_name}
    samples: list[Sample] = []
    if config is not None:
        labels = {**config, "engine": engine}
        samples.append(Sample("vllm:cache_config_info", "gauge", _labels(labels), 1.0))
    for kind, values in (("gauge", state.gauges), ("counter", state.counters)):
        for name, value in values.items():
            if isinstance(value, Mapping):
                split = SPLIT_LABEL[name]
                samples += [
                    Sample(f"vllm:{name}", kind, _labels({**base, split: label}), float(one))
                    for label, one in value.items()
                ]
            else:
                samples.append(Sample(f"vllm:{name}", kind, _labels(base), float(value)))
    for name, histogram in state.histograms.items():
        samples += _histogram_samples(name, histogram, base, max_model_len)
    return samples


def edges_of(name: str, max_model_len: int = 200_000) -> tuple[float, ...]:
    """Edges of the histogram `name` (without `vllm:`)."""
    if name in HISTOGRAM_EDGES:
        return HISTOGRAM_EDGES[name]
    return N_EDGES if name == "request_params_n" else token_edges(max_model_len)


def empty_histogram(name: str, max_model_len: int = 200_000) -> HistogramState:
    """A histogram that has observed nothing."""
    return HistogramState(0.0, (0.0,) * (len(edges_of(name, max_model_len)) + 1))


def exposition(samples: Sequence[Sample]) -> str:
    """The samples as a server's /metrics page shows them."""
    lines: list[str] = []
    family = ""
    for sample in samples:
        name = sample.metric
        if sample.metric_type == "histogram":
            for suffix in ("_bucket", "_sum", "_count"):
                name = name.removesuffix(suffix)
        if name != family:
            family = name
            lines += [f"# HELP {name} {name}.", f"# TYPE {name} {sample.metric_type}"]
        pairs = ",".join(f'{key}="{value}"' for key, value in json.loads(sample.labels).items())
        lines.append(f"{sample.metric}{{{pairs}}} {sample.value!r}")
    return "\n".join(lines) + "\n"


def write_collector_db(
    path: Path,
    sessions: Sequence[CollectorSession],
    *,
    model: str,
    model_name: str | None = None,
    interval_s: float = 1.0,
    max_model_len: int = 200_000,
    config: Mapping[str, str] | None = None,
) -> None:
    """Write `sessions` as the collector would have; an existing file is replaced only when all is written.

    `model` is the series' slug (session names), `model_name` the served name in the labels.
    """
    try:
        import duckdb
    except ImportError as error:
        raise InputError(
            "writing a collector's database needs the package duckdb", where=str(path), remedy=INSTALL
        ) from error
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    connection = duckdb.connect(str(temporary))
    try:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(SCHEMA)
        scrape_id = 0
        for number, session in enumerate(sessions):
            scrape_id = _write_session(
                connection,
                session,
                number,
                scrape_id,
                model,
                model_name or model,
                interval_s,
                max_model_len,
                config,
            )
        connection.execute("CHECKPOINT")
    except BaseException:
        connection.close()
        temporary.unlink(missing_ok=True)
        raise
    connection.close()
    temporary.replace(path)


def _write_session(
    connection: object,
    session: CollectorSession,
    number: int,
    scrape_id: int,
    model: str,
    model_name: str,
    interval_s: float,
    max_model_len: int,
    config: Mapping[str, str] | None,
) -> int:
    import pandas as pd

    name = session.name or f"{model}_c{session.concurrency}"
    # Keyed by place and name, so that the same sweep gives the same ids.
    session_id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"replicast/{number}/{name}"))
    start = session.scrapes[0].at_s if session.scrapes else 0.0
    stop = session.scrapes[-1].at_s + session.scrapes[-1].duration_ms / 1000.0 if session.scrapes else 0.0
    execute = connection.execute  # type: ignore[attr-defined]
    execute(
        "INSERT INTO collector_sessions VALUES (?, ?, to_timestamp(?), to_timestamp(?), ?, ?, ?)",
        [
            session_id,
            name,
            start,
            stop if session.closed else None,
            "http://127.0.0.1:8000/metrics",
            interval_s,
            4242,
        ],
    )
    keys: dict[tuple[str, str, str], int] = {}
    ids: list[np.ndarray] = []
    codes: list[np.ndarray] = []
    values: list[np.ndarray] = []
    rows = []
    for sequence, scrape in enumerate(session.scrapes, start=1):
        scrape_id += 1
        samples = [
            sample
            for index, state in enumerate(scrape.engines)
            for sample in samples_of(
                state, model_name=model_name, engine=str(index), max_model_len=max_model_len, config=config
            )
        ]
        status = "error" if scrape.error or not scrape.engines else "ok"
        rows.append(
            (scrape_id, session_id, sequence, scrape.at_s, scrape.duration_ms, status,
             scrape.error or ("" if status == "ok" else "scrape failed"), len(samples))
        )  # fmt: skip
        ids.append(np.full(len(samples), scrape_id, dtype=np.int64))
        codes.append(
            np.array(
                [keys.setdefault((s.metric, s.metric_type, s.labels), len(keys)) for s in samples],
                dtype=np.int64,
            )
        )
        values.append(np.array([sample.value for sample in samples], dtype=np.float64))
    if not rows:
        return scrape_id
    scrapes = pd.DataFrame(
        rows, columns=["id", "session", "sequence", "at_s", "duration", "status", "error", "samples"]
    )
    connection.register("scrapes_frame", scrapes)  # type: ignore[attr-defined]
    execute(
        "INSERT INTO metric_scrapes SELECT id, session, sequence, to_timestamp(at_s), duration, status, "
        "error, samples FROM scrapes_frame ORDER BY id"
    )
    if keys:
        key_frame = pd.DataFrame(
            [(code, *key) for key, code in keys.items()], columns=["code", "metric", "kind", "labels"]
        )
        frame = pd.DataFrame(
            {"id": np.concatenate(ids), "code": np.concatenate(codes), "value": np.concatenate(values)}
        )
        connection.register("key_frame", key_frame)  # type: ignore[attr-defined]
        connection.register("sample_frame", frame)  # type: ignore[attr-defined]
        execute(
            "INSERT INTO metric_samples SELECT id, metric, kind, labels, value FROM sample_frame "
            "JOIN key_frame USING (code) ORDER BY id, code"
        )
    return scrape_id


def _labels(labels: Mapping[str, str]) -> str:
    return _label_text(tuple(labels.items()))


@lru_cache(maxsize=4096)  # the same few hundred label sets come back at every scrape
def _label_text(items: tuple[tuple[str, str], ...]) -> str:
    return json.dumps(dict(items), sort_keys=True, separators=(",", ":"))


def _histogram_samples(
    name: str, state: HistogramState, base: Mapping[str, str], max_model_len: int
) -> list[Sample]:
    edges = edges_of(name, max_model_len)
    if len(state.counts) != len(edges) + 1:
        raise ValueError(f"{name} has {len(edges) + 1} buckets, not {len(state.counts)}")
    samples: list[Sample] = []
    cumulative = 0.0
    for edge, count in zip((*edges, None), state.counts, strict=True):
        cumulative += count
        le = "+Inf" if edge is None else repr(float(edge))
        samples.append(Sample(f"vllm:{name}_bucket", "histogram", _labels({**base, "le": le}), cumulative))
    samples.append(Sample(f"vllm:{name}_count", "histogram", _labels(base), cumulative))
    samples.append(Sample(f"vllm:{name}_sum", "histogram", _labels(base), float(state.sum)))
    return samples
