"""What docs/accuracy.md says around its tables."""

HEAD = """# How accurate the predictions are

Made by `python -m replicast.calibration.accuracy`; do not edit. `docs/calibration.md` says how it is done.

Everything here is held out: the level, stage or run that is predicted had no part in the fit. *Load given*
means that concurrency, window, requests alive at a time (sessions times the agents that each runs) and the
lengths of requests are known, as a plan knows them of its trace; rates, latencies, running, waiting and KV
usage are outcomes. *Only the concurrency given* takes lengths from the fitted levels, too.

A prediction holds a fixed share of the interpolation beside it, per metric (`SHARES` in
`calibration/validate.py`); these shares, and the size of what stays unexplained, were chosen on the sweeps
below.
"""

OTHERS = """## Published errors of others

| who, on what | TTFT mean | E2E mean | time per token |
|---|---|---|---|
| best simulator of record, 38 steady runs (mean / median) | 19.5 / 18.4 % | 9.1 / 6.8 % | 9.8 / 6.5 % |
| the same, uncached prefill of the H100 runs above | 39 to 76 % too fast | | |
| trained and hand-made estimators, sim-to-real comparison (median over experiments) | 12 to 14 % | | |
| uncalibrated analytic estimators, same comparison | 280 to 650 % | | |

The 13 runs that replicast predicts above are of the same collection (38 runs and 13 more), of which half
is kept aside.
None of the others predicts agentic sweeps, whose prompts are a hundred times longer.
"""

LIMITS = """## What is out of reach, and why

- **Replication noise.** Two sweeps of the same server and harness (kimi-k2.7) differ by 2 to 58 % in output
  rate and 3 to 64 % in prompt rate; one level of qwen3.8 measured twice differs by 13 % in output rate and
  73 % in prompt rate. A single level is one realisation: simulated twice with other sessions it varies by
  0 to 17 % in time per token, 5 to 39 % in TTFT and 16 to 99 % in queue time. No model predicts the draw.
- **Computed tokens.** A performance summary has no count of cached tokens, so the prefill work of a level
  is inferred from its neighbours. Between levels of one sweep it differs by a factor of two (minicpm5-2b:
  7.4 s of prefill a request at one session, 2.9 s at two). With counted tokens (the collector's database,
  Prometheus) this part is given.
- **The figures themselves.** Two runs of this page with slightly other priors moved these medians by one
  or two points (TPOT 7.5 and 8.9, prompt rate 8.0 and 8.2 %): 110 levels do not resolve more.
- **Few requests.** Levels with 3 to 25 requests (qwen3.8-27b on one L40S, gemma-4-31b on four) are mostly
  chance; they are in the tables all the same.
- **gemma-4-31b on L40S** is predicted badly (time per token about a third off): its sliding-window layers
  are taken as one group of full attention, and its requests wait longer and prefill faster than the model has
  it.
- **From one GPU to another.** Physics alone scales a fit no better than its priors: 20 to 115 % in output
  rate. From one arm of a server to another (other seats) the fit carries over: about 10 %. The ceiling of
  running requests there, 87, is predicted 14 % too high: pages of the hybrid model waste some of the pool.
- **KV peak above .95.** Sessions evict each other, and who loses what depends on the order of arrival.
  Eviction is simulated, and errors are about twice those of free levels.
"""
