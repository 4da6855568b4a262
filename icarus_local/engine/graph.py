"""The two-stream graph: encoder rows that write K and V, decoder rows that only read them, in one pass.

Follows llama.cpp's graphs (src/models/*.cpp, llama-graph.cpp) node for node where encoder rows are concerned, so that
their logits are `llama_decode`'s, bit for bit. What differs is ICaRus (arXiv 2603.13281): K and V come from encoder
rows alone, and LoRA touches decoder rows alone.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

from icarus_local.engine.bank import AdapterBank, LoraUse
from icarus_local.engine.base import BaseWeights
from icarus_local.engine.kv import KvCache
from icarus_local.engine.rope import BETA_FAST, BETA_SLOW
from icarus_local.ggml.context import Context
from icarus_local.ggml.library import HINT_HADAMARD, PREC_F32, TYPE_F16, TYPE_I32, TYPE_I64, load

_NODES_PER_LAYER = 96
_NODES_PER_LAYER_AND_RUN = 48
_NODES_PER_EXPERT = 4
_GATED = {"silu": "ggml_swiglu_split", "gelu": "ggml_geglu_split"}
_LEAST_WEIGHT_SUM = 6.103515625e-5  # the smallest normal F16: llama.cpp's guard against dividing by 0


@dataclass(frozen=True, slots=True)
class GraphSpec:
    """What makes two steps share a graph.

    `loras` are the adapter stacks that decoder rows read; `encoder_logits` asks for the head over encoder rows too.
    `verify` says that the rows are of one sequence and must have the bits of as many dual steps.
    """

    n_encode: int
    n_decode: int
    n_kv: int
    loras: tuple[LoraUse, ...] = ()
    encoder_logits: bool = False
    verify: bool = False

    @property
    def n_rows(self) -> int:
        """Rows of the step: encoder rows first, then decoder rows."""
        return self.n_encode + self.n_decode

    @property
    def n_output(self) -> int:
        """Rows of logits."""
        return self.n_rows if self.encoder_logits else self.n_decode


class _Place(NamedTuple):
    """Where LoRA stands on `m` maps from n_in to n_out that read the same states: addresses of all A and all B."""

    a: int
    b: int
    n_in: int
    n_out: int
    m: int


class Graph:
    """A built graph and its inputs (addresses of ggml tensors).

    Attributes:
        tokens: [n_rows] I32. positions: [n_rows] I32. cells: [n_encode] I64, where K and V go, or None.
        mask: [n_kv, n_rows] F16, 0 or -inf, or None where no layer looks at it. window_mask: likewise for layers that
            see a window.
        slots: by rank of a stack the slot of every decoder row, [1, n_decode] I32; none where all is on the CPU.
        logits: [n_vocab, n_output] F32, or None.
    """

    def __init__(self, spec: GraphSpec, base: BaseWeights, kv: KvCache, bank: AdapterBank, split: bool = False) -> None:
        """Builds it, without memory for its tensors; `split` is for a scheduler that spreads nodes over devices."""
        self.spec, self._split, self._ggml = spec, split, load()
        self._base, self._kv, self._bank, self._hp, self._arch = base, kv, bank, base.hp, base.hp.arch
        hp = self._hp
        per_layer = _NODES_PER_LAYER + _NODES_PER_LAYER_AND_RUN * sum(max(1, len(use.runs)) for use in spec.loras)
        self.n_nodes = (
            (per_layer + _NODES_PER_EXPERT * hp.n_expert_used) * hp.n_layer + 64 + 12 * spec.n_decode * spec.verify
        )
        self._owner = Context(self.n_nodes, self.n_nodes)
        self._context = self._owner.handle
        self.graph = self._ggml.ggml_new_graph_custom(self._context, self.n_nodes, False)
        self.tokens = self._input(TYPE_I32, spec.n_rows)
        self.positions = self._input(TYPE_I32, spec.n_rows)
        # Made by the first layer that looks at them: an input that nothing reads would be given no memory.
        self.mask: int | None = None
        self.window_mask: int | None = None
        self.cells = self._input(TYPE_I64, spec.n_encode) if spec.n_encode else None
        gathers = not all(bank.sums_columns(layer) for layer in range(hp.n_layer))
        self.slots = {use.rank: self._input(TYPE_I32, 1, spec.n_decode) for use in spec.loras if gathers}
        self.logits = self._build()

    def _input(self, kind: int, *shape: int) -> int:
        tensor = self._owner.tensor(kind, *shape)
        self._ggml.ggml_set_input(tensor)
        return tensor

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
        logits = self._map(self._base.head, self._norm(x, "output_norm"), self.spec.n_output)
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
        k = self._plain_linear(f"blk.{layer}.attn_k", h, n)
        k = self._rope(self._heads(k, hp.n_head_kv, n, layer, "k"), layer, 0, n)
        k = self._rotated(k, self._kv.k_rotation, layer)
        v = self._plain_linear(f"blk.{layer}.attn_v", h, n)
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
        g, ctx, hp = self._ggml, self._context, self._hp
        n = self.spec.n_rows - first
        (q,) = self._linear(layer, ("attn_q",), h, first)
        q = self._rope(self._heads(q, hp.n_head, n, layer, "q"), layer, first, n)
        scale = hp.attention_scale
        if self._arch.scaled_q:
            q, scale = g.ggml_scale(ctx, q, scale), 1.0
        q = self._rotated(q, self._kv.k_rotation, layer)
        if first and self.spec.verify:
            # A dual step attends with one row here, for which ggml has a kernel of its own.
            parts = [self._attend(self._rows(q, hp.n_embd_q, i, 1), layer, first + i, 1, scale) for i in range(n)]
            attended = functools.reduce(lambda a, b: int(g.ggml_concat(ctx, a, b, 1)), parts)
        else:
            attended = self._attend(q, layer, first, n, scale)
        attended = self._rotated(attended, self._kv.v_rotation, layer)
        return self._linear(layer, ("attn_output",), attended, first)[0]

    def _attend(self, q: int, layer: int, first: int, n: int, scale: float) -> int:
        """What `n` rows of Q see in the cache, [n_embd_q, n]; the first of them is the step's row `first`."""
        g, ctx, hp, n_kv = self._ggml, self._context, self._hp, self.spec.n_kv
        mask = self._mask_of(layer)
        if first:
            mask = g.ggml_view_2d(ctx, mask, n_kv, n, 2 * n_kv, 2 * n_kv * first)
        attended = g.ggml_flash_attn_ext(
            ctx,
            g.ggml_permute(ctx, g.ggml_reshape_3d(ctx, q, hp.n_embd_head, hp.n_head, n), 0, 2, 1, 3),
            self._cache_view(self._kv.k(layer)),
            self._cache_view(self._kv.v(layer)),
            mask,
            scale,
            0.0,
            hp.attn_softcap,
        )
        g.ggml_prec_set_acc(attended, PREC_F32)
        return int(g.ggml_reshape_2d(ctx, attended, hp.n_embd_q, n))

    def _mask_of(self, layer: int) -> int:
        shape = (self.spec.n_kv, self.spec.n_rows)
        if self._hp.windowed[layer]:
            self.window_mask = self.window_mask or self._input(TYPE_F16, *shape)
            return self.window_mask
        self.mask = self.mask or self._input(TYPE_F16, *shape)
        return self.mask

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
        probs = g.ggml_soft_max(ctx, self._plain_linear(f"blk.{layer}.ffn_gate_inp", h, self._lone(first)))
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

    def _plain_linear(self, name: str, x: int, lone: int) -> int:
        return self._biased(name, self._map(self._base.tensor(f"{name}.weight"), x, lone))

    def _map(self, weight: int, x: int, lone: int) -> int:
        """W x; where a dual step has one row and `verify` has `lone`, as a batch of one-row products.

        ggml has other kernels for one row than for several.
        """
        g, ctx = self._ggml, self._context
        if not (lone and self.spec.verify):
            return int(g.ggml_mul_mat(ctx, weight, x))
        y = g.ggml_mul_mat(ctx, weight, g.ggml_reshape_3d(ctx, x, int(g.ggml_nelements(x)) // lone, 1, lone))
        return int(g.ggml_reshape_2d(ctx, y, int(g.ggml_nelements(y)) // lone, lone))

    def _lone(self, first: int) -> int:
        """Rows of which a dual step has one, where the step's row `first` stands first: past the last K and V."""
        return self.spec.n_decode if first else 0

    def _biased(self, name: str, y: int) -> int:
        bias = self._base.optional(f"{name}.bias")
        return int(y if bias is None else self._ggml.ggml_add(self._context, y, bias))

    def _linear(self, layer: int, group: tuple[str, ...], x: int, first: int) -> list[int]:
        """W x of each module of an input group for all rows, plus B A x for decoder rows.

        `first` is the step's row that stands first in `x`.
        """
        start = self.spec.n_encode - first
        names = [f"blk.{layer}.{module}" for module in group]
        outputs = [self._map(self._base.tensor(f"{name}.weight"), x, self._lone(first)) for name in names]
        add = self._add_columns if self._bank.sums_columns(layer) else self._add_gathered
        for use in self.spec.loras if group in self._bank.groups(layer) else ():
            stack = self._bank.stack(use.rank)
            place = _Place(stack.a(layer, group), stack.b(layer, group), *self._bank.sizes(layer, group), len(group))
            outputs = add(use, place, x, start, outputs)
        return [self._biased(name, y) for name, y in zip(names, outputs, strict=True)]

    def _add_columns(self, use: LoraUse, place: _Place, x: int, start: int, outputs: list[int]) -> list[int]:
        """`outputs` plus B A x, adapter by adapter: A by dot products, B as a sum of its columns."""
        g, ctx, rank, (all_a, all_b, n_in, n_out, m) = self._ggml, self._context, use.rank, place
        a_row, b_row, low_row = 4 * n_in, 4 * n_out, 4 * m * rank
        for slot, row, n in use.runs:
            # One row to each matrix of the batch: rows then never share a kernel, whatever their number.
            rows = g.ggml_view_3d(ctx, x, n_in, 1, n, a_row, a_row, a_row * (start + row))
            a = g.ggml_view_2d(ctx, all_a, n_in, m * rank, a_row, slot * m * rank * a_row)
            low = g.ggml_mul_mat(ctx, a, rows)
            for i in range(m):
                b = g.ggml_view_2d(ctx, all_b, n_out, rank, b_row, (slot * m + i) * rank * b_row)
                part = g.ggml_view_2d(ctx, low, rank, n, low_row, 4 * rank * i)
                delta = g.ggml_out_prod(ctx, b, g.ggml_transpose(ctx, part))
                outputs[i] = self._add_rows(outputs[i], delta, n_out, start + row, n)
        return outputs

    def _add_gathered(self, use: LoraUse, place: _Place, x: int, start: int, outputs: list[int]) -> list[int]:
        """`outputs` plus B A x, all adapters of a stack at once: few nodes, for devices where each costs a launch."""
        g, ctx, rank, (all_a, all_b, n_in, n_out, m) = self._ggml, self._context, use.rank, place
        n, slots, capacity = self.spec.n_decode, self.slots[use.rank], self._bank.stack(use.rank).capacity
        b_row, size, low_row = 4 * rank, 4 * rank * n_out, 4 * m * rank
        rows = g.ggml_view_3d(ctx, x, n_in, 1, n, 4 * n_in, 4 * n_in, 4 * n_in * start)
        low = g.ggml_mul_mat_id(ctx, all_a, rows, slots)
        for i in range(m):
            b = g.ggml_view_3d(ctx, all_b, rank, n_out, capacity, b_row, m * size, i * size)
            part = low if m == 1 else g.ggml_view_3d(ctx, low, rank, 1, n, low_row, low_row, 4 * rank * i)
            delta = g.ggml_reshape_2d(ctx, g.ggml_mul_mat_id(ctx, b, part, slots), n_out, n)
            outputs[i] = self._add_rows(outputs[i], delta, n_out, start, n)
        return outputs

    def _add_rows(self, y: int, delta: int, width: int, start: int, n: int) -> int:
        """`y` with `delta` added to `n` of its rows from `start` on."""
        size, total = 4 * width, int(self._ggml.ggml_nelements(y)) // width
        if n == total:
            return int(self._ggml.ggml_add(self._context, y, delta))
        # A sum on one device must not be written into a product that lies on another.
        acc = self._ggml.ggml_acc if self._split else self._ggml.ggml_acc_inplace
        return int(acc(self._context, y, delta, size, size * total, size * total, size * start))

    def close(self) -> None:
        """Frees the graph; may be called twice."""
        self._owner.close()
