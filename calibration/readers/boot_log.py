"""What is given: vLLM's boot log, an engine's config files, `key=value` -> `Given`.

Of a boot log the last boot counts (a log that restarts often holds many). "non-default args" give what
was asked for, later lines what was resolved: the later line wins. The pool: "GPU KV cache size: N
tokens" is blocks x block size for plain models only; for hybrid ones it is concurrency x
max_model_len, so blocks are computed from it only where no line says that the block size was raised.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from replicast.calibration.readers.text import number, parse_json, read_text, whole
from replicast.calibration.sweep import Given
from replicast.sim.defaults import rules_of
from replicast.sim.errors import InputError

BOOT_MARKS = ("vLLM API server version", "Initializing a V1 LLM engine", "GPU KV cache size:")
NEW_BOOT = re.compile(r"vLLM API server version|Initializing a V1 LLM engine")

INTEGERS = (
    "max_num_batched_tokens", "max_num_seqs", "max_model_len", "block_size", "num_gpu_blocks",
    "kv_pool_tokens", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
    "num_speculative_tokens", "gpus",
)  # fmt: skip
FLAGS = ("enable_prefix_caching", "enable_chunked_prefill", "async_scheduling")
NUMBERS = ("gpu_memory_utilization", "price_usd_per_hour")
DTYPES: Mapping[str, tuple[str, ...]] = {  # beginnings of what vLLM's flags take
    "dtype": ("auto", "half", "float", "bfloat16"),
    "kv_cache_dtype": ("auto", "float16", "bfloat16", "fp8", "int8", "nvfp4", "turboquant"),
}
FACTS = tuple(item.name for item in fields(Given) if item.name != "sources")
ALIASES: Mapping[str, str] = {
    "tp": "tensor_parallel_size",
    "kv_cache_tokens": "kv_pool_tokens",  # as profiles have it
    "tensor_parallelism": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "vllm": "vllm_version",
    "version": "vllm_version",
    "hardware": "gpu",
    "instance_type": "instance",
    "price": "price_usd_per_hour",
    "dollars_per_hour": "price_usd_per_hour",
    "model_id": "model",
    "kv_blocks_total_gpu": "num_gpu_blocks",
    "num_gpu_blocks_override": "num_gpu_blocks",
    "gpu_mem_util": "gpu_memory_utilization",
    "cache_dtype": "kv_cache_dtype",
    "precision": "quantization",
    "max_seq_len": "max_model_len",
    "chunked_prefill_enabled": "enable_chunked_prefill",
}


def is_boot_log(text: str) -> bool:
    """Whether a text holds vLLM's start-up lines."""
    return any(mark in text for mark in BOOT_MARKS)


def read_boot_log(path: Path) -> Given:
    """Facts of the last boot in a log."""
    text = read_text(path)
    if not is_boot_log(text):
        raise InputError(
            "no start-up line of vLLM in it",
            where=str(path),
            remedy="give the server's log from its start: it begins with 'vLLM API server version'",
        )
    facts: dict[str, Any] = {}
    seen = False
    for line in text.splitlines():
        if "vLLM API server version" in line:
            facts = {}  # a new boot: what an earlier one resolved no longer holds
        for read in _LINES:
            facts |= read(line)
        seen = seen or bool(facts)
    versions = re.findall(r"vLLM API server version v?(\S+)|V1 LLM engine \(v([^)]+)\)", _last_boot(text))
    named = sorted({a or b for a, b in versions})
    if len(named) > 1:
        raise InputError(
            f"one boot names several vLLM versions: {', '.join(named)}",
            where=str(path),
            remedy="give the log of one server",
        )
    if not seen:
        raise InputError("the log names no fact that is known here", where=str(path))
    return _given(facts, str(path), raised_block="_raised" in facts)


def _last_boot(text: str) -> str:
    return text[text.rfind("vLLM API server version") :] if "vLLM API server version" in text else text


