"""Run `check` on clean random sweeps and count alarms: python tests/false_alarms.py [--sweeps 200] [--first
0].

Each sweep is judged twice: with all counters, as a collector's database gives them, and as a summary.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from replicast.calibration.check import check_sweep
from sweep_bed import make_sweep, random_bed, summary_of


def main() -> int:
    """Print each alarm and the share of sweeps with one; exit 1 from 2 % on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    alarms: Counter[str] = Counter()
    for seed in range(args.first, args.first + args.sweeps):
        sweep = make_sweep(random_bed(seed), seed)
        for kind, source in (("counters", sweep), ("summary", summary_of(sweep))):
            result = check_sweep(source)
            if result.verdict == "usable":
                continue
            alarms[kind] += 1
            for finding in (*result.of("fail"), *result.of("warn")):
                print(f"seed {seed} {kind}: {finding.severity} law {finding.law}: {finding.text}")
    for kind in ("counters", "summary"):
        print(f"{kind}: {alarms[kind]} of {args.sweeps} clean sweeps raised an alarm")
    return int(max(alarms.values(), default=0) >= 0.02 * args.sweeps)


if __name__ == "__main__":
    raise SystemExit(main())
