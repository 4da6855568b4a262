"""Which weights a model has: names, shapes, places in the file, and which of them a LoRA may change."""

from __future__ import annotations

from dataclasses import dataclass

from icarus_local.engine.adapter_file import Part, Place
from icarus_local.engine.architecture import Hyperparameters
from icarus_local.errors import ModelFileError
from icarus_local.ggml.gguf import GgufFile, TensorInfo
from icarus_local.ggml.library import TYPE_F32, load

MATRIX, ROWS, VECTOR, EXPERTS = "matrix", "rows", "vector", "experts"

# Types that ggml's CPU kernels multiply and take rows of (enum ggml_type): all but Q8_1, Q8_K, integers and F64.
WEIGHT_TYPES = frozenset({0, 1, 2, 3, 6, 7, 8, *range(10, 15), *range(16, 24), 29, 30, 34, 35, *range(39, 43)})
TOKENS, HEAD = "token_embd.weight", "output.weight"


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the graph.

    Attributes:
        name: in the graph. source: in the file, where fused tensors hold several of the graph's.
        shape: in ggml's order. first_row: where it begins in its source.
        use: "matrix" (multiplied), "rows" (looked up), "vector" or "experts".
        layer: the layer that it belongs to, or None.
        required: whether the file must have it.
    """

    name: str
    source: str
    shape: tuple[int, ...]
    use: str
    layer: int | None
    required: bool = True
    first_row: int = 0


def weight_table(hp: Hyperparameters) -> dict[str, Weight]:
    """Every tensor that the graph of a model may use, by name."""
    table = [
        Weight(TOKENS, TOKENS, (hp.n_embd, hp.n_vocab), ROWS, None),
        Weight("output_norm.weight", "output_norm.weight", (hp.n_embd,), VECTOR, None),
        Weight(HEAD, HEAD, (hp.n_embd, hp.n_vocab), MATRIX, None, required=False),
    ]
    if "output" in hp.arch.biases:
        table.append(Weight("output.bias", "output.bias", (hp.n_vocab,), VECTOR, None, required=False))
    table += [Weight(name, name, (hp.rope.dims // 2,), VECTOR, None, required=False) for name in hp.rope.factors]
    for layer in range(hp.n_layer):
        table += _layer(hp, layer)
    return {weight.name: weight for weight in table}


def _layer(hp: Hyperparameters, layer: int) -> list[Weight]:
    arch, prefix = hp.arch, f"blk.{layer}."
    q, kv, d = hp.n_embd_q, hp.n_embd_kv, hp.n_embd
    # linear maps: name -> (tensor in the file, n_in, n_out, first row there)
    qkv = "attn_qkv" if arch.fused else None
    maps = {
        "attn_q": (qkv or "attn_q", d, q, 0),
        "attn_k": (qkv or "attn_k", d, kv, q if qkv else 0),
        "attn_v": (qkv or "attn_v", d, kv, q + kv if qkv else 0),
        "attn_output": ("attn_output", q, d, 0),
    }
    if arch.experts:
        maps["ffn_gate_inp"] = ("ffn_gate_inp", d, hp.n_expert, 0)
    else:
        maps["ffn_gate"] = ("ffn_up" if arch.fused else "ffn_gate", d, hp.n_ff, 0)
        maps["ffn_up"] = ("ffn_up", d, hp.n_ff, hp.n_ff if arch.fused else 0)
        maps["ffn_down"] = ("ffn_down", hp.n_ff, d, 0)
    weights = []
    for name, (source_name, n_in, n_out, row) in maps.items():
        source = prefix + source_name
        weights.append(Weight(f"{prefix}{name}.weight", f"{source}.weight", (n_in, n_out), MATRIX, layer, True, row))
        if name in arch.biases:
            weights.append(Weight(f"{prefix}{name}.bias", f"{source}.bias", (n_out,), VECTOR, layer, False, row))
    vectors = {"attn_norm": d, "ffn_norm": d} if arch.pre_norms else {}
    if arch.post_norms:
        vectors |= {"post_attention_norm": d, "post_ffw_norm": d}
    if arch.qk_norm:
        full = arch.qk_norm == "full"
        vectors |= {"attn_q_norm": q if full else hp.n_embd_head, "attn_k_norm": kv if full else hp.n_embd_head}
    for name, width in vectors.items():
        weights.append(Weight(f"{prefix}{name}.weight", f"{prefix}{name}.weight", (width,), VECTOR, layer))
    if arch.experts:
        experts = {"ffn_gate_exps": (d, hp.n_ff), "ffn_up_exps": (d, hp.n_ff), "ffn_down_exps": (hp.n_ff, d)}
        for name, shape in experts.items():
            full_name = f"{prefix}{name}.weight"
            weights.append(Weight(full_name, full_name, (*shape, hp.n_expert), EXPERTS, layer))
    return weights


def lora_places(hp: Hyperparameters) -> dict[str, Place]:
    """Where a LoRA may stand, by the name of the file's tensor: the rows of B that go to each weight of the graph."""
    places: dict[str, Place] = {}
    for weight in weight_table(hp).values():
        module = weight.name.split(".")[-2]
        if module not in ("attn_q", "attn_output", "ffn_gate", "ffn_up", "ffn_down") or weight.use != MATRIX:
            continue
        n_in, n_out = weight.shape
        part = Part(weight.name, weight.first_row, weight.first_row + n_out)
        known = places.get(weight.source)
        parts = (*known.parts, part) if known else (part,)
        places[weight.source] = Place(n_in, source_shape(hp, weight)[1], parts)
    return places


