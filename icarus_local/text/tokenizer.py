"""Text to token ids and back, through libllama's own tokenizer (a model opened with `vocab_only`)."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

from icarus_local.errors import ModelFileError, RequestError
from icarus_local.ggml.gguf import GgufFile
from icarus_local.ggml.library import load_llama
from icarus_local.ggml.vocabulary import check_vocabulary

_ATTR_UNKNOWN, _ATTR_CONTROL, _ATTR_USER_DEFINED, _ATTR_STRIPS_RIGHT = 1 << 0, 1 << 3, 1 << 4, 1 << 8


class Tokenizer:
    """The vocabulary of one GGUF file.

    Attributes:
        n_vocab: number of token ids.
        controls: text of each control token -> id; only a template may emit these.
        user_defined: texts of USER_DEFINED tokens, which stay one token even in plain text.
        bos, eos: their ids; None where the file has none.
        adds_bos: whether a text begins with BOS; `encode` leaves it to the template.
        strips_right: control tokens that swallow the white space behind them (Phi-3's).
        sha256: over token texts and types: two files with this in common give the same ids.
        template_source: the file's Jinja chat template, or None.
    """

    def __init__(self, path: Path) -> None:
        """Opens the vocabulary.

        Raises:
            ModelFileError: not a GGUF file, or its vocabulary cannot be used.
        """
        self.sha256 = check_vocabulary(path)
        self.path = path
        self._llama = load_llama()
        params = self._llama.llama_model_default_params()
        params.vocab_only = True
        self._model = self._llama.llama_model_load_from_file(os.fsencode(path), params)
        if not self._model:
            raise ModelFileError(
                f"{path}: libllama cannot read its vocabulary", "--debug shows why; convert the model again"
            )
        self.n_vocab = int(self._llama.llama_vocab_n_tokens(self._vocab))
        raw = self._llama.llama_model_chat_template(self._model, None)
        self.template_source: str | None = raw.decode("utf-8", "replace") if raw else None
        with GgufFile(path) as file:
            named = [f"tokenizer.ggml.{kind}_token_id" in file for kind in ("bos", "eos")]
        self.bos = self._special(self._llama.llama_vocab_bos, named[0])
        self.eos = self._special(self._llama.llama_vocab_eos, named[1])
        self.controls: dict[str, int] = {}
        self.user_defined: list[str] = []
        strips_right = set()
        attribute = self._llama.llama_vocab_get_attr
        for token in range(self.n_vocab):
            bits = attribute(self._vocab, token)
            if bits & (_ATTR_CONTROL | _ATTR_UNKNOWN):
                self.controls[self._text(token)] = token
                if bits & _ATTR_STRIPS_RIGHT:
                    strips_right.add(token)
            elif bits & _ATTR_USER_DEFINED:
                self.user_defined.append(self._text(token))
        self.strips_right = frozenset(strips_right)
        self.adds_bos = self.bos is not None and bool(self._llama.llama_vocab_get_add_bos(self._vocab))

    @property
    def _vocab(self) -> int:
        if not self._model:
            raise RequestError("the tokenizer is closed")
        return int(self._llama.llama_model_get_vocab(self._model))

    def _special(self, getter: object, named: bool) -> int | None:
        token = int(getter(self._vocab))  # type: ignore[operator]
        if token < 0:
            return None
        # Where the file names none libllama takes GPT-2's number 11, which is a word elsewhere.
        return token if named or self._llama.llama_vocab_get_attr(self._vocab, token) & _ATTR_CONTROL else None

    def _text(self, token: int) -> str:
        return str(self._llama.llama_vocab_get_text(self._vocab, token).decode("utf-8", "replace"))

    def token_text(self, token: int | None) -> str:
        """A token's text as the vocabulary spells it; empty for None."""
        return "" if token is None else self._text(self._checked(token))

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text: no BOS is added and control tokens in it stay text."""
        data = text.encode("utf-8", "replace")
        capacity = len(data) + 8
        while True:
            ids = (ctypes.c_int32 * capacity)()
            n = self._llama.llama_tokenize(self._vocab, data, len(data), ids, capacity, False, False)
            if n >= 0:
                return list(ids[:n])
            capacity = -n

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for; a part of a character perhaps. Control tokens give none."""
        return self._piece(self._checked(token))

    @functools.lru_cache(maxsize=65536)  # noqa: B019 - a tokenizer lives as long as its program
    def _piece(self, token: int) -> bytes:
        capacity = 64
        while True:
            buffer = ctypes.create_string_buffer(capacity)
            n = self._llama.llama_token_to_piece(self._vocab, token, buffer, capacity, 0, False)
            if n >= 0:
                return bytes(buffer.raw[:n])
            capacity = -n

    def decode(self, tokens: list[int]) -> str:
        """The text of finished tokens; incomplete characters become U+FFFD."""
        return b"".join(self.piece(token) for token in tokens).decode("utf-8", "replace")

    def is_end_of_generation(self, token: int) -> bool:
        """Whether a sampled `token` ends an answer (EOS, end of turn and their relatives)."""
        return bool(self._llama.llama_vocab_is_eog(self._vocab, self._checked(token)))

    def _checked(self, token: int) -> int:
        if not 0 <= token < self.n_vocab:
            raise RequestError(f"token id {token} is outside the vocabulary of {self.n_vocab} tokens")
        return token

    @property
    def vocab_address(self) -> int:
        """Address of the `llama_vocab`, for samplers."""
        return int(self._vocab)

    def close(self) -> None:
        """Frees the vocabulary; may be called twice."""
        if self._model:
            self._llama.llama_model_free(self._model)
            self._model = None
