"""A Hugging Face folder as a base, without its weights: what an adapter must know of it is what its GGUF would say.

A GGUF is laid out as `icarus-convert base` would write it, of which only keys, tensor table and norms are written; the
matrices are holes in a sparse temporary file, so nothing large is read or stored.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import numpy as np

from icarus_convert.hf_base import file_type, fitting_name
from icarus_convert.hf_config import add_keys, read_config
from icarus_convert.hf_folder import read_folder
from icarus_convert.hf_tensors import Planned, plan
from icarus_convert.hf_vocabulary import add_vocabulary, read_vocabulary
from icarus_local.errors import IcarusError
from icarus_local.ggml.gguf import GgufFile

_ALIGNMENT = 32


@contextmanager
def as_gguf(folder: Path) -> Iterator[GgufFile]:
    """The folder's model as an open GGUF of keys, table and norms; it is gone afterwards.

    Raises:
        IcarusError: no model that can be converted, or the package `tokenizers` is missing.
    """
    model = read_folder(folder, folder.resolve().name)
    config = read_config(model)
    tensors = plan(model, config, "f32")
    vocabulary = read_vocabulary(model, config, None)
    with tempfile.TemporaryDirectory(prefix="icarus-convert-") as directory:
        path = Path(directory) / "base.gguf"
        try:
            writer = gguf.GGUFWriter(path, config.arch)
            writer.add_type("model")
            writer.add_name(fitting_name(model.name, vocabulary))
            writer.add_file_type(int(file_type(tensors)))
            add_keys(writer, config)
            add_vocabulary(writer, vocabulary)
            for tensor in tensors:
                writer.add_tensor_info(tensor.name, tensor.shape, np.dtype("<f4"), tensor.n_bytes, tensor.kind)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            writer.close()
            _write_vectors(path, tensors)
        except OSError as error:
            raise IcarusError(f"{path} cannot be written: {error.strerror}", "Set TMPDIR to another place") from error
        with GgufFile(path) as file:
            yield file


def _write_vectors(path: Path, tensors: list[Planned]) -> None:
    """Writes the data of 1-D tensors in their places, and leaves holes for the others."""
    with path.open("r+b") as file:
        position = _aligned(path.stat().st_size)
        for tensor in tensors:
            if len(tensor.shape) == 1:
                file.seek(position)
                file.write(tensor.encoded().tobytes())
            position += _aligned(tensor.n_bytes)
        file.truncate(position)


def _aligned(n_bytes: int) -> int:
    return n_bytes + -n_bytes % _ALIGNMENT
