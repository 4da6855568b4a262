"""`icarus-local doctor`: what is installed, what the base takes, and a proof that the graph here is libllama's."""

from __future__ import annotations

import importlib.metadata
import platform
import time

import click
import numpy as np
import numpy.typing as npt

from icarus_local import __version__
from icarus_local.chat.figures import mib
from icarus_local.cli.engine_options import EngineOptions
from icarus_local.engine.devices import devices
from icarus_local.engine.engine import Engine
from icarus_local.engine.oracle import Oracle
from icarus_local.engine.plan import adapter_bytes
from icarus_local.errors import IcarusError
from icarus_local.ggml.library import load
from icarus_local.text.tokenizer import Tokenizer

_PROBE = "The encoder's logits on this machine must be the same bits as llama.cpp's, or nothing else here is exact."
_RANK = 16

# Where two machines' kernels round differently, logits may: root mean square, in standard deviations of the logits.
# Mesa's Vulkan on a CPU comes to less than a tenth; a graph that is wrong in one place to a half and more.
TOLERANCE = 0.15

# Types that ggml's CPU multiplies by other kernels from two rows on (llamafile's sgemm) than for one.
_OTHER_KERNEL_FOR_ROWS = frozenset({0, 1, 2, 6, 8, 20, 30})  # F32, F16, Q4_0, Q5_0, Q8_0, IQ4_NL, BF16


def run_doctor(options: EngineOptions) -> None:
    """Prints the report.

    Raises:
        IcarusError: no base, a base that cannot be used, or logits that are not libllama's.
    """
    ggml = load()
    click.echo(f"icarus-local {__version__}, Python {platform.python_version()}, {platform.platform()}")
    click.echo(f"llama-cpp-python {importlib.metadata.version('llama-cpp-python')}, ggml {ggml.version}")
    for device in devices():
        free, total = device.memory
        memory = f"{_gib(free)} of {_gib(total)} free" if total else "memory unknown"
        click.echo(f"device {device.name}: {device.description}, {memory}")
    start = time.perf_counter()
    with options.open() as engine:
        hp = engine.base.hp
        click.echo(
            f"base {engine.base.path}\n  {hp.name}, {hp.n_layer} layers, context {hp.n_ctx_train}, "
            f"{engine.kv_bytes_per_token} bytes of {engine.kv_type} KV a token, "
            f"loaded in {time.perf_counter() - start:.2f} s\n  family {engine.base.family_id}"
        )
        click.echo(f"placement: {engine.base.placement.reason}")
        _show_memory(engine)
        for notice in engine.notices:
            click.echo(f"notice: {notice}")
        _prove(engine)


def _show_memory(engine: Engine) -> None:
    used = engine.memory()
    adapter = adapter_bytes(engine.base.hp, _RANK)
    click.echo(
        f"memory: {mib(used['mapped'])} of weights mapped, {mib(used['copied'])} copied; {mib(used['cache'])} of "
        f"cache for {engine.n_ctx} tokens; {mib(used['compute'])} for computing; {mib(adapter)} for each adapter of "
        f"rank {_RANK} in F32"
    )


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB"


def _prove(engine: Engine) -> None:
    """Compares a prompt, and a dual step after it, with libllama on the CPU."""
    path, placement = engine.base.path, engine.base.placement
    tokenizer = Tokenizer(path)
    try:
        *tokens, last = tokenizer.encode(_PROBE)[: engine.n_ctx]
    finally:
        tokenizer.close()
    sequence = engine.cells.create()
    ours = engine.forward(encode=[(sequence, tokens)], encoder_logits=True).encoder
    dual = engine.forward(encode=[(sequence, [last])], decode=[(sequence, None)], encoder_logits=True)
    repacked = bool(placement.repacked)
    with Oracle(path, engine.n_ctx, engine.n_threads, kv_type=engine.kv_type, repack=repacked) as oracle:
        theirs = oracle.prefill(tokens)
        oracle.copy_sequence(0, 1)
        two = oracle.decode([(last, len(tokens), 0), (last, len(tokens), 1)])
    on_cpu = placement.n_gpu_layers == 0
    where = "" if on_cpu else f"{placement.device.name} rounds in its own way"
    _compare(f"logits of {len(tokens)} tokens", ours, theirs, where)
    if on_cpu and not np.array_equal(dual.encoder, dual.decoder):
        raise IcarusError(
            "a decoder row without an adapter differs from the encoder's row", "Please report this machine"
        )
    if on_cpu and engine.base.types("attn_k", "attn_v") & _OTHER_KERNEL_FOR_ROWS:
        where = "K and V of one row and of two go through different kernels for this type"
    _compare("both rows of a dual step", np.concatenate([dual.encoder, dual.decoder]), two, where)


def _compare(what: str, ours: npt.NDArray[np.float32], theirs: npt.NDArray[np.float32], rounds: str) -> None:
    """Demands equality, or where something `rounds` otherwise (said in words) the tolerance."""
    if np.array_equal(ours, theirs):
        click.echo(f"proof: {what} equal libllama's bit for bit")
        return
    apart = float(np.sqrt(np.mean(np.square(ours - theirs))) / theirs.std())
    if not rounds or not apart <= TOLERANCE:
        raise IcarusError(
            f"{what} differ from libllama's by {apart:.3g} of their standard deviation, at most "
            f"{float(np.abs(ours - theirs).max()):.3g}",
            "Please report this machine",
        )
    click.echo(f"proof: {what} are libllama's within {apart:.2g} of their deviation (at most {TOLERANCE}: {rounds})")
