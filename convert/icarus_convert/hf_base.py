"""From a Hugging Face model to a GGUF base: read, checked and proved, then written beside its place and renamed."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from icarus_convert.hf_config import ModelConfig, add_keys, read_config
from icarus_convert.hf_folder import HfFolder, read_folder
from icarus_convert.hf_hub import fetch_model, hub_repository
from icarus_convert.hf_probe import check_ids
from icarus_convert.hf_tensors import Planned, plan
from icarus_convert.hf_vocabulary import Vocabulary, add_vocabulary, read_vocabulary
from icarus_convert.quantize import ftype_name, quantize
from icarus_convert.write import check_out
from icarus_local.engine.base import BaseFile
from icarus_local.errors import IcarusError

Progress = Callable[[str, int, int], None]

_FILE_TYPES = {
    gguf.GGMLQuantizationType.F32: gguf.LlamaFileType.ALL_F32,
    gguf.GGMLQuantizationType.F16: gguf.LlamaFileType.MOSTLY_F16,
    gguf.GGMLQuantizationType.BF16: gguf.LlamaFileType.MOSTLY_BF16,
}
# What libllama needs in a vocabulary before it takes a name for Phi-3's.
_PHI3_TOKENS = {"</s>", "<unk>", "<s>", "<|endoftext|>"}


@dataclass(frozen=True)
class Converted:
    """What was written, as the engine reads it; `kind` is the type of its matrices."""

    path: Path
    n_bytes: int
    name: str
    architecture: str
    kind: str
    family_id: str
    pre: str


def convert_base(
    source: str,
    out: Path,
    *,
    outtype: str = "auto",
    quantize_to: str | None = None,
    pre: str | None = None,
    name: str | None = None,
    revision: str | None = None,
    local_files_only: bool = False,
    force: bool = False,
    threads: int = 0,
    tell: Callable[[str], None] = lambda _line: None,
    progress: Progress = lambda _what, _done, _all: None,
) -> Converted:
    """Converts a model.

    Args:
        source: a folder, or OWNER/NAME of a model on the Hub.
        out: the file to write.
        outtype: type of its matrices: "f32", "f16", "bf16", or "auto" for their own.
        quantize_to: a type of `quantize.FTYPES`.
        pre: llama.cpp's name of the pre-tokenizer, where it is not recognised.
        name: the model's; the folder's or repository's otherwise.
        tell: is given lines for people.
        progress: is given what is done, and how far of how many tensors it is.

    Raises:
        IcarusError: with what is wrong; nothing was written then.
    """
    kind = ftype_name(quantize_to) if quantize_to is not None else None
    check_out(out, (), force)
    folder = _open(source, name, revision, local_files_only=local_files_only, tell=tell)
    config = read_config(folder)
    tensors = plan(folder, config, outtype)
    vocabulary = read_vocabulary(folder, config, pre)
    _check_space(out, tensors, quantised=kind is not None)
    named = fitting_name(folder.name, vocabulary)
    with _beside(out) as beside:
        try:
            # The vocabulary is proved before anything large is written, and once more on the finished file.
            write(beside("vocabulary"), named, config, vocabulary, [])
            check_ids(beside("vocabulary"), vocabulary.reference, vocabulary.user_defined, vocabulary.pre)
            finished = beside("part")
            write(finished, named, config, vocabulary, tensors, progress=progress)
            if kind is not None:
                finished = beside("quantised")
                quantize(
                    beside("part"),
                    finished,
                    kind,
                    threads=threads,
                    progress=lambda done, n: progress(f"quantised to {kind}", done, n),
                )
            base = BaseFile(finished)
            try:
                converted = Converted(
                    path=out,
                    n_bytes=finished.stat().st_size,
                    name=named,
                    architecture=base.hp.name,
                    kind=kind or file_type(tensors).name.rpartition("_")[2],
                    family_id=base.family_id,
                    pre=vocabulary.pre,
                )
            finally:
                base.close()
            check_ids(finished, vocabulary.reference, vocabulary.user_defined, vocabulary.pre)
            finished.replace(out)
        except OSError as error:
            raise IcarusError(f"{out} cannot be written: {error.strerror}") from error
    return converted


def _open(
    source: str, name: str | None, revision: str | None, *, local_files_only: bool, tell: Callable[[str], None]
) -> HfFolder:
    path = Path(source)
    repo = None if path.exists() else hub_repository(source)
    if repo is None:
        if revision is not None:
            raise IcarusError(f"{source} is no model on the Hub, and only those have revisions")
        return read_folder(path, name or path.resolve().name)
    folder = fetch_model(repo, revision, local_files_only=local_files_only, tell=tell)
    return read_folder(folder, name or repo.partition("/")[2])


def _check_space(out: Path, tensors: list[Planned], *, quantised: bool) -> None:
    wanted, free = sum(tensor.n_bytes for tensor in tensors), shutil.disk_usage(out.parent).free
    wanted = int(wanted * 1.6) if quantised else wanted
    if wanted > free:
        raise IcarusError(
            f"{out} needs {wanted / 2**20:,.0f} MiB while it is made, and {free / 2**20:,.0f} MiB are free there"
        )


@contextmanager
def _beside(out: Path) -> Iterator[Callable[[str], Path]]:
    """Names of temporary files beside `out`, which are gone afterwards however it ends."""
    made: set[Path] = set()

    def beside(kind: str) -> Path:
        path = out.with_name(f".{out.name}.{os.getpid()}.{kind}")
        made.add(path)
        return path

    try:
        yield beside
    finally:
        for path in made:
            path.unlink(missing_ok=True)


def fitting_name(name: str, vocabulary: Vocabulary) -> str:
    """The name under which libllama reads the control tokens as the tokenizer does.

    It takes a name with "phi-3" or "phi3" for a sign that they swallow the white space behind them.
    """
    strips = vocabulary.strips and set(vocabulary.texts) >= _PHI3_TOKENS
    named = re.search("phi-?3", name, re.IGNORECASE) is not None
    if named and not strips:
        return re.sub("phi-?3", "Phi 3", name, flags=re.IGNORECASE)
    return f"Phi-3 {name}" if strips and not named else name


def file_type(tensors: list[Planned]) -> gguf.LlamaFileType:
    """The file's type: that of most bytes of its matrices."""
    sizes: Counter[gguf.GGMLQuantizationType] = Counter()
    for tensor in tensors:
        if len(tensor.shape) > 1:
            sizes[tensor.kind] += tensor.n_bytes
    return _FILE_TYPES[sizes.most_common(1)[0][0]] if sizes else gguf.LlamaFileType.ALL_F32


def write(
    path: Path,
    name: str,
    config: ModelConfig,
    vocabulary: Vocabulary,
    tensors: list[Planned],
    *,
    progress: Progress = lambda _what, _done, _all: None,
) -> None:
    """Writes a GGUF file, one tensor in memory at a time.

    Raises:
        IcarusError: a tensor cannot be read, or does not fit its type. OSError: the file cannot be written.
    """
    writer = gguf.GGUFWriter(path, config.arch)
    try:
        writer.add_type("model")
        writer.add_name(name)
        writer.add_file_type(int(file_type(tensors)))
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        add_keys(writer, config)
        add_vocabulary(writer, vocabulary)
        for tensor in tensors:
            dtype = np.dtype("<f4" if tensor.kind == gguf.GGMLQuantizationType.F32 else "<f2")
            writer.add_tensor_info(tensor.name, tensor.shape, dtype, tensor.n_bytes, tensor.kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for i, tensor in enumerate(tensors, 1):
            writer.write_tensor_data(tensor.encoded())
            progress("written", i, len(tensors))
    finally:
        writer.close()
