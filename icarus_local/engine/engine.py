"""The engine: takes token ids, sequences and adapter ids, and gives logits. It knows no text, no chat, no agents."""

from __future__ import annotations

import ctypes
import logging
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from icarus_local.engine.adapter_file import Adapter
from icarus_local.engine.bank import AdapterBank
from icarus_local.engine.base import BaseFile, BaseWeights
from icarus_local.engine.cache import HIDDEN, VISIBLE, CellTable
from icarus_local.engine.executor import Backends, open_executor
from icarus_local.engine.graph import GraphSpec
from icarus_local.engine.kv import KvCache, check_kv_type, kv_bytes_per_token
from icarus_local.engine.plan import measured_needs
from icarus_local.errors import CancelledError, ContextFullError, IcarusError, RequestError
from icarus_local.ggml.library import STATUS_ABORTED, STATUS_SUCCESS, load

logger = logging.getLogger(__name__)

_N_KV_STEP = 256  # llama.cpp pads the cells that attention sees to this; equal steps need equal padding
_MANY = 16  # sequences that answer at once in the largest dual step reserved for
_DEFAULT_N_CTX = 4096
_MAX_THREADS = 512  # GGML_MAX_N_THREADS
_MAX_VERIFY = 31  # with as many encoder rows: from 64 rows on ggml's CPU attention takes another kernel

Encode = Sequence[tuple[int, Sequence[int]]]
Decode = Sequence[tuple[int, int | None]]
Logits = npt.NDArray[np.float32]
_Rows = Sequence[tuple[int, int | None, int]]  # decoder rows: sequence, adapter, how far before the sequence's end


@dataclass(frozen=True, slots=True)
class StepResult:
    """Logits of one call to `forward`.

    Attributes:
        decoder: [len(decode), n_vocab] float32, what each decoder row predicts.
        encoder: [encoded tokens, n_vocab] float32 where asked for, else [0, n_vocab].
    """

    decoder: Logits
    encoder: Logits


def default_threads() -> int:
    """Threads for the CPU: all of up to four processors, half of more (hyperthreads share an arithmetic unit)."""
    try:
        n = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        n = os.cpu_count() or 1
    return n if n <= 4 else n // 2


