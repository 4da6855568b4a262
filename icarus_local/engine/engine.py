"""The engine: takes token ids, sequences and adapter ids, and gives logits. It knows no text, no chat, no agents."""

from __future__ import annotations

import ctypes
import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from icarus_local.engine.adapter_file import Adapter
from icarus_local.engine.bank import AdapterBank, LoraUse
from icarus_local.engine.base import BaseFile, BaseWeights, Report
from icarus_local.engine.cache import CellTable
from icarus_local.engine.executor import Backends, open_executor
from icarus_local.engine.graph import GraphSpec
from icarus_local.engine.kernels import rows_of_one_kernel
from icarus_local.engine.kv import KvCache, check_kv_type, kv_bytes_per_token
from icarus_local.engine.plan import measured_needs
from icarus_local.engine.rows import DecoderRows, Encode, make_rows
from icarus_local.errors import CancelledError, ContextFullError, IcarusError, RequestError
from icarus_local.ggml.library import STATUS_ABORTED, STATUS_SUCCESS, load

logger = logging.getLogger(__name__)

# Tokens of a `verify`: few sizes, so few graphs. From 64 rows, twice as many, ggml's CPU attention has another kernel.
VERIFY_SIZES = (2, 3, 4, 8, 16)
_N_KV_STEP = 256  # llama.cpp pads the cells that attention sees to this; equal steps need equal padding
_MANY = 16  # sequences that answer at once in the largest dual step reserved for
_DEFAULT_N_CTX = 4096
_MAX_THREADS = 512  # GGML_MAX_N_THREADS

