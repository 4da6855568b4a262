"""Identity of a vocabulary, which engine and text both need."""

from __future__ import annotations

import hashlib

from icarus_local.errors import ModelFileError
from icarus_local.ggml.gguf import GgufFile

TOKENS, TOKEN_TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"


def vocabulary_sha256(file: GgufFile) -> str:
    """SHA-256 over the token texts (length-prefixed UTF-8) and the token types (int32) of a GGUF file.

    Raises:
        ModelFileError: the file holds no vocabulary, or one of another kind.
    """
    digest = hashlib.sha256()
    texts = file.array_bytes(TOKENS)
    if not isinstance(texts, list):
        raise ModelFileError(f"{file.path}: key {TOKENS} holds numbers, not texts", "Convert the model again")
    for text in texts:
        digest.update(len(text).to_bytes(8, "little") + text)
    if TOKEN_TYPES in file:
        types = file.array_bytes(TOKEN_TYPES)
        if isinstance(types, list):
            raise ModelFileError(f"{file.path}: key {TOKEN_TYPES} holds texts, not numbers", "Convert the model again")
        digest.update(types)
    return digest.hexdigest()
