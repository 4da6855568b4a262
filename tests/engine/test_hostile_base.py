"""No base file, however damaged, ends the process, hangs it or takes memory without end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.relatives import relative

SCRIPT = Path(__file__).with_name("hostile_base.py")
N_MUTATIONS = 150  # thousands of each were tried by hand


@pytest.mark.parametrize(
    "variant", ["llama", "qwen2-yarn", "qwen3moe", "gemma2", "gemma3", "phi3-longrope", "granite", "olmo3"]
)
def test_mutated_bases_are_refused_or_computed(variant: str, tmp_path: Path) -> None:
    arguments = [str(relative(variant, tmp_path).path), str(tmp_path), "0", str(N_MUTATIONS)]
    result = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert f"{N_MUTATIONS} mutations" in result.stdout
