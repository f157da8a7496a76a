"""All rows of the benchmark table, each in a process of its own.

    python benchmarks/run.py                     (some minutes)
    python benchmarks/run.py --quick             (a slice of each; ratios hold, figures do not)
    python benchmarks/run.py --stream 10000000   (adds the long run that streams to disk)

Figures are requests that finished a second of CPU time; `README.md` explains each. Engine and fleet are
compiled first where that has not been done. What is missing for that, or the folder of real data, is named.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from replicast.sim.engine.compiled import build
from replicast.sim.errors import InputError

HERE = Path(__file__).resolve().parent
REAL = ("mooncake", "sessions", "mooncake-hybrid", "sessions-hybrid")
# What the reference engine can do.
SLICE = {"mooncake": 300, "sessions": 4, "mooncake-hybrid": 300, "sessions-hybrid": 4, "short": 1_000}
QUICK = {"mooncake": 2_000, "sessions": 60, "mooncake-hybrid": 2_000, "sessions-hybrid": 60}
PAIRS = 2
COMMANDS = {
    "mooncake": [
        "--router", "round-robin", "--block-size", "16", "--num-gpu-blocks", "40001",
        "--max-num-batched-tokens", "8192",
    ],
    "sessions": ["--sessions", "40", "--kv-groups", "full"],
    "sessions-hybrid": ["--sessions", "40"],
}  # fmt: skip
TRACES = {
    "mooncake": "traces/mooncake/conversation_trace.jsonl",
    "sessions": "traces/kv-cache-tester/sessions.canonical.jsonl.gz",
    "sessions-hybrid": "traces/kv-cache-tester/sessions.canonical.jsonl.gz",
}


def row(name: str, engine: str, shared: Path, *more: str) -> dict[str, Any]:
    """One row by `row.py`."""
    command = [sys.executable, str(HERE / "row.py"), name, "--engine", engine, "--shared", str(shared), *more]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def whole_command(name: str, engine: str, shared: Path) -> dict[str, Any]:
    """`replicast replay` from the start of the process to its end, with what the system says of it."""
    replay = ["replay", str(shared / TRACES[name]), "--profile", "qwen3.6-35b-h200", "--replicas", "4"]
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "replicast.cli", *replay, *COMMANDS[name], "--json", "--quiet"],
            stdout=out,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "REPLICAST_COMPILED": "1" if engine == "compiled" else "0"},
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"replicast replay of {name} failed")
        out.seek(0)
        timing = json.load(out)["timing"]
    cpu_s = usage.ru_utime + usage.ru_stime
    return {**timing, "cpu_s": cpu_s, "peak_mb": usage.ru_maxrss / 1024}


def _limit(name: str, quick: bool) -> tuple[str, ...]:
    return ("--limit", str(QUICK.get(name, 2_560))) if quick else ()


def fast_rows(engines: list[str], names: list[str], shared: Path, quick: bool) -> dict[str, Any]:
    """CPU time a request of every row and engine; peak memory and shares of time."""
    found: dict[str, Any] = {}
    print("| row | engine | finished | us a request | requests/s | peak MB | share of time |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        limit = _limit(name, quick)
        repeat = ("--repeat", "1" if quick else "3")
        for engine in engines:
            answer = found[name, engine] = row(name, engine, shared, *limit, *repeat)
            share = ""
            if engine == "pure":
                shares = row(name, engine, shared, *limit, "--profile")["share"]
                share = ", ".join(f"{part} {100 * of:.0f} %" for part, of in shares.items() if of >= 0.01)
            each = answer["us_per_request"]
            print(
                f"| {name} | {engine} | {answer['finished']:,} | {each:.1f} | {1e6 / each:,.0f} | "
                f"{answer['peak_mb']:.0f} | {share} |",
                flush=True,
            )
    return found


def ratios(found: dict[str, Any], engines: list[str], names: list[str], shared: Path, quick: bool) -> None:
    """What noise cannot move: times of one run over times of another beside it."""
    print("\n| ratio | engine | found | to reach |\n|---|---|---|---|")
    pairs = [
        ("prompts 10x longer", "prompts-10x", "short", "<= 1.3"),
        ("outputs 10x longer", "outputs-10x", "short", "<= 1.3"),
        ("replicas 1 -> 64, session affinity", "replicas-64", "replicas-1", "<= 1.5"),
        ("replicas 1 -> 64, prefix aware", "prefix-aware-64", "prefix-aware-1", ""),
    ]
    if "mooncake" in names:
        pairs += [
            (f"hybrid model, {name}", f"{name}-hybrid", name, "<= 2.0") for name in ("mooncake", "sessions")
        ]
    for engine in engines:
        for what, name, base, aim in pairs:
            times: dict[str, list[float]] = {
                side: [found[side, engine]["us_per_request"]] for side in (name, base)
            }
            for side in (name, base) * PAIRS:  # by turns, so that both meet the same neighbours
                limit = _limit(side, quick)
                times[side].append(row(side, engine, shared, *limit, "--repeat", "2")["us_per_request"])
            ratio = min(times[name]) / min(times[base])
            print(f"| {what}: time a request | {engine} | {ratio:.2f} | {aim} |", flush=True)
    for name in [name for name in SLICE if name in names]:
        part = ("--limit", str(SLICE[name]))
        reference = row(name, "reference", shared, *part)
        for engine in engines:
            fast = row(name, engine, shared, *part, "--repeat", "5")
            assert fast["last_finish_s"] == reference["last_finish_s"], "engines differ"
            ratio = reference["us_per_request"] / fast["us_per_request"]
            print(
                f"| {name}, slice: times as fast as the reference engine | {engine} | {ratio:.0f} | |",
                flush=True,
            )


def commands(engines: list[str], shared: Path) -> None:
    """Whole commands, as the targets count them: wall time, so on a quiet machine only."""
    print("\n| command | engine | import s | load s | simulate s | wall s | CPU s | peak MB | requests/s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in COMMANDS:
        for engine in engines:
            t = whole_command(name, engine, shared)
            base = t["simulate_s"] if name == "mooncake" else t["wall_s"]
            print(
                f"| {name} | {engine} | {t['import_s']:.2f} | {t['load_s']:.2f} | {t['simulate_s']:.2f} | "
                f"{t['wall_s']:.2f} | {t['cpu_s']:.2f} | {t['peak_mb']:.0f} | "
                f"{t['simulated_requests'] / base:,.0f} |",
                flush=True,
            )


def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, default=HERE.parents[1] / "shared", help="folder of real data")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--stream", type=int, default=0, metavar="REQUESTS")
    args = parser.parse_args()
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True, check=False
    ).stdout.strip()
    load = os.getloadavg()[0]
    print(f"commit {commit or 'unknown'}, Python {sys.version.split()[0]}, load {load:.1f}\n")
    try:
        build()
        engines = ["pure", "compiled"]
    except InputError as error:
        engines = ["pure"]
        print(f"{error}\n")
    real = REAL if args.shared.is_dir() else ()
    if not real:
        print(f"no real data at {args.shared}\n")
    names = [*real, "short", "prompts-10x", "outputs-10x"]
    names += ["replicas-1", "replicas-64", "prefix-aware-1", "prefix-aware-64"]
    found = fast_rows(engines, names, args.shared, args.quick)
    ratios(found, engines, names, args.shared, args.quick)
    if real:
        commands(engines, args.shared)
    if args.stream:
        print(flush=True)
        subprocess.run(
            [sys.executable, str(HERE / "streaming.py"), "--requests", str(args.stream)], check=True
        )


if __name__ == "__main__":
    main()
