"""Adapter files: a GGUF LoRA as llama.cpp defines it, plus keys that say whether it may stand on a shared cache."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from icarus_local.engine.identity import to_f32
from icarus_local.errors import AdapterError, ModelFileError
from icarus_local.ggml.gguf import GgufFile, TensorInfo

# llama.cpp's keys
KEY_TYPE = "general.type"
KEY_NAME = "general.name"
KEY_ADAPTER_TYPE = "adapter.type"
KEY_ALPHA = "adapter.lora.alpha"
KEY_ALORA = "adapter.alora.invocation_tokens"
# ours
KEY_VERSION = "icarus.format_version"
KEY_FAMILY = "icarus.base.family_id"
KEY_BASE_NAME = "icarus.base.name"
KEY_TRAINED = "icarus.trained"
KEY_ASSUMED = "icarus.assumed"
KEY_MODULES = "icarus.modules"
KEY_DROPPED_KV = "icarus.dropped_kv"
KEY_TEMPLATE = "icarus.template.sha256"
KEY_TOKENIZER = "icarus.tokenizer.sha256"

FORMAT_VERSION = 1
TRAINED_ICARUS, TRAINED_ORDINARY, TRAINED_UNKNOWN = "icarus", "ordinary", "unknown"
TRAINED = (TRAINED_ICARUS, TRAINED_ORDINARY, TRAINED_UNKNOWN)
DROPPABLE = ("attn_k", "attn_v", "attn_qkv[k,v]")  # the last: rows of a fused tensor
MODULES = ("attn_q", "attn_output", "ffn_gate", "ffn_up", "ffn_down")

# A fused QKV tensor is let through here: `check_fits`, which knows the base, looks at its K and V rows.
_PLACE = re.compile(rf"blk\.\d+\.({'|'.join(MODULES)}|attn_qkv)\.weight")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CACHE_REASON = "every agent reads the K and V that the base alone writes, so the shared cache would be wrong"
_REASONS = (
    (re.compile(r"\.attn_(k|v|kv\w*)\."), f"it changes K or V: {_CACHE_REASON}"),
    (re.compile(r"norm"), f"it changes a norm, from which K and V are computed: {_CACHE_REASON}"),
    (re.compile(r"^(token_embd|token_types|position_embd)"), f"it changes the embeddings: {_CACHE_REASON}"),
    (re.compile(r"^output\."), "it changes the output head, which all agents share"),
)
TYPE_Q8_0 = 8  # enum ggml_type
_RECONVERT = "Convert the PEFT folder with icarus-convert adapter"


@dataclass(frozen=True, eq=False, slots=True)
class LoraPair:
    """One weight's update, `b @ a`: `a` float32 [rank, n_in], `b` float32 [n_out, rank] with the scale folded in."""

    a: npt.NDArray[np.float32]
    b: npt.NDArray[np.float32]

    @property
    def rank(self) -> int:
        """Rows of `a`."""
        return int(self.a.shape[0])


@dataclass(frozen=True, slots=True)
class Part:
    """Rows `start` to `stop` of a file tensor's output, which are the weight `name` of the graph."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor of the base that a LoRA may stand on: its sizes, and the weights of the graph that it holds.

    Output rows outside all parts are K and V of a fused tensor, which no agent may change.
    """

    n_in: int
    n_out: int
    parts: tuple[Part, ...]

    @property
    def frozen(self) -> npt.NDArray[np.bool_]:
        """[n_out] bool: the output rows that no agent may change."""
        frozen = np.ones(self.n_out, np.bool_)
        for part in self.parts:
            frozen[part.start : part.stop] = False
        return frozen


