"""Many random cases through both engines: `python tests/fuzz_engines.py --cases 20000 --seed 1`.

Prints how many were compared and how often the fast engine jumped; exits 1 at the first difference
(after `--keep-going` at the end), naming the seed that makes it again.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from engine_cases import (
    EndlessError,
    draw_case,
    hybrid_free_queue,
    macro_free_queue,
    observe,
    stepwise_free_queue,
)
from hybrid_cases import hybrid_case
from reference.engine import StepwiseEngine
from replicast.sim.engine.compiled import compiled_module
from replicast.sim.engine.hybrid.engine import HybridEngine
from replicast.sim.engine.macro import MacroEngine


def difference(
    seed: int, features: str, counts: Counter[str], engine: type[MacroEngine] = MacroEngine
) -> str | None:
    """What differs in the case of `seed`, None if nothing does."""
    is_hybrid = "hybrid" in features
    case = hybrid_case(seed) if is_hybrid else draw_case(seed, features)
    try:
        slow = observe(StepwiseEngine(case.config, case.step_time), case, stepwise_free_queue)
    except EndlessError:
        counts["endless"] += 1
        return None
    fast_engine = engine(case.config, case.step_time)
    try:
        fast = observe(fast_engine, case, hybrid_free_queue if is_hybrid else macro_free_queue)
    except Exception:
        return traceback.format_exc()
    counts["compared"] += 1
    counts["steps"] += slow["stats"].num_steps
    counts["preemptions"] += slow["stats"].num_preemptions
    counts["jumps"] += fast_engine.num_jumps
    counts["jumped_steps"] += fast_engine.num_jumped_steps
    counts["mixed_steps"] += fast_engine.num_mixed_steps
    counts["single_steps"] += fast_engine.num_single_steps
    for key, value in slow.items():
        if fast[key] != value:
            return f"{key}:\n  slow {value}\n  fast {fast[key]}"
    return None


def main() -> int:
    """Run the cases asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--features", default="", help="such as: tight, plain async, hybrid")
    parser.add_argument("--keep-going", action="store_true")
    parser.add_argument("--compiled", action="store_true", help="the compiled engine")
    args = parser.parse_args()
    engine = HybridEngine if "hybrid" in args.features else MacroEngine
    if args.compiled:
        module = compiled_module(engine.__module__.removeprefix("replicast.sim."))
        if module is None:
            sys.exit("build it first: make fast")
        engine = vars(module)[engine.__name__]
    counts: Counter[str] = Counter()
    for seed in range(args.seed, args.seed + args.cases):
        found = difference(seed, args.features, counts, engine)
        if found is not None:
            counts["different"] += 1
            if not args.keep_going:
                print(f"seed {seed} {args.features!r}: {found}")
                return 1
            print(f"seed {seed}: {found.splitlines()[-1][:150]}")
    print(dict(counts))
    return 1 if counts["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
