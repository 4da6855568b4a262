"""Pieces, scores and types of a `tokenizer.model`: as much of its protobuf as a GGUF file needs, within bounds.

sentencepiece_model.proto: ModelProto has pieces = 1 (piece = 1, score = 2, type = 3), trainer_spec = 2 (model_type =
3) and normalizer_spec = 3 (add_dummy_prefix = 3).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from icarus_local.errors import ModelFileError

_MAX_BYTES = 1 << 28
_BPE = 2  # TrainerSpec.ModelType
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Field = tuple[int, int, int | bytes]  # number, wire type, value


@dataclass(frozen=True)
class SentencePieces:
    """What the file holds; `types` as gguf.TokenType, which are SentencePiece's own."""

    texts: list[bytes]
    scores: list[float]
    types: list[int]
    adds_space: bool


def read_pieces(path: Path) -> SentencePieces:
    """Reads a `tokenizer.model`.

    Raises:
        ModelFileError: damaged, or of a kind other than BPE.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ModelFileError(f"{path} is larger than any tokenizer")
        data = path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}") from error
    texts, scores, types = [], [], []
    model_type, adds_space = 1, True
    try:
        for number, wire, value in _fields(data):
            if wire != _BYTES or not isinstance(value, bytes):
                continue
            if number == 1:
                text, score, kind = _piece(value)
                texts.append(text)
                scores.append(score)
                types.append(kind)
            elif number == 2:
                model_type = _integer(value, 3, model_type)
            elif number == 3:
                adds_space = bool(_integer(value, 3, int(adds_space)))
    except (ValueError, struct.error) as error:
        raise ModelFileError(f"{path} is no whole SentencePiece model: {error}", "Fetch it again") from error
    if not texts:
        raise ModelFileError(f"{path} is no SentencePiece model: it holds no pieces", "Fetch it again")
    if model_type != _BPE:
        raise ModelFileError(f"{path} is a SentencePiece model of another kind than BPE, as no base here has")
    return SentencePieces(texts, scores, types, adds_space)


def _piece(data: bytes) -> tuple[bytes, float, int]:
    text, score, kind = b"", 0.0, 1
    for number, wire, value in _fields(data):
        if number == 1 and isinstance(value, bytes) and wire == _BYTES:
            value.decode("utf-8")
            text = value
        elif number == 2 and isinstance(value, bytes) and wire == _FIXED32:
            (score,) = struct.unpack("<f", value)
        elif number == 3 and isinstance(value, int):
            kind = value
    if not 1 <= kind <= 6 or not math.isfinite(score):
        raise ValueError(f"the piece {text!r} has the type {kind} and the score {score}")
    return text, score, kind


def _integer(data: bytes, wanted: int, default: int) -> int:
    values = [value for number, _, value in _fields(data) if number == wanted and isinstance(value, int)]
    return values[-1] if values else default


def _fields(data: bytes) -> Iterator[Field]:
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, position = _varint(data, position)
            yield number, wire, value
            continue
        if wire == _BYTES:
            length, position = _varint(data, position)
        elif wire in (_FIXED32, _FIXED64):
            length = 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(f"field {number} is of the unknown wire type {wire}")
        if length > len(data) - position:
            raise ValueError(f"field {number} claims {length} bytes of {len(data) - position}")
        yield number, wire, data[position : position + length]
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise ValueError("it ends inside a number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, position
    raise ValueError("a number is too long")
