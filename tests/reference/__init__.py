"""The reference engine: vLLM's rules step by step, request by request and block by block, for every model.

Slow and readable; nothing in the product imports it. What the product jumps over is compared with it in
every tick, hit, preemption and eviction (`engine_cases.py`), and both with vLLM's own recorded steps
(`conformance/`). It shares with the product what a fleet sees (`Engine`, `Request`, step times) and one
rule, where chunks of hybrid models end (`sim/engine/hybrid/chunks.py`); its scheduler, its cache and its
pool are its own, so that a fault in the product's is not also here.
"""
