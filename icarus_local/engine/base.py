"""The frozen base model: hyperparameters and weights of one GGUF file, checked before ggml sees them."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from icarus_local.engine.adapter_file import MODULES
from icarus_local.engine.identity import family_id
from icarus_local.errors import ModelFileError
from icarus_local.ggml.gguf import GgufFile, TensorInfo
from icarus_local.ggml.library import BUFFER_USAGE_WEIGHTS, STATUS_SUCCESS, TYPE_F32, load

ARCHITECTURES = ("llama",)
ROPE_NORMAL = 0  # GGML_ROPE_TYPE_NORMAL: pairs of neighbours, as `llama` GGUF files order the rows of Q and K

# Types that ggml's CPU kernels multiply and take rows of (enum ggml_type).
_WEIGHT_TYPES = frozenset({0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 16, 17, 18, 19, 20, 21, 22, 23, 29, 30, 34, 35, 39})
_BUFFER_ALIGNMENT = 32  # what ggml asserts of a tensor's address on the CPU


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """What the graph needs to know of an architecture; names as in llama.cpp."""

    architecture: str
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    n_embd_head: int
    n_vocab: int
    n_ctx_train: int
    norm_eps: float
    rope_dims: int
    rope_freq_base: float
    rope_freq_scale: float

    @property
    def n_embd_kv(self) -> int:
        """Width of K and of V for one token in one layer."""
        return self.n_head_kv * self.n_embd_head


def _read_hyperparameters(file: GgufFile) -> Hyperparameters:
    general_type = file.value("general.type")
    if general_type == "adapter":
        raise ModelFileError(f"{file.path} is a LoRA adapter, not a base model", "Give the base with --base")
    arch = file.require("general.architecture", str)
    if arch not in ARCHITECTURES:
        raise ModelFileError(
            f"{file.path} is of the architecture {arch!r}; this version runs {', '.join(ARCHITECTURES)}",
            "Use a base of one of these",
        )

    def integer(key: str, default: int | None = None, low: int = 1, high: int = 1 << 24) -> int:
        key = f"{arch}.{key}"
        value = default if default is not None and key not in file else file.require(key, int)
        if not low <= value <= high:
            raise ModelFileError(f"{file.path}: key {key} is {value}, outside {low} to {high}")
        return int(value)

    def number(key: str, default: float | None = None) -> float:
        key = f"{arch}.{key}"
        value = default if default is not None and key not in file else file.require(key, float)
        if not 0 < value < 1e12:
            raise ModelFileError(f"{file.path}: key {key} is {value}, which no model has")
        return float(value)

    n_embd = integer("embedding_length")
    n_head = integer("attention.head_count", high=4096)
    n_head_kv = integer("attention.head_count_kv", default=n_head, high=4096)
    n_embd_head = integer("attention.key_length", default=n_embd // n_head)
    _refuse_what_is_not_computed(file, arch, n_embd_head)
    if n_head % n_head_kv or n_embd % n_head:
        raise ModelFileError(
            f"{file.path}: {n_head} heads over {n_head_kv} KV heads of a width of {n_embd} do not divide evenly"
        )
    rope_dims = integer("rope.dimension_count", default=n_embd_head)
    if rope_dims > n_embd_head or rope_dims % 2:
        raise ModelFileError(f"{file.path}: rope over {rope_dims} of {n_embd_head} dimensions is not possible")
    tokens = file.tensors.get("token_embd.weight")
    if tokens is None or len(tokens.shape) != 2:
        raise ModelFileError(f"{file.path} lacks the tensor token_embd.weight", "Convert the model again")
    n_texts = file.array_length("tokenizer.ggml.tokens")
    if n_texts != tokens.shape[1]:
        raise ModelFileError(
            f"{file.path} has {n_texts} token texts and {tokens.shape[1]} embeddings: it cannot be talked to",
            "Convert the model again, with its tokenizer",
        )
    return Hyperparameters(
        architecture=arch,
        n_layer=integer("block_count", high=4096),
        n_embd=n_embd,
        n_ff=integer("feed_forward_length"),
        n_head=n_head,
        n_head_kv=n_head_kv,
        n_embd_head=n_embd_head,
        n_vocab=tokens.shape[1],
        n_ctx_train=integer("context_length", high=1 << 30),
        norm_eps=number("attention.layer_norm_rms_epsilon"),
        rope_dims=rope_dims,
        rope_freq_base=number("rope.freq_base", 10000.0),
        rope_freq_scale=_rope_freq_scale(file, arch),
    )


def _rope_freq_scale(file: GgufFile, arch: str) -> float:
    """llama.cpp's rule: a missing type is linear, the factor may stand under its old name, and 0 is none."""
    if file.value(f"{arch}.rope.scaling.type") == "none":
        return 1.0
    for key in (f"{arch}.rope.scaling.factor", f"{arch}.rope.scale_linear"):
        if key in file:
            factor = file.require(key, float)
            if not 0 <= factor < 1e6:
                raise ModelFileError(f"{file.path}: key {key} is {factor}, which no model has")
            return 1.0 / factor if factor else 1.0
    return 1.0