def _version(line: str) -> dict[str, Any]:
    found = re.search(r"vLLM API server version v?([0-9][^\s,]*)|V1 LLM engine \(v([0-9][^)]*)\)", line)
    return {"vllm_version": found[1] or found[2]} if found else {}


def _arguments(line: str) -> dict[str, Any]:
    _, mark, rest = line.partition("non-default args: ")
    if not mark:
        return {}
    try:
        args = ast.literal_eval(rest.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {}
    if not isinstance(args, dict):
        return {}
    facts = {ALIASES.get(name, name): value for name, value in args.items() if value is not None}
    served = args.get("served_model_name")
    if served:
        facts["model"] = served[0] if isinstance(served, list) else served
    speculative = args.get("speculative_config")
    if isinstance(speculative, dict) and "num_speculative_tokens" in speculative:
        facts["num_speculative_tokens"] = speculative["num_speculative_tokens"]
    return {name: value for name, value in facts.items() if name in FACTS}


_ENGINE_WORDS: Mapping[str, str] = {
    "max_seq_len": "max_model_len",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "data_parallel_size": "data_parallel_size",
    "enable_prefix_caching": "enable_prefix_caching",
    "chunked_prefill_enabled": "enable_chunked_prefill",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "async_scheduling": "async_scheduling",
    "dtype": "dtype",
    "kv_cache_dtype": "kv_cache_dtype",
    "quantization": "quantization",
    "served_model_name": "model",
    "num_speculative_tokens": "num_speculative_tokens",
}


def _engine(line: str) -> dict[str, Any]:
    if "LLM engine (v" not in line:
        return {}
    facts: dict[str, Any] = {}
    for word, name in _ENGINE_WORDS.items():
        found = re.search(rf"\b{word}=([^,\s)]+)", line)
        if found and found[1] != "None":
            facts[name] = found[1].strip("'\"").removeprefix("torch.")
    return facts


def _resolved(line: str) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for pattern, name in (
        (r"max_num_batched_tokens[= ]+(\d+)", "max_num_batched_tokens"),
        (r"Using max model len (\d+)", "max_model_len"),
        (r"GPU KV cache size: ([\d,]+) tokens", "kv_pool_tokens"),
        (r"# GPU blocks: (\d+)", "num_gpu_blocks"),
        (r"num_gpu_blocks_override[= ]+(\d+)", "num_gpu_blocks"),
        (r"Setting attention block size to (\d+) tokens", "block_size"),
    ):
        if "non-default args" not in line and (found := re.search(pattern, line)):
            facts[name] = found[1].replace(",", "")
    if "Setting attention block size to" in line:
        facts["_raised"] = True
    if found := re.search(r"Asynchronous scheduling is (enabled|disabled)", line):
        facts["async_scheduling"] = found[1] == "enabled"
    return facts


_LINES: Sequence[Callable[[str], dict[str, Any]]] = (_version, _arguments, _engine, _resolved)


def _given(facts: Mapping[str, Any], where: str, *, raised_block: bool = False) -> Given:
    told: dict[str, Any] = {}
    for name, value in facts.items():
        if name not in FACTS or value is None:
            continue
        if name in INTEGERS:
            told[name] = whole(value, name, where, least=0 if name == "num_speculative_tokens" else 1)
        elif name in NUMBERS:
            told[name] = number(value, name, where)
        elif name in FLAGS:
            told[name] = _flag(value, name, where)
        else:
            told[name] = str(value)
    pool, block = told.get("kv_pool_tokens"), told.get("block_size")
    if pool and "num_gpu_blocks" not in told and not raised_block and pool % (block or 16) == 0:
        # The log counts all blocks, the null block included.
        told["num_gpu_blocks"] = pool // (block or 16)
        told.setdefault("block_size", 16)
    given = Given(**told)
    return replace(given, sources=tuple((name, where) for name in given.told()))


def _flag(value: object, name: str, where: str) -> bool | None:
    words = {
        "true": True,
        "1": True,
        "yes": True,
        "on": True,
        "false": False,
        "0": False,
        "no": False,
        "off": False,
    }
    text = str(value).strip().lower()
    if text in ("", "none", "null"):
        return None
    if text not in words:
        raise InputError(
            f"{name} is {value!r}, neither true nor false", where=where, remedy="write true or false"
        )
    return words[text]


def given_of_file(path: Path) -> Given:
    """Facts of a file: a boot log, or TOML, JSON or flat `key: value` lines in vLLM's flag names."""
    text = read_text(path)
    if is_boot_log(text):
        return read_boot_log(path)
    return given_of_mapping(_mapping(text, path), str(path))


def notes_on(items: Iterable[str]) -> list[str]:
    """Notes on what files of `--given` hold beside facts of a server; a boot log holds anything."""
    notes = []
    for path in (Path(item) for item in items if Path(item).is_file()):
        text = read_text(path)
        if is_boot_log(text):
            continue
        names = [name for name in _flat(_mapping(text, path)) if _fact(name) not in FACTS]
        if names:
            listed = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
            notes.append(f"{path}: no facts of a server, passed over: {listed}")
    return notes


def _mapping(text: str, path: Path) -> Mapping[str, Any]:
    if path.suffix == ".toml":
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"broken TOML ({error})", where=str(path), remedy="correct the line") from error
    if text.lstrip().startswith("{"):
        found: Mapping[str, Any] = parse_json(text, str(path))
        return found
    pairs = (line.split("#", 1)[0].partition(":") for line in text.splitlines() if not line.startswith(" "))
    return {k.strip(): v.strip().strip("'\"") for k, m, v in pairs if m and v.strip()}