def source_shape(hp: Hyperparameters, weight: Weight) -> tuple[int, ...]:
    """Shape of the file's tensor that holds a weight."""
    module = weight.source.split(".")[-2]
    if module == "attn_qkv":
        return (*weight.shape[:-1], hp.n_embd_q + 2 * hp.n_embd_kv)
    if module == "ffn_up" and hp.arch.fused:
        return (*weight.shape[:-1], 2 * hp.n_ff)
    return weight.shape


def check_tensors(file: GgufFile, hp: Hyperparameters) -> dict[str, Weight]:
    """The weights that the file has, by their name in the graph.

    Raises:
        ModelFileError: a tensor is missing, has no place, or is of a shape or type that cannot be computed with.
    """
    found, sources = {}, set()
    for weight in weight_table(hp).values():
        info = file.tensors.get(weight.source)
        if info is None:
            if weight.required:
                raise ModelFileError(
                    f"{file.path} lacks the tensor {weight.source}", "Convert or fetch the model again"
                )
            continue
        _check_tensor(file, info, source_shape(hp, weight), weight.use)
        found[weight.name] = weight
        sources.add(weight.source)
    for name in file.tensors:
        if name not in sources:
            raise ModelFileError(
                f"{file.path} holds the tensor {name}, which has no place in the architecture {hp.name}",
                "It is not a plain model of that architecture",
            )
    if HEAD not in found:
        # A tied head: the embeddings once more, multiplied instead of looked up.
        found[HEAD] = Weight(HEAD, TOKENS, (hp.n_embd, hp.n_vocab), MATRIX, None)
    return found


def _check_tensor(file: GgufFile, info: TensorInfo, shape: tuple[int, ...], use: str) -> None:
    # A last dimension of 1 is not told from none.
    trimmed = shape
    while len(trimmed) > 1 and trimmed[-1] == 1:
        trimmed = trimmed[:-1]
    if info.shape != trimmed:
        raise ModelFileError(f"{file.path}: tensor {info.name} has the shape {info.shape}, not {shape}")
    allowed = {TYPE_F32} if use == VECTOR else WEIGHT_TYPES
    if info.type not in allowed:
        name = load().ggml_type_name(info.type)
        raise ModelFileError(
            f"{file.path}: tensor {info.name} is of the type {name.decode() if name else info.type}, which cannot be "
            "computed with here",
            "Quantise the model to another type",
        )
