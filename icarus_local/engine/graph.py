"""The two-stream graph: encoder rows that write K and V, decoder rows that only read them, in one pass.

Follows llama.cpp's graph of the `llama` architecture node for node where encoder rows are concerned, so that their
logits are `llama_decode`'s, bit for bit. What differs is ICaRus (arXiv 2603.13281): K and V come from encoder rows
alone, and LoRA touches decoder rows alone.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

from icarus_local.engine.bank import AdapterBank
from icarus_local.engine.base import ROPE_NORMAL, BaseWeights
from icarus_local.engine.tensors import TensorGroup
from icarus_local.ggml.library import PREC_F32, TYPE_F16, TYPE_I32, TYPE_I64, load
from icarus_local.ggml.prototypes import InitParams

_ROPE_BETA_FAST, _ROPE_BETA_SLOW = 32.0, 1.0  # YaRN's; without effect while ext_factor is 0
_NODES_PER_LAYER = 64
_NODES_PER_LAYER_AND_STACK = 40


@dataclass(frozen=True, slots=True)
class GraphSpec:
    """What makes two steps share a graph.

    `ranks` are the adapter stacks that decoder rows read; `encoder_logits` asks for the head over encoder rows too.
    """

    n_encode: int
    n_decode: int
    n_kv: int
    ranks: tuple[int, ...] = ()
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
        tokens: [n_rows] I32. positions: [n_rows] I32. cells: [n_encode] I64, where K and V go.
        mask: [n_kv, n_rows] F16, 0 or -inf. slots: per rank [1, n_decode] I32.
        logits: [n_vocab, n_output] F32, or None.
    """

    def __init__(self, spec: GraphSpec, base: BaseWeights, kv: TensorGroup, bank: AdapterBank) -> None:
        self.spec, self._ggml = spec, load()
        self._base, self._kv, self._bank, self._hp = base, kv, bank, base.hp
        nodes = (_NODES_PER_LAYER + _NODES_PER_LAYER_AND_STACK * len(spec.ranks)) * self._hp.n_layer + 64
        size = self._ggml.ggml_tensor_overhead() * nodes + self._ggml.ggml_graph_overhead_custom(nodes, False)
        self._context = self._ggml.ggml_init(InitParams(mem_size=size, mem_buffer=None, no_alloc=True))
        self.graph = self._ggml.ggml_new_graph_custom(self._context, nodes, False)
        self.tokens = self._input(TYPE_I32, spec.n_rows)
        self.positions = self._input(TYPE_I32, spec.n_rows)
        self.mask = self._input(TYPE_F16, spec.n_kv, spec.n_rows)
        self.cells = self._input(TYPE_I64, spec.n_encode) if spec.n_encode else None
        self.slots = {rank: self._input(TYPE_I32, 1, spec.n_decode) for rank in spec.ranks}
        self._rope_factors = base.optional("rope_freqs.weight")
        self.logits = self._build()

    def _input(self, kind: int, *shape: int) -> int:
        tensor = self._ggml.ggml_new_tensor(self._context, kind, len(shape), (ctypes.c_int64 * len(shape))(*shape))
        self._ggml.ggml_set_input(tensor)
        return int(tensor)

    def _expand(self, tensor: int) -> None:
        self._ggml.ggml_build_forward_expand(self.graph, tensor)

    def _build(self) -> int | None:
        g, ctx, spec = self._ggml, self._context, self.spec
        x = g.ggml_get_rows(ctx, self._base.tensor("token_embd.weight"), self.tokens)
        first = 0  # rows from here on are still carried
        for layer in range(self._hp.n_layer):
            h = self._norm(x, f"blk.{layer}.attn_norm.weight")
            if spec.n_encode:
                self._write_kv(h, layer)
            if layer == self._hp.n_layer - 1 and not spec.encoder_logits:
                # Past the last K and V nothing reads an encoder row.
                first = spec.n_encode
                if not spec.n_decode:
                    return None
                h, x = (self._rows(t, self._hp.n_embd, spec.n_encode, spec.n_decode) for t in (h, x))
            x = g.ggml_add(ctx, self._attention(h, layer, first), x)
            h = self._norm(x, f"blk.{layer}.ffn_norm.weight")
            gate = self._linear(f"blk.{layer}.ffn_gate", h, first)
            up = self._linear(f"blk.{layer}.ffn_up", h, first)
            x = g.ggml_add(ctx, self._linear(f"blk.{layer}.ffn_down", g.ggml_swiglu_split(ctx, gate, up), first), x)
        logits = g.ggml_mul_mat(ctx, self._base.head, self._norm(x, "output_norm.weight"))
        g.ggml_set_output(logits)
        self._expand(logits)
        return int(logits)

    def _norm(self, x: int, weight: str) -> int:
        normed = self._ggml.ggml_rms_norm(self._context, x, self._hp.norm_eps)
        return int(self._ggml.ggml_mul(self._context, normed, self._base.tensor(weight)))

    def _rows(self, x: int, width: int, start: int, n: int) -> int:
        """View of `n` rows of a contiguous F32 [width, rows] from row `start` on."""
        return int(self._ggml.ggml_view_2d(self._context, x, width, n, 4 * width, 4 * width * start))

    def _write_kv(self, h: int, layer: int) -> None:
        """K and V of the encoder rows, written to their cells. No adapter, and no decoder row, comes near them."""
        g, ctx, hp, n = self._ggml, self._context, self._hp, self.spec.n_encode
        h = self._rows(h, hp.n_embd, 0, n)
        k = self._plain_linear(f"blk.{layer}.attn_k", h)
        k = self._rope(g.ggml_reshape_3d(ctx, k, hp.n_embd_head, hp.n_head_kv, n), 0, n)
        v = self._plain_linear(f"blk.{layer}.attn_v", h)
        for cache, rows in ((f"k.{layer}", g.ggml_reshape_2d(ctx, k, hp.n_embd_kv, n)), (f"v.{layer}", v)):
            self._expand(g.ggml_set_rows(ctx, self._kv[cache], rows, self.cells))

    def _attention(self, h: int, layer: int, first: int) -> int:
        g, ctx, hp, n_kv = self._ggml, self._context, self._hp, self.spec.n_kv
        n = self.spec.n_rows - first
        q = self._linear(f"blk.{layer}.attn_q", h, first)
        q = self._rope(g.ggml_reshape_3d(ctx, q, hp.n_embd_head, hp.n_head, n), first, n)
        mask = self.mask if not first else g.ggml_view_2d(ctx, self.mask, n_kv, n, 2 * n_kv, 2 * n_kv * first)
        attended = g.ggml_flash_attn_ext(
            ctx,
            g.ggml_permute(ctx, q, 0, 2, 1, 3),
            self._cache_view(f"k.{layer}"),
            self._cache_view(f"v.{layer}"),
            mask,
            1.0 / math.sqrt(hp.n_embd_head),
            0.0,
            0.0,
        )
        g.ggml_prec_set_acc(attended, PREC_F32)
        attended = g.ggml_reshape_2d(ctx, attended, hp.n_embd_head * hp.n_head, n)
        return self._linear(f"blk.{layer}.attn_output", attended, first)

    def _cache_view(self, name: str) -> int:
        """The first n_kv cells as [n_embd_head, n_kv, n_head_kv]."""
        g, hp = self._ggml, self._hp
        kind = self._kv.type_of(name)
        view = g.ggml_view_3d(
            self._context,
            self._kv[name],
            hp.n_embd_head,
            hp.n_head_kv,
            self.spec.n_kv,
            g.ggml_row_size(kind, hp.n_embd_head),
            g.ggml_row_size(kind, hp.n_embd_kv),
            0,
        )
        return int(g.ggml_permute(self._context, view, 0, 2, 1, 3))

    def _rope(self, x: int, first: int, n: int) -> int:
        hp = self._hp
        positions = self._ggml.ggml_view_1d(self._context, self.positions, n, 4 * first)
        return int(
            self._ggml.ggml_rope_ext(
                self._context,
                x,
                positions,
                self._rope_factors,
                hp.rope_dims,
                ROPE_NORMAL,
                hp.n_ctx_train,
                hp.rope_freq_base,
                hp.rope_freq_scale,
                0.0,
                1.0,
                _ROPE_BETA_FAST,
                _ROPE_BETA_SLOW,
            )
        )

    def _plain_linear(self, name: str, x: int) -> int:
        y = self._ggml.ggml_mul_mat(self._context, self._base.tensor(f"{name}.weight"), x)
        return self._biased(name, y)

    def _biased(self, name: str, y: int) -> int:
        bias = self._base.optional(f"{name}.bias")
        return int(y if bias is None else self._ggml.ggml_add(self._context, y, bias))

    def _linear(self, name: str, x: int, first: int) -> int:
        """W x for all rows, plus B A x for decoder rows; `first` is the step's row that stands first in `x`."""
        g, ctx, n = self._ggml, self._context, self.spec.n_decode
        weight = f"{name}.weight"
        y = g.ggml_mul_mat(ctx, self._base.tensor(weight), x)
        if self.spec.ranks:
            n_in, n_out = self._base.lora_shapes[weight]
            start = self.spec.n_encode - first
            decoder = g.ggml_view_3d(ctx, x, n_in, 1, n, 4 * n_in, 4 * n_in, 4 * n_in * start)
            for rank in self.spec.ranks:
                group = self._bank.stack(rank).group
                low = g.ggml_mul_mat_id(ctx, group[f"{weight}.a"], decoder, self.slots[rank])
                delta = g.ggml_mul_mat_id(ctx, group[f"{weight}.b"], low, self.slots[rank])
                delta = g.ggml_reshape_2d(ctx, delta, n_out, n)
                y = self._add_rows(y, delta, n_out, start)
        return self._biased(name, y)

    def _add_rows(self, y: int, delta: int, width: int, start: int) -> int:
        """`y` with `delta` added to its rows from `start` on."""
        if start == 0:
            return int(self._ggml.ggml_add(self._context, y, delta))
        rows = self.spec.n_rows
        return int(
            self._ggml.ggml_acc_inplace(
                self._context, y, delta, 4 * width, 4 * width * rows, 4 * width * rows, 4 * width * start
            )
        )

    def close(self) -> None:
        """Frees the graph; may be called twice."""
        if self._context:
            self._ggml.ggml_free(self._context)
            self._context = None
