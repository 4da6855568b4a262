"""`icarus-local doctor`: what is installed, which base is found, and a proof that the graph here is libllama's."""

from __future__ import annotations

import ctypes
import importlib.metadata
import platform
import time
from pathlib import Path

import click
import numpy as np

from icarus_local import __version__
from icarus_local.cli.bases import find_base
from icarus_local.engine.engine import Engine
from icarus_local.engine.oracle import Oracle
from icarus_local.errors import IcarusError
from icarus_local.ggml.library import load
from icarus_local.text.tokenizer import Tokenizer

_PROBE = "The encoder's logits on this machine must be the same bits as llama.cpp's, or nothing else here is exact."


def run_doctor(base: str | None) -> None:
    """Prints the report.

    Raises:
        IcarusError: no base, a base that cannot be used, or logits that are not libllama's.
    """
    ggml = load()
    click.echo(f"icarus-local {__version__}, Python {platform.python_version()}, {platform.platform()}")
    click.echo(f"llama-cpp-python {importlib.metadata.version('llama-cpp-python')}, ggml {ggml.version}")
    for i in range(ggml.ggml_backend_dev_count()):
        click.echo(f"device {_device(ggml.ggml_backend_dev_get(i))}")
    path = find_base(base)
    start = time.perf_counter()
    with Engine(path, n_ctx=256) as engine:
        hp = engine.base.hp
        click.echo(
            f"base {path}\n  {hp.name}, {hp.n_layer} layers, {engine.base.n_bytes / 2**20:.0f} MiB of weights, "
            f"context {hp.n_ctx_train}, {engine.kv_bytes_per_token} bytes of f16 KV a token, "
            f"loaded in {time.perf_counter() - start:.2f} s\n  family {engine.base.family_id}"
        )
        _prove(engine, path)


def _device(device: int) -> str:
    ggml = load()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
    name, description = ggml.ggml_backend_dev_name(device), ggml.ggml_backend_dev_description(device)
    return f"{name.decode()}: {description.decode()}, {total.value / 2**30:.1f} GiB"


def _prove(engine: Engine, path: Path) -> None:
    tokenizer = Tokenizer(path)
    try:
        tokens = tokenizer.encode(_PROBE)
    finally:
        tokenizer.close()
    sequence = engine.cells.create()
    ours = engine.forward(encode=[(sequence, tokens)], encoder_logits=True).encoder
    dual = engine.forward(encode=[(sequence, tokens[:1])], decode=[(sequence, None)], encoder_logits=True)
    with Oracle(path, engine.n_ctx, engine.n_threads) as oracle:
        theirs = oracle.prefill(tokens)
    if not np.array_equal(dual.encoder, dual.decoder):
        raise IcarusError(
            "a decoder row without an adapter differs from the encoder's row", "Please report this machine"
        )
    difference = float(np.abs(ours - theirs).max())
    if difference == 0:
        click.echo(
            f"proof: logits of {len(tokens)} tokens equal libllama's bit for bit; a bare decoder row equals them"
        )
        return
    raise IcarusError(
        f"the logits of {len(tokens)} tokens differ from libllama's by up to {difference:.3g}",
        "Please report this machine",
    )
