"""The vocabulary of a GGUF file: checked for what libllama would abort on, and its identity."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from pathlib import Path

import numpy as np

from icarus_local.errors import ModelFileError
from icarus_local.ggml.gguf import GgufFile

TOKENIZERS = ("gpt2", "llama")  # byte-level BPE and SentencePiece
_TYPE_BYTE = 6  # LLAMA_TOKEN_TYPE_BYTE
_BYTE_TEXT = re.compile(rb"<0x[0-9A-Fa-f]{2}>")


def token_texts(file: GgufFile) -> list[bytes]:
    """The token texts in UTF-8, in order of id.

    Raises:
        ModelFileError: missing, empty, or not texts.
    """
    texts = file.array_bytes("tokenizer.ggml.tokens")
    if not isinstance(texts, list) or not texts:
        raise ModelFileError(f"{file.path}: key tokenizer.ggml.tokens holds no texts", "Convert the model again")
    return texts


def token_types(file: GgufFile) -> bytes | None:
    """The token types as int32 bytes, or None where the file has none.

    Raises:
        ModelFileError: not one int32 per token.
    """
    if "tokenizer.ggml.token_type" not in file:
        return None
    types = file.array_bytes("tokenizer.ggml.token_type")
    if not isinstance(types, bytes) or len(types) != 4 * file.array_length("tokenizer.ggml.tokens"):
        raise ModelFileError(
            f"{file.path}: key tokenizer.ggml.token_type is not one 32-bit number per token", "Convert the model again"
        )
    return types


def vocabulary_sha256(file: GgufFile) -> str:
    """SHA-256 (hex) over the token texts (each after its length) and types: where it agrees, ids mean the same.

    Raises:
        ModelFileError: the file has no proper vocabulary.
    """
    return _sha256(token_texts(file), token_types(file))


def _sha256(texts: list[bytes], types: bytes | None) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(len(text).to_bytes(8, "little") + text)
    digest.update(types or b"")
    return digest.hexdigest()


def check_vocabulary(path: Path) -> str:
    """Refuses a vocabulary on which libllama would end the process, or throw where nobody can catch.

    Returns its `vocabulary_sha256`.

    Raises:
        ModelFileError: with the key and the token.
    """
    with GgufFile(path) as file:
        model = file.value("tokenizer.ggml.model")
        if model not in TOKENIZERS:
            raise ModelFileError(
                f"{path} has a tokenizer of the kind {model!r}; this version reads {', '.join(TOKENIZERS)}"
            )
        texts = token_texts(file)
        raw_types = token_types(file)
    ((text, count),) = Counter(text for text in texts if text).most_common(1) or [(b"", 1)]
    if count > 1:
        raise ModelFileError(f"{path}: {count} tokens have the text {_shown(text)}", "Convert the model again")
    if raw_types is not None:
        for token in np.flatnonzero(np.frombuffer(raw_types, "<i4") == _TYPE_BYTE).tolist():
            if not _BYTE_TEXT.fullmatch(texts[token]):
                raise ModelFileError(
                    f"{path}: token {token} is a byte and has the text {_shown(texts[token])}",
                    "Convert the model again",
                )
    if model == "llama":
        known = set(texts)
        for byte in range(256):
            if b"<0x%02X>" % byte not in known and bytes([byte]) not in known:
                raise ModelFileError(f"{path}: its vocabulary lacks the byte 0x{byte:02X}", "Convert the model again")
    return _sha256(texts, raw_types)


def _shown(text: bytes) -> str:
    return repr(text.decode("utf-8", "replace"))
