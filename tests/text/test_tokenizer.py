"""The tokenizer: plain text in, bytes out, nothing lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icarus_local.errors import ModelFileError, RequestError
from icarus_local.text.tokenizer import Tokenizer
from tests.tiny import Tiny


@pytest.fixture(scope="module")
def tiny_tokenizer(tiny: Tiny) -> Iterator[Tokenizer]:
    tokenizer = Tokenizer(tiny.path)
    yield tokenizer
    tokenizer.close()


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=80))
def test_text_comes_back(tiny_tokenizer: Tokenizer, text: str) -> None:
    # The tiny vocabulary has all 256 bytes; SmolLM2's lacks some that no ordinary text holds.
    ids = tiny_tokenizer.encode(text)
    assert not set(ids) & set(tiny_tokenizer.controls.values())
    assert tiny_tokenizer.decode(ids) == text


def test_long_text_grows_the_buffer(smollm2_tokenizer: Tokenizer) -> None:
    assert len(smollm2_tokenizer.encode("1 " * 20_000)) >= 40_000


def test_ids_outside_the_vocabulary_are_refused(smollm2_tokenizer: Tokenizer) -> None:
    for token in (-1, smollm2_tokenizer.n_vocab):
        with pytest.raises(RequestError, match="outside the vocabulary"):
            smollm2_tokenizer.piece(token)


def test_a_file_without_vocabulary_is_refused(tmp_path: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "empty.gguf", "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelFileError, match="libllama cannot read its vocabulary"):
        Tokenizer(tmp_path / "empty.gguf")
