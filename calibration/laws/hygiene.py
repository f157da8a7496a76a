"""Law 7: counters only rise, scrapes follow each other, and a level is one run of one server.

Limits: a hole in a window can move a rate by its share of the window; it matters when that exceeds the
sampling noise of the rate itself, 1/sqrt(requests). Windows of one harness are equal: one twice as long is
two runs merged by name, one much shorter was cut.

Versions: 0.25 counts prefix queries at every look-up, so a request that waits for blocks counts again in
every step, and hits/queries is below the cached share of prompt tokens (fixed by vLLM PR 48860).
"""

from __future__ import annotations

from statistics import median

from replicast.calibration.laws.figures import mean_of, rate_noise, scrape_interval
from replicast.calibration.laws.findings import Answer, Case, Finding, Row, label, listed, show
from replicast.calibration.laws.replication import differences
from replicast.calibration.sweep import SweepLevel

LAW = 7
CHECK = "counters"
REPEAT = "Repeat the level."
# Beyond these nothing was measured: four months, a rate of all GPUs of a country, a load of nobody.
LONGEST_S, LARGEST_RATE, MOST_REQUESTS = 1e7, 1e9, 1e7
BEFORE = 2.0  # windows
TIMES = ("ttft", "queue", "prefill", "decode", "e2e", "tpot", "itl")
RATES = ("prompt_tokens_per_s", "output_tokens_per_s", "requests_per_s")
GAUGES = ("running", "waiting")
# What readers note and no figure of a level shows.
MIXED = (
    " changed within the file",
    "their counters share",
    "never closed",
    "contradict each other",
    "is above its peak",
)


def hygiene(case: Case) -> Answer:
    """Findings on every level, and on the file."""
    findings: list[Finding] = []
    windows = [level.window_s / level.sessions for level in case.levels if level.window_s]
    usual = median(windows) if len(windows) > 2 else None
    for at, level in enumerate(case.levels):
        found = (
            _dead(level, at),
            _absurd(level, at),
            _reset(level, at),
            _merged(level, at),
            _length(level, usual, at),
            _holes(level, at),
            _failed(level, at),
            _queries(level, at),
        )
        findings += [f for f in found if f is not None]
        findings += [
            Finding(LAW, CHECK, "warn", note, remedy="Check the source.", level=at)
            for note in level.notes
            if any(text in note for text in MIXED)
        ]
    findings += _repeated(case)
    findings += [
        Finding(LAW, CHECK, "warn", note, remedy="Give one server's levels at a time.")
        for note in case.sweep.notes
        if any(text in note for text in MIXED)
    ]
    if case.sweep.dropped:
        text = ", ".join(f"{n} {what}" for what, n in case.sweep.dropped)
        findings.append(Finding(LAW, CHECK, "note", f"left out by the reader: {text}"))
    title = "scrapes" if any(level.scrapes for level in case.levels) else "window, s"
    cells = tuple(_cell(level) for level in case.levels)
    return Answer(tuple(findings), (Row(CHECK, title, cells, "one run of one server, scraped throughout"),))


def _cell(level: SweepLevel) -> str:
    if level.scrapes is not None:
        return str(level.scrapes)
    return f"{level.window_s:.0f}" if level.window_s else "-"


def _dead(level: SweepLevel, at: int) -> Finding | None:
    if level.unusable is None:
        return None
    prompts = level.prompt_tokens or 0.0
    why = (
        "sessions ran and nothing was generated: chat template, parser or model is broken"
        if prompts
        else level.unusable
    )
    return Finding(
        LAW,
        CHECK,
        "fail",
        why,
        (("generated_tokens", level.generated_tokens), ("prompt_tokens", level.prompt_tokens)),
        "Send one request by hand and look at the reply, then repeat the level.",
        at,
    )


def _absurd(level: SweepLevel, at: int) -> Finding | None:
    seconds = {f"{name}_mean_s": mean_of(getattr(level, name)) for name in TIMES}
    rates = {name: getattr(level, name) for name in RATES}
    requests = {f"{name}_mean": gauge.mean for name in GAUGES if (gauge := getattr(level, name)) is not None}
    # A request may have begun before the window, but not all of them by as much again.
    longest = min(LONGEST_S, BEFORE * level.window_s) if level.window_s else LONGEST_S
    found = [
        (name, value)
        for figures, largest in ((seconds, longest), (rates, LARGEST_RATE), (requests, MOST_REQUESTS))
        for name, value in figures.items()
        if value is not None and value > largest
    ]
    if not found:
        return None
    told = ", ".join(f"{name} {show(value)}" for name, value in found)
    return Finding(
        LAW, CHECK, "fail", f"no measurement: {told}", tuple(found), "Check the source and its units.", at
    )


def _reset(level: SweepLevel, at: int) -> Finding | None:
    if not level.resets:
        return None
    when = ", ".join(f"{t:.0f} s" for t in level.reset_times_s)
    return Finding(
        LAW,
        CHECK,
        "fail",
        f"counters fell {level.resets} time(s){f' (at {when})' if when else ''}: the server restarted "
        "inside the level",
        (
            ("resets", level.resets),
            ("first_reset_s", level.reset_times_s[0] if level.reset_times_s else None),
        ),
        "Find why it restarted (memory?), then repeat the level.",
        at,
    )


