"""What docs/accuracy.md says around its tables."""

HEAD = """# How accurate the predictions are

Made by `python -m replicast.calibration.accuracy`; do not edit. `docs/calibration.md` says how it is done.

Everything here is held out: the level, stage or run that is predicted had no part in the fit, only in the
choice of a few constants that are named below, and weakly in how prompts are taken to grow.

- *Load given*: concurrency, window and deadline, prompt and output tokens a request, requests alive at a
  time (sessions times the agents that each runs) and tool time are known, as a plan knows them of its
  trace. A summary's prompts are read off its KV gauge, its outputs off the ratio of its two token counts,
  requests alive off its gauges; its latencies are not used. KV usage is then that of a running request times
  running, so that its error is running's. Computed tokens a request, which these
  summaries do not count, are as the other levels have them (the collector's database and Prometheus count
  them: there they are given).
- *But for the requests alive*: these, too, as the other levels have them. With them given, running and
  waiting together are nearly told, and only their split is predicted.
- *Only the concurrency given*: all lengths are those of the fitted levels.

*A perfect model* knows server, load and the means of all lengths, and not the draw: its median error
follows from how much 16 simulated realisations of each level vary, lengths being equal where they are given.
A measured level is one realisation.

A prediction holds a fixed share of the interpolation beside it, per metric (`SHARES` in
`calibration/rows.py`); these shares, how far residuals carry over to neighbours (`NOISE` in
`calibration/predict.py`), the priors of how prompts grow (`calibration/growth.py`) and the size of what
stays unexplained were chosen on the sweeps below. What shares chosen on the other sweeps
give is shown. What an exchange over PCIe and small experts cost by physics was read off single tasks on
servers of this collection, none of its levels.
"""

ONE_BY_ONE = """\
What a lone request cannot show was read off one run and holds for the other, too. Cost of a further row in
a step (synchronous scheduling): the later stages of codellama-34b choose 45 us, those of llama-2-7b 35 us
(40 is used); with the other's value E2E errs by 0.8 and 0.4 % (overload 1.5 and 0.2 %), without any by 1.1
and 0.6 % (4.8 and 1.0 %). Time outside the engine is 0.8 ms (llama) and 1.2 ms (codellama) shorter while it
runs.

What is left of TTFT at constant rates is where in the running step a request arrives: uniform over 7 ms of
llama-2-7b (TTFT 45 ms), over 26 ms of codellama-34b (430 ms). With each request's measured prefill time in
place of the predicted one, llama-2-7b would still be 5.7 % off, half its requests by 3.9 %.

The first step of a burst decides all later ones: one request in it or two. Two openings of bursts were seen
where the second request, 0.4 and 0.5 ms later, was taken along, and one where it was not (0.3 ms, a short
first prompt). The rule that agrees with all three is a coin toss near its edge; on the wrong side of it
llama-2-7b's overload TTFT would be 14 % off. Its steps of 4,096 tokens also take 87 ms at first and 95 to
101 ms after 0.1 s of full load, which no lone prompt of 15 to 80 ms shows: hence -6 %."""

STEADY = """\
All requests of such a run are alike, so what a context token and what a row costs are one fact, and a run
with longer outputs (reasoning) or a stage at twice the rate rests on the prior of how they split. Near
saturation errors multiply: llama-3.1-8b's reasoning run holds 91 requests, and 13 % in the cost of one make
20 % in time per token (with the wider priors of physics it was 35 % off). Mixtures of experts read all of
them from some ten rows (8 experts) or fifty (16) on; a straight line through fewer rows overshoots beyond
(llama-4-scout, +10 % at 66 rows from 11 and 34). From a stage to one at twice the rate TTFT grows by 2.8 to
3.8 times what a step grows by, in the engine by 2.5: the rest, perhaps a busier API server, is not modelled
(codellama-34b and llama-2-70b, -5 %)."""

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
  73 % in prompt rate. A single level is one realisation: simulated again with other sessions of the same
  mean lengths eight levels in ten have a standard deviation of 1 to 13 % in time per token, 4 to 19 % in TTFT
  and 2 to 26 % in queue time; with lengths as they come of 3 to 22, 9 to 33 and 2 to 36 %. No model predicts
  the draw.
- **Computed tokens.** A performance summary has no count of cached tokens, so the prefill work of a level
  is inferred from its neighbours. Between levels of one sweep it differs by a factor of two (minicpm5-2b:
  7.4 s of prefill a request at one session, 2.9 s at two). Tasks of one server and harness differ by a third
  (28 task windows), and a level of few sessions is few tasks: with that, even a perfect model misses TTFT by
  7 %. Were they counted, TTFT with KV free would be 8 % off in place of 13, rates 4 in place of 6, TPOT 6 in
  place of 7 (the table above: as if counted). The collector's database and Prometheus count them.
- **The figures themselves.** Fits that differ in nothing that matters (a lower bound, the draws) moved these
  medians by up to a point and a half: 110 levels do not resolve more. What could be wrong with the fit was
  tried on these sweeps, when means alone were fitted: twice the realisations (12 sweeps), residuals weighted
  by their covariance, a shared prefix of 30,000 tokens in place of 12,000 (what KV gauges alone say; queues
  contradict it), tasks that differ by .45 in place of .3, the mean of four such fits. Mean |log error| of
  rates and TPOT, then 11 and 13 %, moved by at most .7 points either way. What did move them, to 8.8 and
  12 %, is how it weighs: what chance and lengths do to each level by itself, time in the front end counted
  once, and other levels that settle where one is left out.
- **Prefill with only the concurrency given** is no better than interpolated: computed tokens are guessed from
  the same neighbours (mean error 21 % of both; medians 12.6 and 12.4 %). From low levels alone prompt
  rates and queues are not, either.
- **Few requests.** Levels with 3 to 25 requests (qwen3.8-27b on one L40S, gemma-4-31b on four) are mostly
  chance; they are in the tables all the same.
- **glm-5.3**: time per token is 26 % off; how many drafts its speculative decoding has accepted is not
  told.
- **gemma-4-31b on L40S** is predicted badly (time per token and rates 17 % off, with its windows simulated).
- **From one GPU to another.** Physics alone scales a fit no better than its priors: 13 to 78 % in output
  rate. From one arm of a server to another (128 seats and up to 100 sessions, fitted up to 30) the fit
  carries over to within 24 % in output rate, and 85 of 100 sessions run at most (87 measured).
- **KV peak above .95.** Sessions evict each other, and who loses what depends on the order of arrival and on
  how contexts grow, which no summary tells but by its means. Eviction is simulated: with fuller and emptier
  levels fitted, these are predicted as well as free ones. From low levels alone the edge is missed where all
  contexts together are about as large as the pool: TTFT of qwen3-coder-30b on H200 and qwen3.8-27b on L40S
  comes out 60 to 88 % too long, that of qwen3-coder-30b on L40S, of minicpm5-2b and of kimi-k2.7 at 7
  sessions 27 to 41 % too short; of 23 such levels 17 are within 25 %. Where lengths are guessed, too, queues
  come out 1.4 times as long as they were, and the intervals of TTFT and queue are too short (they hold 82
  and 79 %).
- **The median TTFT.** Quantiles of agentic sweeps lie further below their means than log-normal requests
  allow: of 104 published medians of TTFT 49 lie in a lower bucket than simulated, 8 in a higher one. The fit
  keeps the means.
"""