@dataclass(frozen=True, eq=False, slots=True)
class Adapter:
    """A whole adapter, read and checked; only arrays, no native memory.

    Attributes:
        path: where it was read from.
        name: `general.name`, or the file's stem.
        sha256: of the file's content (hex): two files of one content are one adapter.
        family_id: of the base that it was made for (`identity.family_id`).
        trained: "icarus", "ordinary" or "unknown".
        assumed: whoever converted it gave --assume-icarus.
        template_sha256, tokenizer_sha256: what it was trained with (hex); empty where unknown.
        pairs: by base tensor name, such as `blk.0.attn_q.weight`.
        base_name: the base's name for messages; empty where unknown.
        dropped_kv: modules of K and V that its conversion left out (--drop-kv): it is not what was trained.
    """

    path: Path
    name: str
    sha256: str
    family_id: str
    trained: str
    assumed: bool
    template_sha256: str
    tokenizer_sha256: str
    pairs: dict[str, LoraPair]
    base_name: str = ""
    dropped_kv: tuple[str, ...] = ()

    @property
    def rank(self) -> int:
        """The largest rank of all pairs; 0 without any."""
        return max((pair.rank for pair in self.pairs.values()), default=0)

    @property
    def n_bytes(self) -> int:
        """Bytes of all matrices as float32."""
        return sum(pair.a.nbytes + pair.b.nbytes for pair in self.pairs.values())


def refusal(tensor: str) -> str | None:
    """Why a LoRA on the base tensor `tensor` may not stand on a shared cache; None for the weights that may change."""
    if _PLACE.fullmatch(tensor):
        return None
    return next((reason for pattern, reason in _REASONS if pattern.search(tensor)), "no agent may adapt that weight")


def read_adapter(path: Path) -> Adapter:
    """Reads an adapter file and checks all that can be checked without its base.

    Raises:
        AdapterError: missing, damaged, no adapter, not converted by icarus-convert, not trained on the frozen cache
            (and not assumed to be), or with a tensor that has no place on a shared cache.
    """
    try:
        with GgufFile(path) as file:
            return _read(file)
    except AdapterError:
        raise
    except ModelFileError as error:
        raise AdapterError(error.what, error.hint) from error
    except OSError as error:
        raise AdapterError(f"{path} cannot be read: {error.strerror}") from error


def read_rank(path: Path) -> int:
    """The largest rank in an adapter's file, by its table of tensors alone; 0 without any.

    Raises:
        AdapterError: missing or damaged.
    """
    try:
        with GgufFile(path) as file:
            shapes = [info.shape for name, info in file.tensors.items() if name.endswith(".lora_a")]
    except ModelFileError as error:
        raise AdapterError(error.what, error.hint) from error
    except OSError as error:
        raise AdapterError(f"{path} cannot be read: {error.strerror}") from error
    # A dimension of 1 at the end is not told from none.
    return max(((*shape, 1)[1] for shape in shapes), default=0)


def _read(file: GgufFile) -> Adapter:
    path = file.path
    _check_kind(file)
    trained, assumed = file.require(KEY_TRAINED, str), file.require(KEY_ASSUMED, bool)
    if trained not in TRAINED:
        raise AdapterError(f"{path}: key {KEY_TRAINED} holds {trained!r}, not one of {', '.join(TRAINED)}", _RECONVERT)
    if trained != TRAINED_ICARUS and not assumed:
        raise AdapterError(
            f"{path} was not trained on the frozen base's cache ({KEY_TRAINED} is {trained!r}), so its answers over a "
            "shared cache would be silently wrong",
            "Train it with icarus-train; or convert it again with --assume-icarus if you know that it was",
        )
    family = _sha256_key(file, KEY_FAMILY)
    if not family:
        raise AdapterError(f"{path} lacks the key {KEY_FAMILY}", _RECONVERT)
    template, tokenizer = _sha256_key(file, KEY_TEMPLATE), _sha256_key(file, KEY_TOKENIZER)
    pairs = _read_pairs(file, _alpha(file))
    _check_modules(file, pairs)
    name, base_name = file.value(KEY_NAME), file.value(KEY_BASE_NAME)
    with path.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    return Adapter(
        path=path,
        name=name if isinstance(name, str) and name else path.stem,
        sha256=digest,
        family_id=family,
        trained=trained,
        assumed=assumed,
        template_sha256=template,
        tokenizer_sha256=tokenizer,
        pairs=pairs,
        base_name=base_name if isinstance(base_name, str) else "",
        dropped_kv=_dropped(file),
    )


