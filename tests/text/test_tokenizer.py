"""The tokenizer: plain text in, bytes out, nothing lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icarus_local.errors import ModelFileError, RequestError
from icarus_local.text.tokenizer import Tokenizer
from tests.gguf_files import rewritten
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


BROKEN = {
    "no kind": ({"tokenizer.ggml.model": None}, "of the kind None"),
    "another kind": ({"tokenizer.ggml.model": "bert"}, "of the kind 'bert'"),
    "no texts": ({"tokenizer.ggml.tokens": None}, "tokens"),
    "a text twice": ({"tokenizer.ggml.tokens": ["same"] * 273}, "273 tokens have the text 'same'"),
    "types of another length": ({"tokenizer.ggml.token_type": [1, 2]}, "one 32-bit number per token"),
    "a byte that is none": ({"tokenizer.ggml.token_type": [6] * 273}, "token 0 is a byte and has the text"),
    "SentencePiece without bytes": ({"tokenizer.ggml.model": "llama"}, "lacks the byte 0x00"),
    "no merges": ({"tokenizer.ggml.merges": None}, "libllama cannot read its vocabulary"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_vocabulary_is_named(tiny: Tiny, tmp_path: Path, case: str) -> None:
    keys, message = BROKEN[case]
    with pytest.raises(ModelFileError, match=message):
        Tokenizer(rewritten(tiny.path, tmp_path / "broken.gguf", keys))


def test_a_closed_tokenizer_is_an_error(tiny: Tiny) -> None:
    tokenizer = Tokenizer(tiny.path)
    tokenizer.close()
    tokenizer.close()
    for use in (lambda: tokenizer.encode("a"), lambda: tokenizer.piece(5), lambda: tokenizer.is_end_of_generation(1)):
        with pytest.raises(RequestError, match="closed"):
            use()
