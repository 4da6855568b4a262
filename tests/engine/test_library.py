"""Loading the native libraries: untested versions and missing files are named, C's logs go to `logging`."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from icarus_local.errors import LibraryError, ModelFileError
from icarus_local.ggml import library
from icarus_local.ggml.gguf import GgufFile
from icarus_local.text.tokenizer import Tokenizer
from tests.gguf_files import rewritten
from tests.tiny import Tiny


def test_an_untested_version_is_named_and_can_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    version = library.load().version
    monkeypatch.setattr(library, "TESTED_GGML_VERSIONS", ("0.0.1",))
    with pytest.raises(LibraryError, match=rf"libggml {version} .*tested: 0\.0\.1"):
        library.load.__wrapped__()
    monkeypatch.setenv(library.ALLOW_UNTESTED, "1")
    assert library.load.__wrapped__().version == version


def test_a_missing_library_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(LibraryError, match=r"holds no ggml-base library.*Reinstall llama-cpp-python"):
        library._library_file(tmp_path, "ggml-base")


def test_a_function_without_prototype_is_named() -> None:
    with pytest.raises(AttributeError, match="ggml_nonsense has no prototype"):
        library.load().ggml_nonsense()


def test_c_logs_are_logging_records_and_not_on_stderr(
    tiny: Tiny, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny.path.read_bytes()[:2000])
    no_merges = rewritten(tiny.path, tmp_path / "no_merges.gguf", {"tokenizer.ggml.merges": None})
    with caplog.at_level(logging.DEBUG, "icarus_local"):
        with pytest.raises(ModelFileError, match="damaged"):
            GgufFile(cut)
        with pytest.raises(ModelFileError, match="cannot read"):
            Tokenizer(no_merges)
    assert {record.name for record in caplog.records} >= {"icarus_local.ggml.log", "icarus_local.llama.log"}
    assert capfd.readouterr().err == ""


def test_log_fragments_are_joined_to_lines(caplog: pytest.LogCaptureFixture) -> None:
    router = library._LogRouter("icarus_local.test")
    with caplog.at_level(logging.DEBUG, "icarus_local.test"):
        router(4, b"one ", None)
        router(5, b"line\nand ", None)
        router(5, b"another\n", None)
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (logging.ERROR, "one line"),
        (logging.ERROR, "and another"),
    ]
