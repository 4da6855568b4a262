"""The two-stream graph: encoder rows that write K and V, decoder rows that only read them, in one pass.

Follows llama.cpp's graphs (src/models/*.cpp, llama-graph.cpp) node for node where encoder rows are concerned, so that
their logits are `llama_decode`'s, bit for bit. What differs is ICaRus (arXiv 2603.13281): K and V come from encoder
rows alone, and LoRA touches decoder rows alone.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from icarus_local.engine.bank import AdapterBank, LoraUse, StackKey
from icarus_local.engine.base import BaseWeights
from icarus_local.engine.kv import KvCache
from icarus_local.engine.rope import BETA_FAST, BETA_SLOW
from icarus_local.ggml.library import HINT_HADAMARD, PREC_F32, TYPE_F16, TYPE_I32, TYPE_I64, load
from icarus_local.ggml.prototypes import InitParams

_NODES_PER_LAYER = 96
_NODES_PER_LAYER_AND_STACK = 48
_NODES_PER_EXPERT = 4
_GATED = {"silu": "ggml_swiglu_split", "gelu": "ggml_geglu_split"}
_LEAST_WEIGHT_SUM = 6.103515625e-5  # the smallest normal F16: llama.cpp's guard against dividing by 0


@dataclass(frozen=True, slots=True)
class GraphSpec:
    """What makes two steps share a graph.

    `loras` are the adapter stacks that decoder rows read; `encoder_logits` asks for the head over encoder rows too.
    """

    n_encode: int
    n_decode: int
    n_kv: int
    loras: tuple[LoraUse, ...] = ()
    encoder_logits: bool = False

    @property
    def n_rows(self) -> int:
        """Rows of the step: encoder rows first, then decoder rows."""
        return self.n_encode + self.n_decode

    @property
    def n_output(self) -> int:
        """Rows of logits."""
        return self.n_rows if self.encoder_logits else self.n_decode


class Graph:
    """A built graph and its inputs (addresses of ggml tensors).

    Attributes:
        tokens: [n_rows] I32. positions: [n_rows] I32. cells: [n_encode] I64, where K and V go, or None.
        mask: [n_kv, n_rows] F16, 0 or -inf. window_mask: likewise for layers that see a window, or None.
        slots: per stack of which rows choose their own slot [1, n_decode] I32.
        logits: [n_vocab, n_output] F32, or None.
    """

    def __init__(self, spec: GraphSpec, base: BaseWeights, kv: KvCache, bank: AdapterBank) -> None:
        self.spec, self._ggml = spec, load()
        self._base, self._kv, self._bank, self._hp, self._arch = base, kv, bank, base.hp, base.hp.arch
        hp = self._hp
        per_layer = _NODES_PER_LAYER + _NODES_PER_LAYER_AND_STACK * len(spec.loras)
        self.n_nodes = (per_layer + _NODES_PER_EXPERT * hp.n_expert_used) * hp.n_layer + 64
        size = self._ggml.ggml_tensor_overhead() * self.n_nodes
        size += self._ggml.ggml_graph_overhead_custom(self.n_nodes, False)
        self._context = self._ggml.ggml_init(InitParams(mem_size=size, mem_buffer=None, no_alloc=True))
        self.graph = self._ggml.ggml_new_graph_custom(self._context, self.n_nodes, False)
        self.tokens = self._input(TYPE_I32, spec.n_rows)
        self.positions = self._input(TYPE_I32, spec.n_rows)
        self.mask = self._input(TYPE_F16, spec.n_kv, spec.n_rows)
        self.window_mask = self._input(TYPE_F16, spec.n_kv, spec.n_rows) if any(hp.windowed) else None
        self.cells = self._input(TYPE_I64, spec.n_encode) if spec.n_encode else None
        gathered = [use.key for use in spec.loras if use.slot is None]
        self.slots: dict[StackKey, int] = {key: self._input(TYPE_I32, 1, spec.n_decode) for key in gathered}
        self.logits = self._build()

    def _input(self, kind: int, *shape: int) -> int:
        tensor = self._ggml.ggml_new_tensor(self._context, kind, len(shape), (ctypes.c_int64 * len(shape))(*shape))
        self._ggml.ggml_set_input(tensor)
        return int(tensor)

    def _expand(self, tensor: int) -> None:
        self._ggml.ggml_build_forward_expand(self.graph, tensor)

    # -- the stack of layers -------------------------------------------------------------------------------------------

    def _build(self) -> int | None:
        g, ctx, hp, spec = self._ggml, self._context, self._hp, self.spec
        x = g.ggml_get_rows(ctx, self._base.tensor("token_embd.weight"), self.tokens)
        if hp.embedding_scale:
            x = g.ggml_scale(ctx, x, hp.embedding_scale)
        first = 0  # rows from here on are still carried
        for layer in range(hp.n_layer):
            h = self._norm(x, f"blk.{layer}.attn_norm") if self._arch.pre_norms else x
            if spec.n_encode:
                self._write_kv(h, layer)
            if layer == hp.n_layer - 1 and not spec.encoder_logits and spec.n_encode:
                # Past the last K and V nothing reads an encoder row.
                first = spec.n_encode
                if not spec.n_decode:
                    return None
                h, x = (self._rows(t, hp.n_embd, spec.n_encode, spec.n_decode) for t in (h, x))
            x = self._residual(self._attention(h, layer, first), x, layer, "post_attention_norm")
            h = self._norm(x, f"blk.{layer}.ffn_norm") if self._arch.pre_norms else x
            mlp = self._experts(h, layer, first) if self._arch.experts else self._mlp(h, layer, first)
            x = self._residual(mlp, x, layer, "post_ffw_norm")
        return self._head(x)

    def _head(self, x: int) -> int:
        g, ctx, hp = self._ggml, self._context, self._hp
        logits = g.ggml_mul_mat(ctx, self._base.head, self._norm(x, "output_norm"))
        logits = self._biased("output", logits)
        if hp.logit_scale:
            logits = g.ggml_scale(ctx, logits, 1.0 / hp.logit_scale)
        if hp.logit_softcap:
            logits = g.ggml_scale(ctx, logits, 1.0 / hp.logit_softcap)
            logits = g.ggml_scale(ctx, g.ggml_tanh(ctx, logits), hp.logit_softcap)
        g.ggml_set_output(logits)
        self._expand(logits)
        return int(logits)

    def _residual(self, y: int, x: int, layer: int, norm: str) -> int:
        if self._arch.post_norms:
            y = self._norm(y, f"blk.{layer}.{norm}")
        if self._hp.residual_scale:
            y = self._ggml.ggml_scale(self._context, y, self._hp.residual_scale)
        return int(self._ggml.ggml_add(self._context, y, x))

    def _norm(self, x: int, weight: str) -> int:
        normed = self._ggml.ggml_rms_norm(self._context, x, self._hp.norm_eps)
        return int(self._ggml.ggml_mul(self._context, normed, self._base.tensor(f"{weight}.weight")))

    def _rows(self, x: int, width: int, start: int, n: int) -> int:
        """View of `n` rows of a contiguous F32 [width, rows] from row `start` on."""
        return int(self._ggml.ggml_view_2d(self._context, x, width, n, 4 * width, 4 * width * start))

    # -- attention -----------------------------------------------------------------------------------------------------

    def _write_kv(self, h: int, layer: int) -> None:
        """K and V of the encoder rows, written to their cells. No adapter, and no decoder row, comes near them."""
        g, ctx, hp, n = self._ggml, self._context, self._hp, self.spec.n_encode
        h = self._rows(h, hp.n_embd, 0, n)
        k = self._plain_linear(f"blk.{layer}.attn_k", h)
        k = self._rope(self._heads(k, hp.n_head_kv, n, layer, "k"), layer, 0, n)
        k = self._rotated(k, self._kv.k_rotation, layer)
        v = self._plain_linear(f"blk.{layer}.attn_v", h)
        v = self._rotated(v, self._kv.v_rotation, layer)
        for cache, rows in ((self._kv.k(layer), k), (self._kv.v(layer), v)):
            self._expand(g.ggml_set_rows(ctx, cache, g.ggml_reshape_2d(ctx, rows, hp.n_embd_kv, n), self.cells))

    def _heads(self, x: int, n_head: int, n: int, layer: int, part: str) -> int:
        """Q or K as [n_embd_head, heads, n], normed where the architecture does."""
        name, width = f"blk.{layer}.attn_{part}_norm", self._hp.n_embd_head
        if self._arch.qk_norm == "full":
            x = self._norm(x, name)
        x = int(self._ggml.ggml_reshape_3d(self._context, x, width, n_head, n))
        return self._norm(x, name) if self._arch.qk_norm == "head" else x

    def _attention(self, h: int, layer: int, first: int) -> int:
        g, ctx, hp, n_kv = self._ggml, self._context, self._hp, self.spec.n_kv
        n = self.spec.n_rows - first
        (q,) = self._linear(layer, ("attn_q",), h, first)
        q = self._rope(self._heads(q, hp.n_head, n, layer, "q"), layer, first, n)
        scale = hp.attention_scale
        if self._arch.scaled_q:
            q, scale = g.ggml_scale(ctx, q, scale), 1.0
        q = self._rotated(q, self._kv.k_rotation, layer)
        mask = self.window_mask if hp.windowed[layer] else self.mask
        if first:
            mask = g.ggml_view_2d(ctx, mask, n_kv, n, 2 * n_kv, 2 * n_kv * first)
        attended = g.ggml_flash_attn_ext(
            ctx,
            g.ggml_permute(ctx, q, 0, 2, 1, 3),
            self._cache_view(self._kv.k(layer)),
            self._cache_view(self._kv.v(layer)),
            mask,
            scale,
            0.0,
            hp.attn_softcap,
        )
        g.ggml_prec_set_acc(attended, PREC_F32)
        attended = g.ggml_reshape_2d(ctx, attended, hp.n_embd_q, n)
        attended = self._rotated(attended, self._kv.v_rotation, layer)
        return self._linear(layer, ("attn_output",), attended, first)[0]

    def _rotated(self, x: int, size: int, layer: int) -> int:
        """`x`, [a, b, …] with a multiple of `size` values, turned block by block; as it is for a size of 0."""
        if not size:
            return x
        g, ctx = self._ggml, self._context
        flat = g.ggml_reshape_2d(ctx, x, size, int(g.ggml_nelements(x)) // size)
        turned = g.ggml_mul_mat(ctx, self._kv.rotation(size, layer), flat)
        g.ggml_mul_mat_set_hint(turned, HINT_HADAMARD)
        return int(g.ggml_reshape(ctx, turned, x))

    def _cache_view(self, cache: int) -> int:
        """The first n_kv cells as [n_embd_head, n_kv, n_head_kv]."""
        g, hp, kind = self._ggml, self._hp, self._kv.kind
        view = g.ggml_view_3d(
            self._context,
            cache,
            hp.n_embd_head,
            hp.n_head_kv,
            self.spec.n_kv,
            g.ggml_row_size(kind, hp.n_embd_head),
            g.ggml_row_size(kind, hp.n_embd_kv),
            0,
        )
        return int(g.ggml_permute(self._context, view, 0, 2, 1, 3))

    def _rope(self, x: int, layer: int, first: int, n: int) -> int:
        rope = self._hp.rope_of(layer)
        return int(
            self._ggml.ggml_rope_ext(
                self._context,
                x,
                self._ggml.ggml_view_1d(self._context, self.positions, n, 4 * first),
                self._base.rope_factors(layer, self._kv.n_cells),
                rope.dims,
                rope.kind,
                rope.n_ctx_orig,
                rope.freq_base,
                rope.freq_scale,
                rope.ext_factor,
                rope.attn_factor,
                BETA_FAST,
                BETA_SLOW,
            )
        )

    # -- the MLP -------------------------------------------------------------------------------------------------------

    def _mlp(self, h: int, layer: int, first: int) -> int:
        gate, up = self._linear(layer, ("ffn_gate", "ffn_up"), h, first)
        gated = self._gated(gate, up)
        return self._linear(layer, ("ffn_down",), gated, first)[0]

    def _gated(self, gate: int, up: int) -> int:
        return int(getattr(self._ggml, _GATED[self._arch.activation])(self._context, gate, up))

    def _experts(self, h: int, layer: int, first: int) -> int:
        """A mixture of frozen experts: every row, of either stream, goes to those that its own state chooses."""
        g, ctx, hp = self._ggml, self._context, self._hp
        n, used = self.spec.n_rows - first, hp.n_expert_used
        probs = g.ggml_soft_max(ctx, self._plain_linear(f"blk.{layer}.ffn_gate_inp", h))
        chosen = g.ggml_argsort_top_k(ctx, probs, used)
        weights = g.ggml_get_rows(ctx, g.ggml_reshape_3d(ctx, probs, 1, hp.n_expert, n), chosen)
        weights = g.ggml_reshape_2d(ctx, weights, used, n)
        total = g.ggml_clamp(ctx, g.ggml_sum_rows(ctx, weights), _LEAST_WEIGHT_SUM, float("inf"))
        weights = g.ggml_reshape_3d(ctx, g.ggml_div(ctx, weights, total), 1, used, n)
        rows = g.ggml_reshape_3d(ctx, h, hp.n_embd, 1, n)
        gate, up = (
            g.ggml_mul_mat_id(ctx, self._base.tensor(f"blk.{layer}.ffn_{part}_exps.weight"), rows, chosen)
            for part in ("gate", "up")
        )
        down = self._base.tensor(f"blk.{layer}.ffn_down_exps.weight")
        experts = g.ggml_mul(ctx, g.ggml_mul_mat_id(ctx, down, self._gated(gate, up), chosen), weights)
        width = 4 * hp.n_embd
        parts = [g.ggml_view_2d(ctx, experts, hp.n_embd, n, used * width, i * width) for i in range(used)]
        summed = parts[0]
        for part in parts[1:]:
            summed = g.ggml_add(ctx, summed, part)
        return int(summed if used > 1 else g.ggml_cont(ctx, summed))

    # -- linear maps and LoRA ------------------------------------------------------------------------------------------

    def _plain_linear(self, name: str, x: int) -> int:
        y = self._ggml.ggml_mul_mat(self._context, self._base.tensor(f"{name}.weight"), x)
        return self._biased(name, y)

    def _biased(self, name: str, y: int) -> int:
        bias = self._base.optional(f"{name}.bias")
        return int(y if bias is None else self._ggml.ggml_add(self._context, y, bias))

    def _linear(self, layer: int, group: tuple[str, ...], x: int, first: int) -> list[int]:
        """W x of each module of an input group for all rows, plus B A x for decoder rows.

        `first` is the step's row that stands first in `x`.
        """
        g, ctx, start = self._ggml, self._context, self.spec.n_encode - first
        names = [f"blk.{layer}.{module}" for module in group]
        outputs = [int(g.ggml_mul_mat(ctx, self._base.tensor(f"{name}.weight"), x)) for name in names]
        for use in self.spec.loras if self._bank.has(layer, group) else ():
            deltas = self._deltas(use, layer, group, x, start)
            outputs = [self._add_rows(y, *delta, start) for y, delta in zip(outputs, deltas, strict=True)]
        return [self._biased(name, y) for name, y in zip(names, outputs, strict=True)]

    def _deltas(self, use: LoraUse, layer: int, group: tuple[str, ...], x: int, start: int) -> list[tuple[int, int]]:
        """B A x of the decoder rows for each module: (tensor [n_out, n_decode], n_out)."""
        g, ctx, n, m = self._ggml, self._context, self.spec.n_decode, len(group)
        rank, kind = use.key.rank, use.key.kind
        n_in, n_out = self._bank.sizes(layer, group)
        stack = self._bank.stack(use.key)
        a, b = stack.a(layer, group), stack.b(layer, group)
        a_row, b_row = g.ggml_row_size(kind, n_in), g.ggml_row_size(kind, rank)
        a_slot, b_module = m * rank * a_row, n_out * b_row
        # One row to each matrix of the batch: rows then never share a kernel, whatever their number.
        rows = g.ggml_view_3d(ctx, x, n_in, 1, n, 4 * n_in, 4 * n_in, 4 * n_in * start)
        if use.slot is not None:
            matrix = g.ggml_view_2d(ctx, a, n_in, m * rank, a_row, use.slot * a_slot)
            low = g.ggml_mul_mat(ctx, matrix, rows)
        else:
            low = g.ggml_mul_mat_id(ctx, a, rows, self.slots[use.key])
        deltas = []
        for i in range(m):
            part = low if m == 1 else g.ggml_view_3d(ctx, low, rank, 1, n, 4 * m * rank, 4 * m * rank, 4 * rank * i)
            if use.slot is not None:
                offset = (use.slot * m + i) * b_module
                delta = g.ggml_mul_mat(ctx, g.ggml_view_2d(ctx, b, rank, n_out, b_row, offset), part)
            else:
                slots = g.ggml_view_3d(ctx, b, rank, n_out, stack.capacity, b_row, m * b_module, i * b_module)
                delta = g.ggml_mul_mat_id(ctx, slots, part, self.slots[use.key])
            deltas.append((int(g.ggml_reshape_2d(ctx, delta, n_out, n)), n_out))
        return deltas

    def _add_rows(self, y: int, delta: int, width: int, start: int) -> int:
        """`y` with `delta` added to its rows from `start` on."""
        if start == 0:
            return int(self._ggml.ggml_add(self._context, y, delta))
        size = 4 * width
        rest = size * self.spec.n_rows
        return int(self._ggml.ggml_acc_inplace(self._context, y, delta, size, rest, rest, size * start))

    def close(self) -> None:
        """Frees the graph; may be called twice."""
        if self._context:
            self._ggml.ggml_free(self._context)
            self._context = None
