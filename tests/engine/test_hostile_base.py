"""No base file, however damaged, ends the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from icarus_local.ggml.gguf import GgufFile
from tests.tiny import Tiny

SCRIPT = Path(__file__).with_name("hostile_base.py")


def test_mutated_bases_are_refused_or_computed(tiny: Tiny, tmp_path: Path) -> None:
    with GgufFile(tiny.path) as file:
        n_meta = min(info.offset for info in file.tensors.values())
    arguments = [str(tiny.path), str(tmp_path), "0", "2000", str(n_meta)]
    result = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert "2000 mutations" in result.stdout