def _merged(level: SweepLevel, at: int) -> Finding | None:
    if level.sessions < 2:
        return None
    parts = level.repeats
    differing = (
        differences(parts[0], parts[1])
        if len(parts) == 2
        else [d for p in parts[1:] for d in differences(parts[0], p)]
    )
    apart = [d for d in differing if d.apart]
    evidence = (("sessions", level.sessions), *((f"{d.name}_ratio", d.ratio) for d in apart))
    if apart:
        return Finding(
            LAW,
            CHECK,
            "fail",
            f"{level.sessions} runs of this level are merged by name and differ in "
            f"{', '.join(d.name for d in apart)}",
            evidence,
            "Keep the run that belongs to this sweep, and delete the other.",
            at,
        )
    return Finding(
        LAW,
        CHECK,
        "warn",
        f"{level.sessions} runs of this level are merged by name; they agree within noise",
        evidence,
        "Name runs apart; law 11 compares them.",
        at,
    )


def _length(level: SweepLevel, usual: float | None, at: int) -> Finding | None:
    if not usual or not level.window_s or level.sessions > 1 or level.window_s == level.load_s:
        return None  # a window that ends with its requests has no usual length
    ratio = level.window_s / usual
    evidence = (("window_s", level.window_s), ("usual_window_s", usual))
    if ratio > 1.5:
        return Finding(
            LAW,
            CHECK,
            "fail",
            f"its window of {level.window_s:.0f} s holds {ratio:.1f} of the usual {usual:.0f} s: two runs "
            "merged by name, and the time between them",
            evidence,
            "Delete one of the two runs, or repeat the level under a name of its own.",
            at,
        )
    if abs(ratio - 1.0) > max(rate_noise(level), 0.02):
        what = "longer" if ratio > 1 else "shorter"
        fail = ratio < 0.5
        return Finding(
            LAW,
            CHECK,
            "fail" if fail else "warn",
            f"its window of {level.window_s:.0f} s is {what} than the usual {usual:.0f} s: "
            + (
                "the clock jumped or scrapes went on"
                if ratio > 1
                else "cut off; the server or the collector stopped"
            ),
            evidence,
            REPEAT,
            at,
        )
    return None


def _holes(level: SweepLevel, at: int) -> Finding | None:
    interval, window = scrape_interval(level), level.window_s
    if interval is None or not window or not level.scrapes:
        return None
    gap = max((level.largest_gap_s or 0.0) - interval, 0.0)
    failed = (level.scrapes_failed or 0) / (level.scrapes + (level.scrapes_failed or 0))
    share, noise = max(gap / window, failed), rate_noise(level)
    if share < max(5 * interval / window, 0.01):
        return None
    fail = share > noise
    return Finding(
        LAW,
        CHECK,
        "fail" if fail else "warn",
        f"{100 * share:.0f}% of the window is not seen (longest gap {show(gap)} s, "
        f"{level.scrapes_failed or 0} failed scrapes); its rates have a noise of {100 * noise:.0f}%",
        (
            ("unseen_share", share),
            ("largest_gap_s", level.largest_gap_s),
            ("scrapes_failed", level.scrapes_failed),
            ("rate_noise", noise),
        ),
        "Check the server's and the collector's clock and log, then repeat the level.",
        at,
    )


def _failed(level: SweepLevel, at: int) -> Finding | None:
    failed, finished = level.requests_failed, level.requests_finished
    aborted = sum(n for reason, n in level.finished_by_reason if reason in ("abort", "error"))
    bad, all_ = max(failed or 0.0, aborted), (finished or 0.0) + (failed or 0.0)
    if not all_ or bad / all_ <= max(0.1, rate_noise(level)):
        return None
    # More failed than finished: what is left are the survivors.
    return Finding(
        LAW,
        CHECK,
        "fail" if 2 * bad > all_ else "warn",
        f"{show(bad)} of {show(all_)} requests failed or were aborted: sessions are shorter than they "
        "should be, and cold starts more frequent",
        (("requests_failed", bad), ("requests", all_)),
        "Find why they fail; the load is not the intended one.",
        at,
    )


def _queries(level: SweepLevel, at: int) -> Finding | None:
    queries, hits, true = level.prefix_queries, level.prefix_hits, level.hit_rate
    if not queries or hits is None or true is None or not level.prompt_tokens:
        return None
    # Queries count at admission, prompts at the first token: requests between the two make a difference.
    if queries <= level.prompt_tokens * (1.0 + max(2 * rate_noise(level), 0.1)):
        return None
    return Finding(
        LAW,
        "hit rate",
        "note",
        f"prefix queries are {queries / level.prompt_tokens:.1f} times the prompt tokens: this version "
        f"counts waiting requests again in every step. Hits/queries says {100 * hits / queries:.0f}%, the "
        f"true rate is {100 * true:.0f}%",
        (
            ("queries_over_prompt", queries / level.prompt_tokens),
            ("hits_over_queries", hits / queries),
            ("hit_rate", true),
        ),
        "Use prompt_tokens_cached / prompt_tokens.",
        at,
    )


def _repeated(case: Case) -> list[Finding]:
    seen: dict[int, list[SweepLevel]] = {}
    for level in case.levels:
        if level.concurrency is not None:
            seen.setdefault(level.concurrency, []).append(level)
    return [
        Finding(
            LAW,
            CHECK,
            "warn",
            f"{label(levels[0])} is there {len(levels)} times ({listed(levels)})",
            (("times", len(levels)),),
            "Law 11 compares them; calibrate on one.",
        )
        for levels in seen.values()
        if len(levels) > 1
    ]