def _check_kind(file: GgufFile) -> None:
    path, kind = file.path, file.value(KEY_TYPE)
    if kind != "adapter":
        what = "a base model" if "token_embd.weight" in file.tensors else f"of the type {kind!r}"
        raise AdapterError(f"{path} is {what}, not an adapter", "Give the adapter's file, and the base with --base")
    if file.value(KEY_ADAPTER_TYPE) != "lora":
        raise AdapterError(f"{path} is an adapter of the type {file.value(KEY_ADAPTER_TYPE)!r}; only lora can be used")
    if KEY_VERSION not in file:
        raise AdapterError(
            f"{path} is a plain LoRA adapter: nothing in it says which base it is for, nor that it was trained on the "
            "frozen base's cache",
            _RECONVERT,
        )
    version = file.require(KEY_VERSION, int)
    if version != FORMAT_VERSION:
        raise AdapterError(
            f"{path} has format version {version}; this program reads version {FORMAT_VERSION}",
            "Update icarus-local, or convert the adapter again",
        )
    if KEY_ALORA in file:
        raise AdapterError(f"{path} is an activated LoRA (it waits for invocation tokens), which cannot be used here")


def _dropped(file: GgufFile) -> tuple[str, ...]:
    if KEY_DROPPED_KV not in file:
        return ()
    names = file.value(KEY_DROPPED_KV)
    if not isinstance(names, list) or not names or not set(names) <= set(DROPPABLE):
        raise AdapterError(
            f"{file.path}: key {KEY_DROPPED_KV} does not hold names of {', '.join(DROPPABLE)}", _RECONVERT
        )
    return tuple(names)


def _sha256_key(file: GgufFile, key: str) -> str:
    if key not in file:
        return ""
    value = file.require(key, str)
    if not _SHA256.fullmatch(value):
        raise AdapterError(f"{file.path}: key {key} holds {value!r}, not a SHA-256 in hexadecimal", _RECONVERT)
    return str(value)


def _alpha(file: GgufFile) -> float:
    if KEY_ALPHA not in file:
        return 0.0  # llama.cpp reads a missing key so
    alpha = file.require(KEY_ALPHA, float)
    if not math.isfinite(alpha):
        raise AdapterError(f"{file.path}: key {KEY_ALPHA} is {alpha}", _RECONVERT)
    return float(alpha)


def _read_pairs(file: GgufFile, alpha: float) -> dict[str, LoraPair]:
    parts: dict[str, dict[str, TensorInfo]] = {}
    for name, info in file.tensors.items():
        tensor, _, part = name.rpartition(".")
        if part not in ("lora_a", "lora_b"):
            tensor = name
        reason = refusal(tensor)
        if reason is None and part not in ("lora_a", "lora_b"):
            reason = "it is neither a lora_a nor a lora_b"
        if reason is not None:
            raise AdapterError(f"{file.path} holds the tensor {name}: {reason}", "Adapt Q, O and the MLP only")
        parts.setdefault(tensor, {})[part] = info
    if not parts:
        raise AdapterError(f"{file.path} holds no tensors: it would change nothing", _RECONVERT)
    return {tensor: _read_pair(file, tensor, found, alpha) for tensor, found in parts.items()}


def _read_pair(file: GgufFile, tensor: str, found: dict[str, TensorInfo], alpha: float) -> LoraPair:
    for part in ("lora_a", "lora_b"):
        if part not in found:
            raise AdapterError(f"{file.path}: {tensor} has no {part}", "The file is damaged: convert it again")
    a, b = (_read_matrix(file, found[part]) for part in ("lora_a", "lora_b"))
    rank = a.shape[0]
    if b.shape[1] != rank:
        raise AdapterError(
            f"{file.path}: {tensor} has a lora_a of rank {rank} and a lora_b of rank {b.shape[1]}", _RECONVERT
        )
    # llama.cpp's rule (llama_adapter_lora_weight::get_scale); overflow shows as a value that is not finite.
    if alpha:
        with np.errstate(over="ignore"):
            b = b * np.float32(alpha / rank)
    for part, values in (("lora_a", a), ("lora_b", b)):
        if not np.isfinite(values).all():
            raise AdapterError(
                f"{file.path}: {tensor}.{part} holds values that are not finite", "Train or convert it again"
            )
        values.setflags(write=False)
    return LoraPair(a, b)


