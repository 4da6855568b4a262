"""Memory that cannot be had is said, and nothing else is lost; what is closed says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from icarus_local.bench.adapters import random_adapter
from icarus_local.engine.engine import Engine
from icarus_local.errors import RequestError
from tests.tiny import Tiny, tiny_llama


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits memory as Linux does")
def test_a_step_without_memory_is_refused_and_the_next_goes_on(tmp_path: Path) -> None:
    base = tiny_llama(tmp_path, n_layer=1, hidden=64, n_ff=1024).path
    command = [sys.executable, "-m", "tests.engine.starved", str(base)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.splitlines()
    assert "not enough memory for a step" in first
    assert second == "4096 rows"


def test_a_closed_engine_says_so(tiny: Tiny) -> None:
    with Engine(tiny.path, n_ctx=256, device="cpu") as engine:
        sequence = engine.cells.create()
        engine.forward(encode=[(sequence, [1, 2])])
        adapter = random_adapter(engine.base, 8, seed=0)
        memory = engine.memory()
        assert memory["cache"] == 256 * engine.kv_bytes_per_token
        assert memory["compute"] > 0
    for use in (
        lambda: engine.forward(decode=[(sequence, None)]),
        lambda: engine.add_adapter(adapter),
        lambda: engine.kv_bytes(sequence),
        engine.memory,
    ):
        with pytest.raises(RequestError, match="the engine is closed"):
            use()
    engine.close()
