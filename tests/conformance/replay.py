"""Replay a recorded workload and print the steps, or check them against vLLM's own.

python tests/conformance/replay.py SCENARIO.json --vllm 0.33.0
python tests/conformance/replay.py SCENARIO.json --vllm 0.33.0 --check STEPS.jsonl.gz

Exit code: 0 done or same, 1 different, 2 unusable input.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from replicast.sim.errors import InputError
from stepreplay.adapters import ENGINES
from stepreplay.compare import first_difference, load_recording
from stepreplay.driver import Driver
from stepreplay.scenario import EXTRA_MODELLED, load_scenario


def main(argv: list[str] | None = None) -> int:
    """The exit code."""
    args = _parser().parse_args(argv)
    try:
        scenario = load_scenario(args.scenario, args.vllm)
        recorded = load_recording(args.check) if args.check else None
        if recorded and recorded[0].get("vllm") != args.vllm:
            raise InputError(
                f"was recorded with vLLM {recorded[0].get('vllm')}, not {args.vllm}",
                where=str(args.check),
                remedy=f"say --vllm {recorded[0].get('vllm')}",
            )
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    lines = Driver(scenario, ENGINES[args.engine]).run()
    if recorded is None:
        for line in lines:
            print(json.dumps(line, separators=(",", ":")))
        return 0
    difference = first_difference(lines, recorded)
    print(difference or "same")
    return 1 if difference else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Replay a recorded workload; print its steps or check them against vLLM's own."
    )
    parser.add_argument("scenario", type=Path, metavar="SCENARIO.json")
    parser.add_argument("--vllm", choices=sorted(EXTRA_MODELLED), required=True, help="whose rules to follow")
    parser.add_argument(
        "--check", type=Path, metavar="STEPS.jsonl[.gz]", help="recorded steps to compare with"
    )
    parser.add_argument("--engine", choices=sorted(ENGINES), default="stepwise", help="default: stepwise")
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # `replay.py … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