Decode = Sequence[tuple[int, int | None]]
Logits = npt.NDArray[np.float32]


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
        report: Report | None = None,
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
            report: told how far it is.

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
        self._most_exact: int | None = None
        self._closed = False
        self._flag = ctypes.create_string_buffer(2)
        self.n_threads = n_threads or default_threads()
        with ExitStack() as stack:
            if report is not None:
                report(f"reading {base.name}", None)
            file = BaseFile(base)
            stack.callback(file.close)
            check_kv_type(file.hp, kv_type)
            self.n_ctx = _checked_n_ctx(file, n_ctx)
            self.notices = file.notices(self.n_ctx)
            largest = [GraphSpec(n_ubatch, 0, self.n_ctx), GraphSpec(_MANY, _MANY, self.n_ctx)]
            needs = measured_needs(file, self.n_ctx, kv_type, largest, max_adapters)
            placement = file.place(needs, device, gpu_layers, repack)
            logger.info("%s", placement.reason)
            self.base = BaseWeights(file, placement, report)
            stack.callback(self.base.close)
            self._kv = KvCache(file.hp, placement, self.n_ctx, kv_type)
            stack.callback(self._kv.close)
            self.cells = CellTable(self.n_ctx)
            self._bank = AdapterBank(self.base, max_adapters)
            stack.callback(self._bank.close)
            computing = list({d.handle: d for d in (*placement.layers, placement.head)}.values())
            self._backends = Backends(computing, placement.host, self.n_threads, ctypes.addressof(self._flag))
            stack.callback(self._backends.close)
            self._graphs = open_executor(self.base, self._kv, self._bank, self._backends, largest)
            stack.callback(self._graphs.close)
            self._stack = stack.pop_all()

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V that one token takes over all layers."""
        return kv_bytes_per_token(self.base.hp, self.kv_type)

    def memory(self) -> dict[str, int]:
        """Bytes by use: weights mapped from the file, weights copied, the cache, adapters, compute buffers."""
        self._check_open()
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
            AdapterError: it is for another base, or one of its tensors has no place. IcarusError: no memory for it.
        """
        self._check_open()
        return self._bank.add(adapter)

    def reserve_adapters(self, ranks: Sequence[int]) -> None:
        """Makes room for adapters of these ranks (`read_rank`), so that adding them allocates and copies nothing more.

        Without it a stack grows as adapters come, and its old and new place are in memory together.

        Raises:
            IcarusError: no memory for them.
        """
        self._check_open()
        self._bank.reserve(ranks)

    def remove_adapter(self, adapter_id: int) -> None:
        """Removes a resident adapter."""
        self._bank.remove(adapter_id)

    @property
    def adapter_bytes(self) -> int:
        """Bytes that resident adapters take."""
        return self._bank.n_bytes

    def bytes_of_adapter(self, adapter_id: int) -> int:
        """Bytes that an added adapter takes in memory, or would take there."""
        return self._bank.bytes_of(adapter_id)

    def is_resident(self, adapter_id: int) -> bool:
        """Whether an added adapter is in memory."""
        return self._bank.is_resident(adapter_id)

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
            CancelledError: `cancel` was called. AdapterError: an adapter that must be read again has changed on disk.
            IcarusError: no memory. Steps that were whole stay, the step in progress left no trace.
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

        Logits, K and V are the bits that as many dual steps give as long as there are no more tokens than `verifiable`.

        Args:
            sequence, tokens: what to append, 1 to VERIFY_SIZES[-1] token ids.
            adapter_id: of the agent that predicts.

        Returns:
            [len(tokens), n_vocab] float32.

        Raises:
            As `forward` does.
        """
        most = min(VERIFY_SIZES[-1], self._n_ubatch // 2)
        if not 1 <= len(tokens) <= most:
            raise RequestError(f"{len(tokens)} tokens to verify in one step; 1 to {most} are possible")
        self._check([(sequence, tokens)], [(sequence, adapter_id)])
        rows = [(sequence, adapter_id, len(tokens) - 1 - i) for i in range(len(tokens))]
        return self._step([(sequence, tokens)], rows, encoder_logits=False)

    @property
    def verifies_exactly(self) -> bool:
        """Whether `verify` can give the bits of dual steps: rows may not change kernels with their number."""
        return self._same_kernel() > 1

    def _same_kernel(self) -> int:
        """Tokens of a `verify` whose rows ggml multiplies as those of a dual step."""
        if self._most_exact is None:
            placement = self.base.placement
            if placement.mixed or not placement.head.is_cpu or placement.repacked:
                self._most_exact = 1
            else:
                rows = [2 * size for size in VERIFY_SIZES if 2 * size <= self._n_ubatch]
                self._most_exact = rows_of_one_kernel(self.base, self._backends.handles[-1], rows) // 2
        return self._most_exact

    def verifiable(self, exactly: bool = True) -> int:
        """How many tokens the next `verify` may have, and still be exact; 0 where not even one has room."""
        if not exactly:
            return min(VERIFY_SIZES[-1], self._n_ubatch // 2, self.cells.n_free)
        cells = self.cells.peek(self._same_kernel())
        # Attention must look at as many cells as for the first token alone.
        same = [cell for cell in cells if self._n_kv(int(cell) + 1) == self._n_kv(int(cells[0]) + 1)]
        return len(same)

    def _check_open(self) -> None:
        if self._closed:
            raise RequestError("the engine is closed")

    def _check(self, encode: Encode, decode: Decode) -> None:
        self._check_open()
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

    def _step(self, encode: Encode, decode: DecoderRows, encoder_logits: bool) -> Logits:
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

    def _compute(
        self, encode: Encode, decode: DecoderRows, encoder_logits: bool, cells: npt.NDArray[np.int64]
    ) -> Logits:
        n_kv = self._n_kv(int(cells.max()) + 1 if len(cells) else 0)
        uses = self._bank.use([adapter_id for _, adapter_id, _ in decode])
        # Where all layers gather, slots are an input, and steps of other speakers share the graph.
        loras = uses if self._bank.has_columns else tuple(LoraUse(use.rank, ()) for use in uses)
        verify = any(back for _, _, back in decode)
        spec = GraphSpec(len(cells), len(decode), n_kv, loras, encoder_logits, verify)
        rows = make_rows(self.cells, encode, decode, cells, n_kv=n_kv, window=self.base.hp.window)
        graph = self._graphs.get(spec)
        self._set(graph.tokens, rows.tokens)
        self._set(graph.positions, rows.positions)
        if graph.mask is not None:
            self._set(graph.mask, rows.mask)
        if graph.window_mask is not None and rows.window_mask is not None:
            self._set(graph.window_mask, rows.window_mask)
        if graph.cells is not None:
            self._set(graph.cells, cells)
        for use in uses if graph.slots else ():
            self._set(graph.slots[use.rank], use.slots(len(decode)))
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
        """K and V of a sequence's cells, in order of layer (K, then V) and position; for comparing."""
        return b"".join(rows.tobytes() for rows in self.kv_rows(sequence).values())

    def kv_rows(self, sequence: int) -> dict[str, npt.NDArray[np.uint8]]:
        """K and V of a sequence: "k.LAYER" and "v.LAYER" -> [length, bytes of a row] uint8, in order of position."""
        self._check_open()
        cells = self.cells.cells(sequence)
        layers = range(self.base.hp.n_layer)
        return {f"{part}.{layer}": self._kv.read(part, layer, cells) for layer in layers for part in "kv"}

    def restore(self, tokens: npt.NDArray[np.int32], rows: Mapping[str, npt.NDArray[np.uint8]]) -> int:
        """A new sequence with the K and V that `kv_rows` gave for these tokens; nothing is computed.

        Args:
            tokens: [length] int32. rows: as of `kv_rows`, of the same base and type of cache.

        Raises:
            RequestError: tokens or rows that cannot be this engine's. ContextFullError: no room. Nothing has changed.
        """
        self._check_open()
        shape = (len(tokens), self.kv_bytes_per_token // (2 * self.base.hp.n_layer))
        names = [f"{part}.{layer}" for layer in range(self.base.hp.n_layer) for part in "kv"]
        if set(rows) != set(names) or any(rows[name].shape != shape for name in names):
            raise RequestError("the rows are not those of this base and type of cache")
        if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.base.hp.n_vocab:
            raise RequestError(f"a token id is outside the vocabulary of {self.base.hp.n_vocab} tokens")
        cells = self.cells.reserve(len(tokens))
        for name in names:
            part, layer = name.split(".")
            self._kv.write(part, int(layer), cells, rows[name])
        sequence = self.cells.create()
        self.cells.commit(sequence, tokens.tolist(), cells)
        return sequence

    def close(self) -> None:
        """Frees everything; may be called twice."""
        self._closed = True
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
