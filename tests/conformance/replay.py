"""Replay a recorded workload and print the steps, or check them against vLLM's own.

python tests/conformance/replay.py SCENARIO.json --vllm 0.33.0
python tests/conformance/replay.py SCENARIO.json --vllm 0.33.0 --check STEPS.jsonl.gz

The product's engine makes the steps, `--engine reference` the one that walks step by step and block by block.
Exit code: 0 done or same, 1 different, 2 unusable input.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import get_args

from replicast.sim.config import Rules
from replicast.sim.defaults import rules_of
from replicast.sim.errors import InputError
from stepreplay.adapters import ENGINES
from stepreplay.compare import first_difference, load_recording
from stepreplay.driver import Driver
from stepreplay.scenario import Json, Scenario, load_scenario


def main(argv: list[str] | None = None) -> int:
    """The exit code."""
    args = _parser().parse_args(argv)
    try:
        rules = _rules(args.vllm)
        scenario = load_scenario(args.scenario, rules)
        recorded = load_recording(args.check) if args.check else None
        if recorded and recorded[0].get("vllm") != rules:
            raise InputError(
                f"was recorded with vLLM {recorded[0].get('vllm')}, not {rules}",
                where=str(args.check),
                remedy=f"say --vllm {recorded[0].get('vllm')}",
            )
        lines = _lines(scenario, args.scenario, args.engine)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if recorded is None:
        for line in lines:
            print(json.dumps(line, separators=(",", ":")))
        return 0
    difference = first_difference(lines, recorded)
    print(difference or "same")
    return 1 if difference else 0


def _lines(scenario: Scenario, path: Path, engine: str) -> list[Json]:
    try:
        return Driver(scenario, ENGINES[engine]).run()
    except InputError as error:
        raise InputError(error.what, where=str(path), remedy=error.remedy) from None


def _rules(version: str) -> Rules:
    """`version`, if it is one of those whose steps were recorded."""
    rules, is_mapped = rules_of(version)
    if is_mapped:
        raise InputError(
            f"no steps of vLLM {version} were recorded",
            where="--vllm",
            remedy=f"say --vllm {rules}, whose rules it follows as far as is known",
        )
    return rules


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Replay a recorded workload; print its steps or check them against vLLM's own."
    )
    parser.add_argument("scenario", type=Path, metavar="SCENARIO.json")
    parser.add_argument(
        "--vllm",
        metavar="VERSION",
        required=True,
        help=f"whose rules to follow: {', '.join(get_args(Rules))}",
    )
    parser.add_argument(
        "--check", type=Path, metavar="STEPS.jsonl[.gz]", help="recorded steps to compare with"
    )
    parser.add_argument("--engine", choices=list(ENGINES), default="product", help="default: product")
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # `replay.py … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