def _read_matrix(file: GgufFile, info: TensorInfo) -> npt.NDArray[np.float32]:
    """[rows, columns]: ggml's shape reversed."""
    # A dimension of 1 at the end is not told from none, so a rank of 1 comes as one dimension.
    shape = (*info.shape, 1) if len(info.shape) == 1 else info.shape
    if len(shape) != 2 or 0 in shape:
        raise AdapterError(
            f"{file.path}: tensor {info.name} has the shape {info.shape}, which is no matrix", _RECONVERT
        )
    raw = file.read_tensor(info.name)
    if raw.size != info.n_bytes:
        raise AdapterError(f"{file.path} became shorter while it was read")
    values = from_q8_0(raw) if info.type == TYPE_Q8_0 else to_f32(raw, info.type)
    if values is None:
        raise AdapterError(
            f"{file.path}: tensor {info.name} is quantised (ggml type {info.type}), not F32, F16, BF16 or Q8_0",
            "Convert it again with --outtype f16 or f32",
        )
    return values.reshape(shape[1], shape[0])


def from_q8_0(raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Flat F32 values of blocks of an F16 scale and 32 whole numbers (ggml-common.h, block_q8_0)."""
    blocks = raw.reshape(-1, 34)
    with np.errstate(invalid="ignore"):  # a hostile scale may be infinite; the caller refuses what comes of it
        return (blocks[:, :2].copy().view("<f2").astype(np.float32) * blocks[:, 2:].view(np.int8)).reshape(-1)


def _check_modules(file: GgufFile, pairs: Mapping[str, LoraPair]) -> None:
    listed = file.value(KEY_MODULES)
    found = sorted({tensor.split(".")[2] for tensor in pairs})
    if not isinstance(listed, list) or sorted(listed) != found:
        raise AdapterError(
            f"{file.path}: key {KEY_MODULES} does not name what the file adapts ({', '.join(found)})", _RECONVERT
        )


def check_fits(adapter: Adapter, base_family_id: str, places: Mapping[str, Place]) -> None:
    """Checks that every matrix of an adapter has its place in a base.

    Args:
        adapter: what `read_adapter` gave.
        base_family_id: of the base.
        places: of the base, by tensor name.

    Raises:
        AdapterError: made for another base, or a tensor without a place or of another shape, or no tensor at all.
    """
    if adapter.family_id != base_family_id:
        wanted = (
            f"{adapter.base_name}, family {adapter.family_id[:12]}" if adapter.base_name else adapter.family_id[:12]
        )
        raise AdapterError(
            f"{adapter.path} is for another base ({wanted}); this base is of the family {base_family_id[:12]}",
            "Use the base that it was trained on, in any quantisation, or train one for this base with icarus-train",
        )
    if not adapter.pairs:
        raise AdapterError(f"{adapter.path} holds no tensors: it would change nothing", _RECONVERT)
    for tensor, pair in adapter.pairs.items():
        place = places.get(tensor)
        if place is None:
            raise AdapterError(f"{adapter.path} adapts {tensor}, which this base does not have", _RECONVERT)
        _check_pair(adapter, tensor, pair, place)


def _check_pair(adapter: Adapter, tensor: str, pair: LoraPair, place: Place) -> None:
    n_in, n_out = place.n_in, place.n_out
    if pair.a.shape[1] != n_in or pair.b.shape[0] != n_out:
        raise AdapterError(
            f"{adapter.path}: {tensor} is adapted from {pair.a.shape[1]} to {pair.b.shape[0]}, and the base's goes "
            f"from {n_in} to {n_out}",
            _RECONVERT,
        )
    if pair.rank > min(n_in, n_out):
        raise AdapterError(
            f"{adapter.path}: {tensor} has rank {pair.rank}, more than the weight's own {min(n_in, n_out)}",
            "Train it with a smaller rank",
        )
    if pair.a.shape[0] != pair.b.shape[1] or pair.a.shape[0] == 0:
        raise AdapterError(f"{adapter.path}: {tensor} has matrices of ranks {pair.a.shape[0]} and {pair.b.shape[1]}")
    if pair.b[place.frozen].any():
        raise AdapterError(
            f"{adapter.path}: {tensor} changes rows of K or V: {_CACHE_REASON}", "Adapt Q, O and the MLP only"
        )