def given_of_mapping(facts: Mapping[str, Any], where: str) -> Given:
    """Facts by name; nested objects are looked into, names that are no fact of a server are passed over."""
    named = {_fact(name): value for name, value in _flat(facts).items()}
    for name, known in DTYPES.items():
        if (value := named.get(name)) and not str(value).removeprefix("torch.").lower().startswith(known):
            raise InputError(
                f"{name} is {value!r}", where=where, remedy=f"vLLM's flag takes {', '.join(known)}, …"
            )
    given = _given({name: value for name, value in named.items() if name in FACTS}, where)
    share = given.gpu_memory_utilization
    if share is not None and not 0 < share <= 1:
        raise InputError(
            f"gpu_memory_utilization is {share:g}", where=where, remedy="it is a share, such as 0.9"
        )
    if given.vllm_version is not None:
        try:
            rules_of(given.vllm_version)
        except InputError as error:
            raise InputError(error.what, where=where, remedy=error.remedy) from error
    return given


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in facts.items():
        if isinstance(value, Mapping):
            flat |= {key: one for key, one in value.items() if not isinstance(one, (Mapping, list))}
        elif not isinstance(value, list):
            flat[name] = value
    return flat


def parse_given(items: Iterable[str]) -> Given:
    """`--given` as written: `key=value` in vLLM's flag names, or a file. Later items win."""
    given = Given()
    for item in items:
        name, equals, value = item.partition("=")
        key = _fact(name)
        if equals and key in FACTS:
            given = given_of_mapping({key: value.strip()}, f"--given {item}").over(given)
        elif Path(item).is_file():
            told = given_of_file(Path(item))
            if replace(told, sources=()) == Given():
                raise InputError(
                    "no fact of a server in it",
                    where=item,
                    remedy="give the server's log from its start, or lines such as max_num_seqs: 64",
                )
            given = told.over(given)
        else:
            what = f"no fact named {name}" if equals else "no such file"
            raise InputError(what, where=f"--given {item}", remedy=f"facts are {', '.join(FACTS)}")
    return given


def _fact(name: str) -> str:
    """The fact that a flag, a key or an alias names."""
    plain = name.strip().lstrip("-").replace("-", "_").lower()
    return ALIASES.get(plain, plain)