class Engine:
    """One base, one KV cache, any number of sequences and adapters. To be used from one thread; `cancel` from any.

    Attributes:
        base: the frozen weights. n_ctx: cells of the cache. kv_type: type of K and V.
        n_threads: of the CPU. native_s: seconds spent in ggml so far. notices: what users of this base should know.
    """

    def __init__(
        self,
        base: Path,
        n_ctx: int | None = None,
        kv_type: str = "f16",
        *,
        n_ubatch: int = 512,
        n_threads: int | None = None,
        device: str = "auto",
        gpu_layers: int | None = None,
        repack: bool | None = None,
        max_adapters: int | None = None,
    ) -> None:
        """Loads a base.

        Args:
            base: GGUF file.
            n_ctx: tokens the cache holds, rounded up to 256; default the model's, at most 4096.
            kv_type: type of K and V: f16, f32, q8_0 or q4_0.
            n_ubatch: most rows of one step.
            n_threads: CPU threads.
            device: "auto", "cpu", or a name of ggml's registry.
            gpu_layers: layers on the device, the head being one more; None for what its memory holds.
            repack: whether the CPU's weights are repacked for its matrix kernels; None to decide by their types.
            max_adapters: adapters in memory at a time; the least recently used goes, and is read again when needed.

        Raises:
            ModelFileError: the file cannot be computed exactly. RequestError: an argument is out of range.
            IcarusError: memory does not suffice.
        """
        if not 1 <= n_ubatch <= 4096:
            raise RequestError(f"n_ubatch is {n_ubatch}, outside 1 to 4096")
        if n_threads is not None and not 1 <= n_threads <= _MAX_THREADS:
            raise RequestError(f"{n_threads} threads are outside 1 to {_MAX_THREADS}")
        self.kv_type, self._n_ubatch = kv_type, n_ubatch
        self._ggml = load()
        self.native_s = 0.0
        self._flag = ctypes.create_string_buffer(2)
        self.n_threads = n_threads or default_threads()
        with ExitStack() as stack:
            file = BaseFile(base)
            stack.callback(file.close)
            check_kv_type(file.hp, kv_type)
            self.n_ctx = _checked_n_ctx(file, n_ctx)
            self.notices = file.notices(self.n_ctx)
            largest = [GraphSpec(n_ubatch, 0, self.n_ctx), GraphSpec(_MANY, _MANY, self.n_ctx)]
            needs = measured_needs(file, self.n_ctx, kv_type, largest, max_adapters)
            placement = file.place(needs, device, gpu_layers, repack)
            logger.info("%s", placement.reason)
            self.base = BaseWeights(file, placement)
            stack.callback(self.base.close)
            self._kv = KvCache(file.hp, placement, self.n_ctx, kv_type)
            stack.callback(self._kv.close)
            self.cells = CellTable(self.n_ctx)
            self._bank = AdapterBank(self.base, max_adapters)
            stack.callback(self._bank.close)
            computing = list({d.handle: d for d in (*placement.layers, placement.head)}.values())
            backends = Backends(computing, placement.host, self.n_threads, ctypes.addressof(self._flag))
            stack.callback(backends.close)
            self._graphs = open_executor(self.base, self._kv, self._bank, backends, largest)
            stack.callback(self._graphs.close)
            self._stack = stack.pop_all()

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V that one token takes over all layers."""
        return kv_bytes_per_token(self.base.hp, self.kv_type)

    def memory(self) -> dict[str, int]:
        """Bytes by use: weights mapped from the file, weights copied, the cache, adapters, compute buffers."""
        return {
            "mapped": self.base.n_bytes,
            "copied": self.base.resident_bytes,
            "cache": self._kv.n_bytes,
            "adapters": self._bank.n_bytes,
            "compute": self._graphs.n_bytes,
        }

    # -- adapters ------------------------------------------------------------------------------------------------------

    def add_adapter(self, adapter: Adapter) -> int:
        """Makes an adapter resident and returns its id.

        Raises:
            AdapterError: it is for another base, or one of its tensors has no place.
        """
        return self._bank.add(adapter)

    def remove_adapter(self, adapter_id: int) -> None:
        """Removes a resident adapter."""
        self._bank.remove(adapter_id)

    @property
    def adapter_bytes(self) -> int:
        """Bytes that resident adapters take."""
        return self._bank.n_bytes

    @property
    def n_resident_adapters(self) -> int:
        """Adapters in memory."""
        return self._bank.n_resident

    # -- the step ------------------------------------------------------------------------------------------------------

    def forward(self, encode: Encode = (), decode: Decode = (), encoder_logits: bool = False) -> StepResult:
        """Appends tokens to sequences, then predicts.

        One token in each of several sequences, with as many decoder rows, goes through the graph together (a dual
        step). Anything longer is encoded first, in steps of `n_ubatch` rows without decoder rows, and decoded in a step
        of its own: first logits come from the same shape however the context came to be there.

        Args:
            encode: (sequence, token ids) to append, in order.
            decode: (sequence, adapter id or None for the base): one decoder row each, at the sequence's last token
                after `encode`.
            encoder_logits: also give the base's logits at every encoded token.

        Raises:
            RequestError: a sequence, token or adapter that does not exist. ContextFullError: no room. Nothing has
                changed in either case.
            CancelledError: `cancel` was called; steps that were whole stay, the step in progress left no trace.
        """
        encode = [(sequence, tokens) for sequence, tokens in encode if len(tokens)]
        self._check(encode, decode)
        rows = [(sequence, adapter_id, 0) for sequence, adapter_id in decode]
        dual = bool(encode and decode) and all(len(tokens) == 1 for _, tokens in encode)
        if dual and len(encode) + len(decode) <= self._n_ubatch:
            logits = self._step(encode, rows, encoder_logits)
            n = len(encode) if encoder_logits else 0
            return StepResult(decoder=logits[n:], encoder=logits[:n])
        chunks = [self._step(chunk, (), encoder_logits) for chunk in self._chunks(encode)]
        empty = np.empty((0, self.base.hp.n_vocab), np.float32)
        decoder = self._step((), rows, False) if decode else empty
        return StepResult(decoder=decoder, encoder=np.concatenate([empty, *chunks]) if encoder_logits else empty)

    def verify(self, sequence: int, tokens: Sequence[int], adapter_id: int) -> Logits:
        """Appends tokens to a sequence and predicts after each of them, in one step; `truncate` drops those not wanted.

        On the CPU, with weights that are not repacked, the logits and the K and V are the bits that as many dual steps
        give, as long as there are no more tokens than `verifiable`.

        Args:
            sequence, tokens: what to append, 1 to 31 token ids.
            adapter_id: of the agent that predicts.

        Returns:
            [len(tokens), n_vocab] float32.

        Raises:
            As `forward` does.
        """
        self._check([(sequence, tokens)], [(sequence, adapter_id)])
        if not 1 <= len(tokens) <= _MAX_VERIFY or 2 * len(tokens) > self._n_ubatch:
            raise RequestError(f"{len(tokens)} tokens to verify in one step; 1 to {_MAX_VERIFY} are possible")
        rows = [(sequence, adapter_id, len(tokens) - 1 - i) for i in range(len(tokens))]
        return self._step([(sequence, tokens)], rows, encoder_logits=False)

    @property
    def verifies_exactly(self) -> bool:
        """Whether `verify` gives the bits of dual steps: rows may not change kernels with their number."""
        placement = self.base.placement
        return not placement.mixed and placement.head.is_cpu and not placement.repacked

    def verifiable(self) -> int:
        """How many tokens the next `verify` may have and still be exact: attention must look at as many cells."""
        cells = self.cells.peek(_MAX_VERIFY)
        same = [i for i, cell in enumerate(cells) if self._n_kv(int(cell) + 1) == self._n_kv(int(cells[0]) + 1)]
        return len(same) if len(cells) else 0

    def _check(self, encode: Encode, decode: Decode) -> None:
        n_vocab = self.base.hp.n_vocab
        growing: dict[int, int] = {}
        for sequence, tokens in encode:
            ids = np.asarray(tokens)
            if ids.ndim != 1 or ids.dtype.kind not in "iu":
                raise RequestError("token ids must be a list of whole numbers")
            if ids.min() < 0 or ids.max() >= n_vocab:
                bad = ids[(ids < 0) | (ids >= n_vocab)][0]
                raise RequestError(f"token id {bad} is outside the vocabulary of {n_vocab} tokens")
            if sequence in growing:
                raise RequestError(f"sequence {sequence} is named twice in one call")
            growing[sequence] = self.cells.length(sequence) + len(ids)
            if growing[sequence] > self.n_ctx:
                raise ContextFullError(
                    f"the context holds {self.n_ctx} tokens and {growing[sequence]} are needed",
                    "Shorten the question, start a new conversation, or give a larger --n-ctx",
                )
        self.cells.check_free(sum(len(tokens) for _, tokens in encode))
        if len(decode) > self._n_ubatch:
            raise RequestError(f"{len(decode)} decoder rows in one step; {self._n_ubatch} are possible")
        self._bank.check(adapter_id for _, adapter_id in decode)
        for sequence, _ in decode:
            if not growing.get(sequence) and self.cells.length(sequence) == 0:
                raise RequestError(f"sequence {sequence} is empty: there is no token to decode at")

    def _chunks(self, encode: Encode) -> list[list[tuple[int, Sequence[int]]]]:
        """Splits what is to be encoded into steps of at most n_ubatch rows, in order."""
        chunks: list[list[tuple[int, Sequence[int]]]] = []
        room = 0
        for sequence, tokens in encode:
            start = 0
            while start < len(tokens):
                if not room:
                    chunks.append([])
                    room = self._n_ubatch
                part = tokens[start : start + room]
                chunks[-1].append((sequence, part))
                start, room = start + len(part), room - len(part)
        return chunks

    def _step(self, encode: Encode, decode: _Rows, encoder_logits: bool) -> Logits:
        """One pass through one graph; all or nothing."""
        cells = self.cells.reserve(sum(len(tokens) for _, tokens in encode))
        try:
            logits = self._compute(encode, decode, encoder_logits, cells)
        except BaseException:
            self.cells.give_back(cells)
            raise
        start = 0
        for sequence, tokens in encode:
            self.cells.commit(sequence, tokens, cells[start : start + len(tokens)])
            start += len(tokens)
        return logits

    def _n_kv(self, end: int) -> int:
        """Cells that attention looks at where `end` is one past the highest that a step writes."""
        end = max(self.cells.end, end)
        return min(self.n_ctx, max(_N_KV_STEP, -(-end // _N_KV_STEP) * _N_KV_STEP))

    def _compute(self, encode: Encode, decode: _Rows, encoder_logits: bool, cells: npt.NDArray[np.int64]) -> Logits:
        n_kv = self._n_kv(int(cells.max()) + 1 if len(cells) else 0)
        loras = self._bank.use([adapter_id for _, adapter_id, _ in decode])
        verify = any(back for _, _, back in decode)
        spec = GraphSpec(len(cells), len(decode), n_kv, loras, encoder_logits, verify)
        tokens, positions, mask = self._rows(encode, decode, cells, n_kv)
        graph = self._graphs.get(spec)
        self._set(graph.tokens, tokens)
        self._set(graph.positions, positions)
        self._set(graph.mask, mask)
        if graph.window_mask is not None:
            self._set(graph.window_mask, self._windowed(encode, decode, positions, mask, cells))
        if graph.cells is not None:
            self._set(graph.cells, cells)
        for use in spec.loras if graph.slots else ():
            self._set(graph.slots[use.rank], np.array(graph.slots_of_rows(use), np.int32))
        if self._flag[0] != b"\0":
            # Devices that cannot stop inside a step stop between two.
            self._flag[0] = b"\0"
            raise CancelledError("the step was cancelled")
        start = time.perf_counter()
        status = self._graphs.compute(graph)
        self.native_s += time.perf_counter() - start
        if status == STATUS_ABORTED:
            self._flag[0] = b"\0"
            raise CancelledError("the step was cancelled")
        if status != STATUS_SUCCESS:
            raise IcarusError(f"the device failed to compute a step (ggml status {status})")
        logits = np.empty((spec.n_output, self.base.hp.n_vocab), np.float32)
        if graph.logits is not None:
            self._ggml.ggml_backend_tensor_get(graph.logits, logits.ctypes.data, 0, logits.nbytes)
        return logits

    def _rows(
        self, encode: Encode, decode: _Rows, cells: npt.NDArray[np.int64], n_kv: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float16]]:
        """Tokens [rows], positions [rows] and mask [rows, n_kv] of a step whose new K and V go to `cells`."""
        n_rows = len(cells) + len(decode)
        tokens, positions = np.empty(n_rows, np.int32), np.empty(n_rows, np.int32)
        mask = np.empty((n_rows, n_kv), np.float16)
        start = 0
        fresh: dict[int, tuple[Sequence[int], npt.NDArray[np.int64]]] = {}
        for sequence, ids in encode:
            n, length = len(ids), self.cells.length(sequence)
            rows, own = slice(start, start + n), cells[start : start + n]
            tokens[rows] = ids
            positions[rows] = np.arange(length, length + n)
            mask[rows] = self.cells.mask(sequence)[:n_kv]
            mask[np.arange(start, start + n)[:, None], own] = np.where(np.tri(n, dtype=bool), VISIBLE, HIDDEN)
            fresh[sequence] = (ids, own)
            start += n
        for row, (sequence, _, back) in enumerate(decode, start):
            length = self.cells.length(sequence)
            mask[row] = self.cells.mask(sequence)[:n_kv]
            if sequence in fresh:
                ids, own = fresh[sequence]
                n = len(ids) - back
                tokens[row], positions[row] = ids[n - 1], length + n - 1
                mask[row, own[:n]] = VISIBLE
            else:
                tokens[row] = self.cells.tokens(sequence)[-1]
                positions[row] = length - 1
        return tokens, positions, mask

    def _windowed(
        self,
        encode: Encode,
        decode: _Rows,
        positions: npt.NDArray[np.int32],
        mask: npt.NDArray[np.float16],
        cells: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.float16]:
        """`mask` for layers that see only the last `window` positions of each row's sequence, itself included."""
        windowed = mask.copy()
        start = 0
        fresh: dict[int, npt.NDArray[np.int32]] = {}
        for sequence, ids in encode:
            at = self._position_of_cells(sequence, mask.shape[1])
            at[cells[start : start + len(ids)]] = positions[start : start + len(ids)]
            fresh[sequence] = at
            self._hide(windowed, slice(start, start + len(ids)), positions, at)
            start += len(ids)
        for row, (sequence, _, _) in enumerate(decode, start):
            if sequence not in fresh:
                fresh[sequence] = self._position_of_cells(sequence, mask.shape[1])
            self._hide(windowed, slice(row, row + 1), positions, fresh[sequence])
        return windowed

    def _position_of_cells(self, sequence: int, n_kv: int) -> npt.NDArray[np.int32]:
        at = np.zeros(n_kv, np.int32)
        cells = self.cells.cells(sequence)
        at[cells] = np.arange(len(cells))
        return at

    def _hide(
        self,
        mask: npt.NDArray[np.float16],
        rows: slice,
        positions: npt.NDArray[np.int32],
        at: npt.NDArray[np.int32],
    ) -> None:
        mask[rows][positions[rows, None] - at[None, :] >= self.base.hp.window] = HIDDEN

    def _set(self, tensor: int, data: npt.NDArray[Any]) -> None:
        self._ggml.ggml_backend_tensor_set(tensor, data.ctypes.data, 0, data.nbytes)

    @property
    def n_graphs(self) -> int:
        """Graphs that are built and kept."""
        return self._graphs.n_graphs

    # -- stopping, looking, closing ------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Stops the step in progress, or the next one. May be called from any thread."""
        self._flag[0] = b"\1"

    def clear_cancel(self) -> None:
        """Forgets a `cancel` that no step has seen."""
        self._flag[0] = b"\0"

    def kv_bytes(self, sequence: int) -> bytes:
        """K and V of a sequence's cells, in order of layer (K, then V) and position; for comparing and saving."""
        cells = self.cells.cells(sequence)
        rows = (self._kv.read(part, layer, cells) for layer in range(self.base.hp.n_layer) for part in "kv")
        return b"".join(part.tobytes() for part in rows)

    def close(self) -> None:
        """Frees everything; may be called twice."""
        self._stack.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _checked_n_ctx(file: BaseFile, n_ctx: int | None) -> int:
    limit = file.hp.n_ctx_train
    if n_ctx is None:
        n_ctx = min(limit, _DEFAULT_N_CTX)
    if not 1 <= n_ctx <= limit:
        raise RequestError(f"n_ctx is {n_ctx}; {file.path} was trained for 1 to {limit}", "Give another --n-ctx")
    return -(-n_ctx // _N_KV_STEP) * _N_KV_STEP
