"""`replicast profile`: descriptions of servers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from replicast.commands.model_facts import facts_of_model, parameters_of_model
from replicast.commands.options import PATH, Number, engine_args, engine_flags

if TYPE_CHECKING:
    from replicast.calibration.profile import Profile


@click.group(short_help="Descriptions of servers: how long their steps take.")
def profile() -> None:
    """Server profiles: how long the steps of one server take, and how it is configured.

    \b
    replicast profile list
    """


@profile.command("list")
def list_profiles() -> None:
    """The profiles that come with replicast.

    \b
    replicast profile list
    """
    from replicast.calibration.profile import load_profile, shipped_profiles
    from replicast.sim.report.numbers import dollars
    from replicast.sim.report.text import table

    shipped = [load_profile(name) for name in shipped_profiles()]
    rows = [
        [p.name, p.status, p.model, p.gpu, p.vllm_version, dollars(p.price_usd_per_hour)] for p in shipped
    ]
    click.echo(table(["name", "status", "model", "GPU", "vLLM", "$/h"], rows, left=[0, 1, 2, 3]))


@profile.command("show")
@click.argument("name", metavar="NAME|FILE")
def show_profile(name: str) -> None:
    """One profile as TOML, to look at or to start your own from.

    \b
    replicast profile show qwen3.6-35b-h200 > my-server.toml
    """
    from replicast.calibration.profile import load_profile, profile_text, shipped_file

    loaded = load_profile(name)
    if (path := shipped_file(name)) is not None:  # as it lies there, its comments included
        click.echo(path.read_text(encoding="utf-8"), nl=False)
    else:
        click.echo(profile_text(loaded), nl=False)


@profile.command("estimate")
@click.option("--model", required=True, metavar="NAME|FILE", help="A known model, or its config.json.")
@click.option("--hardware", required=True, metavar="GPU", help="L40S, A100, H100, H200, B200, ...")
@parameters_of_model
@click.option(
    "--tensor-parallel-size", type=click.IntRange(1), default=1, show_default=True, help="GPUs of a replica."
)
@click.option("--kv-cache-dtype", metavar="TYPE", help="As vLLM's flag: fp8 halves the bytes of a token.")
@engine_flags(
    "vllm_version", "max_model_len", "max_num_batched_tokens", "max_num_seqs", "block_size", "kv_cache_tokens"
)
@click.option("--price", type=Number(0), metavar="USD", help="Per replica and hour.")
@click.option("--out", "-o", type=PATH, metavar="FILE", help="Where to.  [default: stdout]")
def estimate_profile(model: str, hardware: str, out: Path | None, **options: Any) -> None:
    """Estimate a profile from physics alone: data sheets, no measurement, wrong by up to a factor of two.

    \b
    replicast profile estimate --model qwen3-coder-30b --hardware H100 --out guess.toml
    """
    from dataclasses import replace

    from replicast.calibration.facts import find_gpu
    from replicast.calibration.physics import estimate
    from replicast.calibration.profile import SCHEMA, profile_text, write_profile
    from replicast.sim.report.files import check_target

    dtype = options["kv_cache_dtype"]
    if dtype is not None and dtype not in ("auto", "bfloat16", "float16") and not dtype.startswith("fp8"):
        raise click.UsageError(
            f"--kv-cache-dtype {dtype}: known are auto, bfloat16, float16, fp8, fp8_e4m3, …"
        )
    args = engine_args(options)
    version = {"vllm_version": args.vllm_version} if args.vllm_version else {}
    made = estimate(
        facts_of_model(model, options).with_kv(dtype),
        find_gpu(hardware),
        options["tensor_parallel_size"],
        engine=replace(args, vllm_version=None),
        **version,
    )
    made = replace(_startable(made), price_usd_per_hour=options["price"])
    if out is None:
        click.echo(profile_text(made), nl=False)
        return
    check_target(out, [Path(model)], SCHEMA)
    write_profile(made, out)
    click.echo(f"Written to {out}: {made.name} ({made.status})")


def _startable(profile: Profile) -> Profile:
    """The profile with a longest prompt that its KV pool holds; what vLLM would not start is refused."""
    from dataclasses import replace

    from replicast.sim.config import EngineArgs
    from replicast.sim.defaults import DEFAULT_MODEL_LEN, resolve

    engine = profile.engine
    fits = _longest(profile)
    if engine.max_model_len is None and fits < DEFAULT_MODEL_LEN:
        note = f"The KV pool holds no more than {fits:,} tokens of one request: max_model_len is set to that."
        profile = replace(profile, engine=replace(engine, max_model_len=fits), notes=(*profile.notes, note))
    resolve(EngineArgs(), profile.engine_args())
    return profile


def _longest(profile: Profile) -> int:
    """Tokens of the longest request that the KV pool holds, up to the length that is the default."""
    from bisect import bisect

    from replicast.sim.config import EngineArgs
    from replicast.sim.defaults import DEFAULT_MODEL_LEN, resolve
    from replicast.sim.errors import InputError
    from replicast.sim.hybrid import in_flight_tokens
    from replicast.sim.kv_groups import blocks_per_request

    engine = profile.engine
    block = engine.block_size or 16
    if engine.num_gpu_blocks is None or engine.kv_groups is None:
        fits = (engine.kv_cache_tokens or DEFAULT_MODEL_LEN + block) - block
        what = f"kv_cache_tokens is {engine.kv_cache_tokens}, and a KV pool has two blocks of {block} or more"
        remedy = "Give the tokens that the boot log names."
    else:
        c = resolve(EngineArgs(num_gpu_blocks=10**12), profile.engine_args()).config  # room for any request
        in_flight = in_flight_tokens(c.max_num_batched_tokens, c.async_scheduling, c.rules)
        fits = bisect(
            range(1, DEFAULT_MODEL_LEN + 1),
            engine.num_gpu_blocks - 1,
            key=lambda length: blocks_per_request(c.kv_groups or (), length, in_flight),
        )
        what = (
            f"memory is left for {engine.num_gpu_blocks} KV blocks of {block:,} tokens, too few for a request"
        )
        remedy = "Give more GPUs: --tensor-parallel-size."
    if fits < 1:
        raise InputError(what, remedy=remedy)
    return fits
