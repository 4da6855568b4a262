"""Hugging Face folders of tiny random models with real tokenizers, as `save_pretrained` writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from icarus_convert.cli import main as icarus_convert
from tests.relatives import relative_model
from tests.tiny import CHATML, CONTROLS, MERGES, byte_alphabet


def tiny_tokenizer(pre: Any = None, template: str | None = CHATML, merges: Sequence[str] = MERGES, **model: Any) -> Any:
    """The `transformers` tokenizer of the tiny models' vocabulary; `pre` splits text (GPT-2's way by default)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    texts = [*CONTROLS, *byte_alphabet(), *(merge.replace(" ", "") for merge in merges)]
    ids = {text: token for token, text in enumerate(texts)}
    tokenizer = Tokenizer(models.BPE(ids, [tuple(merge.split(" ")) for merge in merges], **model))
    tokenizer.pre_tokenizer = pre or pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROLS])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=CONTROLS[2], chat_template=template)


def save(folder: Path, variant: str = "llama", tokenizer: Any = None, model: Any = None, **how: Any) -> Path:
    """A model of tests/relatives.py with its tokenizer, in `folder`; `how` goes to the model's `save_pretrained`."""
    (model or relative_model(variant)).save_pretrained(folder, **how)
    (tokenizer or tiny_tokenizer()).save_pretrained(folder)
    return folder


def run(folder: Path | str, out: Path, *options: str) -> Result:
    """The command's result."""
    return CliRunner().invoke(icarus_convert, ["base", str(folder), "-o", str(out), *options])


def converted(folder: Path | str, out: Path, *options: str) -> Path:
    """The file that the command writes."""
    result = run(folder, out, *options)
    assert result.exit_code == 0, result.output
    return out


def edit(path: Path, **changes: Any) -> None:
    """Changes keys of a JSON file; None drops one."""
    values = json.loads(path.read_text("utf-8")) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}), "utf-8")