def _refuse_what_is_not_computed(file: GgufFile, arch: str, n_embd_head: int) -> None:
    """Keys of the architecture whose meaning this graph does not have: ignored, they would give other logits."""
    scaling = file.value(f"{arch}.rope.scaling.type")
    if scaling not in (None, "none", "linear"):
        raise ModelFileError(
            f"{file.path} scales its rope by {scaling!r}; this version knows none, linear and Llama 3's factors"
        )
    if file.value(f"{arch}.expert_count"):
        raise ModelFileError(f"{file.path} is a mixture of experts, which this version does not run")
    for key, neutral in (
        ("attention.value_length", n_embd_head),
        ("attention.clamp_kqv", 0.0),
        ("attention.scale", 0.0),
        ("rope.scaling.attn_factor", 1.0),
        ("attention.sliding_window", 0),
        ("attention.max_alibi_bias", 0.0),
        ("logit_scale", 0.0),
        ("residual_scale", 0.0),
        ("embedding_scale", 0.0),
    ):
        value = file.value(f"{arch}.{key}")
        if value is not None and value != neutral:
            raise ModelFileError(f"{file.path} sets {arch}.{key} to {value}, which this version does not compute")


def weight_shapes(hp: Hyperparameters) -> dict[str, tuple[int, ...]]:
    """Shapes that the architecture demands, in ggml's order (n_in, n_out), by tensor name; biases are optional."""
    n_embd_q = hp.n_head * hp.n_embd_head
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (hp.n_embd, hp.n_vocab),
        "output_norm.weight": (hp.n_embd,),
    }
    for i in range(hp.n_layer):
        block = {
            "attn_norm": (hp.n_embd,),
            "attn_q": (hp.n_embd, n_embd_q),
            "attn_k": (hp.n_embd, hp.n_embd_kv),
            "attn_v": (hp.n_embd, hp.n_embd_kv),
            "attn_output": (n_embd_q, hp.n_embd),
            "ffn_norm": (hp.n_embd,),
            "ffn_gate": (hp.n_embd, hp.n_ff),
            "ffn_up": (hp.n_embd, hp.n_ff),
            "ffn_down": (hp.n_ff, hp.n_embd),
        }
        shapes.update({f"blk.{i}.{name}.weight": shape for name, shape in block.items()})
    return shapes


def _lora_shapes(hp: Hyperparameters) -> dict[str, tuple[int, int]]:
    shapes = weight_shapes(hp)
    return {name: (shape[0], shape[1]) for name, shape in shapes.items() if name.split(".")[-2] in MODULES}


