"""What tells one state of the code from another, where its version does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from icarus_local.bench import machine


def test_the_code_is_what_measures_and_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.code_sha256() == machine.code_sha256()
    monkeypatch.setattr(machine, "_PACKAGE", tmp_path)
    files = [tmp_path / name for name in ("engine/step.py", "ggml/library.py", "bench/deep/er.py", "chat/talk.py")]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_text("a = 1\n", "utf-8")
    known = {machine.code_sha256()}
    for file in files[:3]:
        file.write_text("a = 2\n", "utf-8")
        known.add(machine.code_sha256())
    assert len(known) == 4
    files[3].write_text("a = 2\n", "utf-8")
    files[0].rename(files[0].with_name("other.py"))
    assert machine.code_sha256() not in known
    files[0].with_name("other.py").rename(files[0])
    assert machine.code_sha256() in known, "how people talk changes no figure"
