"""The lines of a recording that do not depend on what happened."""

from __future__ import annotations

from replicast.sim.kv_groups import KVGroup, hash_block_size, scheduler_block_size

from .scenario import Json, RequestSpec, Scenario


def header(scenario: Scenario) -> Json:
    """The first line."""
    config = scenario.config
    groups = config.kv_groups or (KVGroup("full", config.block_size),)
    return {
        "kind": "header",
        "name": scenario.name,
        "about": scenario.about,
        "vllm": config.rules,
        "scheduler_block_size": scheduler_block_size(groups),
        "hash_block_size": hash_block_size(groups, config.enable_prefix_caching),
        "retention_interval": None,
        "scheduler_class": "AsyncScheduler" if config.async_scheduling else "Scheduler",
        "v2_model_runner": config.rules == "0.33.0",
        "config": scenario.config_lines,
        "usable_blocks": config.num_usable_blocks,
    }


def request_line(spec: RequestSpec, num_prompt_tokens: int, step: int) -> Json:
    """The line of a request that has just arrived, to be filled in."""
    return {
        "kind": "request",
        "id": spec.id,
        "prompt": num_prompt_tokens,
        "output": spec.output_len,
        "arrived": step,
        "first_sched": None,
        "first_token": None,
        "finished": None,
        "reason": None,
        "hit": None,
        "preemptions": 0,
        "preempted_at": [],
        "resumed_at": [],
        "resumed_hit": [],
    }