def _check_tensors(file: GgufFile, hp: Hyperparameters) -> None:
    required = weight_shapes(hp)
    optional: dict[str, tuple[int, ...]] = {
        "output.weight": (hp.n_embd, hp.n_vocab),
        "rope_freqs.weight": (hp.rope_dims // 2,),
    }
    for name, shape in required.items():
        if len(shape) == 2 and name.startswith("blk."):
            optional[name.removesuffix("weight") + "bias"] = shape[1:]
    for name, shape in required.items():
        if name not in file.tensors:
            raise ModelFileError(f"{file.path} lacks the tensor {name}", "Convert or fetch the model again")
        _check_tensor(file, file.tensors[name], shape)
    for name, info in file.tensors.items():
        if name in required:
            continue
        if name not in optional:
            raise ModelFileError(
                f"{file.path} holds the tensor {name}, which has no place in the architecture {hp.architecture}",
                "It is not a plain model of that architecture",
            )
        _check_tensor(file, info, optional[name])


def _check_tensor(file: GgufFile, info: TensorInfo, shape: tuple[int, ...]) -> None:
    if info.shape != shape:
        raise ModelFileError(f"{file.path}: tensor {info.name} has the shape {info.shape}, not {shape}")
    allowed = _WEIGHT_TYPES if len(shape) == 2 else {TYPE_F32}
    if info.type not in allowed:
        name = load().ggml_type_name(info.type)
        raise ModelFileError(
            f"{file.path}: tensor {info.name} is of the type {name.decode() if name else info.type}, which cannot be "
            "computed with here",
            "Quantise the model to another type",
        )


class BaseWeights:
    """A base model whose weights lie where the CPU uses them: in the mapped file itself.

    Attributes:
        hp: the hyperparameters.
        family_id: which model it is, whatever its quantisation (see `identity`).
        n_bytes: bytes of weights.
        lora_shapes: (n_in, n_out) of every weight that a decoder's LoRA may change, by tensor name.
    """

    def __init__(self, path: Path, device: int) -> None:
        """Opens and checks the file, and maps its weights.

        Args:
            path: GGUF file.
            device: address of the ggml device (CPU).

        Raises:
            ModelFileError: anything in the file that cannot be computed exactly.
        """
        self.path = path
        self._ggml = load()
        self._tensors: dict[str, int] = {}
        with ExitStack() as stack:
            file = stack.enter_context(GgufFile(path))
            self.hp = _read_hyperparameters(file)
            _check_tensors(file, self.hp)
            self.family_id = family_id(file)
            self.lora_shapes = _lora_shapes(self.hp)
            self.n_bytes = sum(info.n_bytes for info in file.tensors.values())
            self._map(file, device, stack)
            self._stack = stack.pop_all()

    def _map(self, file: GgufFile, device: int, stack: ExitStack) -> None:
        with self.path.open("rb") as handle:
            mapping = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        view = np.frombuffer(mapping, np.uint8)
        if any(info.offset % _BUFFER_ALIGNMENT for info in file.tensors.values()):
            # ggml asserts the alignment of every address.
            raise ModelFileError(
                f"{self.path} aligns its tensors to less than {_BUFFER_ALIGNMENT} bytes", "Convert the model again"
            )
        buffer = self._ggml.ggml_backend_dev_buffer_from_host_ptr(
            device, view.ctypes.data, len(view), max(info.n_bytes for info in file.tensors.values())
        )
        if not buffer:
            raise ModelFileError(f"{self.path}: the device cannot use the mapped file")
        self._mapping = view  # keeps the pages mapped
        stack.callback(self._ggml.ggml_backend_buffer_free, buffer)
        self._ggml.ggml_backend_buffer_set_usage(buffer, BUFFER_USAGE_WEIGHTS)
        for name, info in file.tensors.items():
            tensor = self._ggml.ggml_get_tensor(file.ctx, name.encode())
            status = self._ggml.ggml_backend_tensor_alloc(buffer, tensor, view.ctypes.data + info.offset)
            if status != STATUS_SUCCESS:
                raise ModelFileError(f"{self.path}: tensor {name} cannot be placed")
            self._tensors[name] = tensor

    def tensor(self, name: str) -> int:
        """Address of a required weight."""
        return self._tensors[name]

    def optional(self, name: str) -> int | None:
        """Address of a weight that not every file has, or None."""
        return self._tensors.get(name)

    @property
    def head(self) -> int:
        """The output head; a tied one is the token embedding."""
        return self._tensors.get("output.weight") or self._tensors["token_embd.weight"]

    def close(self) -> None:
        """Frees the weights; may be called twice. No graph over them may be used afterwards."""
        self._tensors = {}
        self._stack.close()


def host_memory() -> int:
    """Bytes of memory that can still be taken on this machine."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    ggml = load()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ggml.ggml_backend_dev_memory(ggml.ggml_backend_dev_by_type(0), ctypes.byref(free), ctypes.byref(total))
    return free.value or total.value
