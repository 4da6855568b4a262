"""`icarus-convert base`: tokenizers of all kinds, told by what stands in their files and proved on texts."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import pytest

from icarus_convert.hf_pretokenizer import _CASES, _ENDINGS, _REST, _REST_WITH_SLASH, _TIKTOKEN
from icarus_convert.hf_sentencepiece import read_pieces
from icarus_local.errors import ModelFileError
from icarus_local.ggml.gguf import GgufFile
from icarus_local.ggml.vocabulary import vocabulary_sha256
from icarus_local.text.tokenizer import Tokenizer
from tests.convert.hf_models import converted, edit, run, save, tiny_tokenizer
from tests.text.families import GEMMA3, MISTRAL, PHI3, PHI4, QWEN25, WORDS, Family, reference, vocabulary
from tests.tiny import CHATML, CONTROLS, MERGES

DIGITS = (*MERGES[:-2], "1 2", "12 3")
TEXTS = ("hello world", "the 123 lights\n\n in  the hall", "  two", "Ünïcödé 你好 😀\n", "a\n\nb <table> c")
SPLITS = {
    "llama-bpe": rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}",
    "dbrx": _TIKTOKEN,
    "qwen2": rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}",
    "gpt-4o": _CASES.replace("ENDINGS", f"{_ENDINGS}?") + r"\p{N}{1,3}|" + _REST_WITH_SLASH,
    "tekken": _CASES.replace("ENDINGS", "") + r"\p{N}|" + _REST_WITH_SLASH,
}


def pre_tokenizer(name: str) -> Any:
    from tokenizers import Regex, pre_tokenizers

    if name == "smollm":
        steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        return pre_tokenizers.Sequence(steps)
    split = pre_tokenizers.Split(Regex(SPLITS.get(name, name)), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def key(path: Path, name: str) -> Any:
    with GgufFile(path) as file:
        return file.value(f"tokenizer.ggml.{name}")


@pytest.mark.parametrize("name", ["smollm", *SPLITS])
def test_pre_tokenizers_are_recognised(name: str, tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(pre_tokenizer(name), ignore_merges=name == "llama-bpe")
    path = converted(save(tmp_path / "model", tokenizer=tokenizer), tmp_path / "out.gguf")
    assert key(path, "pre") == name
    ours = Tokenizer(path)
    for text in TEXTS:
        assert ours.encode(text) == tokenizer.encode(text, add_special_tokens=False)
    ours.close()


def test_an_unknown_one_is_refused_and_may_be_named(tmp_path: Path) -> None:
    # GPT-2's regex, written otherwise.
    regex = r"'(?:s|t|re|ve|m|ll|d)|[ ]?\p{L}+|[ ]?\p{N}+|[ ]?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    folder = save(tmp_path / "model", tokenizer=tiny_tokenizer(pre_tokenizer(regex), merges=DIGITS))
    out = tmp_path / "out.gguf"
    result = run(folder, out)
    assert result.exit_code == 1
    assert "not recognised" in result.output
    assert "llama-bpe" in result.output
    wrong = run(folder, out, "--pre", "smollm")
    assert wrong.exit_code == 1
    assert "'123'" in wrong.output
    assert run(folder, out, "--pre", "nonsense").exit_code == 1
    assert not out.exists()
    assert key(converted(folder, out, "--pre", "gpt-2"), "pre") == "gpt-2"


def test_llama_cpps_other_ids_are_refused(tmp_path: Path) -> None:
    # Merges that no pre-tokenizer of llama.cpp allows: across a space.
    from tokenizers import pre_tokenizers

    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    folder = save(tmp_path / "model", tokenizer=tiny_tokenizer(whole, merges=(*MERGES[:-1], "e Ġ")))
    result = run(folder, tmp_path / "out.gguf", "--pre", "gpt-2")
    assert result.exit_code == 1
    assert "tokenises otherwise" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def model_for(family: Family, spare: int = 5) -> Any:
    """A tiny Llama (or Phi 3, or Gemma 3) with rows for the family's vocabulary and some more."""
    import torch
    import transformers

    kind = {"phi-3": "Phi3", "gemma3": "Gemma3"}.get(family.name, "Llama")
    config = getattr(transformers, "Gemma3TextConfig" if kind == "Gemma3" else f"{kind}Config")(
        vocab_size=len(vocabulary(family)[0]) + spare,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        query_pre_attn_scalar=16,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return getattr(transformers, f"{kind}ForCausalLM")(config)


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def message(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def sentencepiece_model(family: Family, kind: int = 2) -> bytes:
    """A `tokenizer.model` of the family's vocabulary, with SentencePiece's own types."""
    data = b""
    for text, score, token_type in zip(*vocabulary(family), strict=True):
        piece = message(1, text.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + varint(token_type)
        data += message(1, piece)
    spec = message(1, b"identity") + b"\x18" + varint(int(bool(family.spaced)))
    return data + message(2, b"\x18" + varint(kind)) + message(3, spec)


@pytest.mark.parametrize("own_scores", [True, False])
@pytest.mark.parametrize("family", [MISTRAL, GEMMA3, PHI3], ids=lambda family: family.name)
def test_sentencepiece(family: Family, own_scores: bool, tmp_path: Path) -> None:
    theirs = reference(family)
    folder = save(tmp_path / "model", model=model_for(family), tokenizer=theirs)
    if own_scores:
        (folder / "tokenizer.model").write_bytes(sentencepiece_model(family))
    path = converted(folder, tmp_path / "out.gguf")
    assert key(path, "model") == "llama"
    assert key(path, "add_space_prefix") is family.spaced
    texts, scores, types = vocabulary(family)
    kinds = key(path, "token_type").tolist()
    assert key(path, "tokens") == [*texts, *(f"[PAD{len(texts) + i}]" for i in range(5))]
    # As llama.cpp's converter has it: an added token is CONTROL, even <unk>.
    assert kinds == [int(gguf.TokenType.CONTROL), *types[1:], *[int(gguf.TokenType.UNUSED)] * 5]
    ours = key(path, "scores").tolist()
    if own_scores:
        normal = [i for i, kind in enumerate(types) if kind == gguf.TokenType.NORMAL]
        assert [ours[i] for i in normal] == pytest.approx([scores[i] for i in normal])
    # Of the words that two tokens make; no score matters for others.
    words = [texts.index(w) for w in WORDS if any({w[:i], w[i:]} <= set(texts) for i in range(1, len(w)))]
    assert sorted(words, key=ours.__getitem__) == sorted(words, key=scores.__getitem__)
    tokenizer = Tokenizer(path)
    for text in TEXTS:
        assert tokenizer.encode(text) == theirs.encode(text, add_special_tokens=False)
    assert {tokenizer.token_text(token) for token in tokenizer.strips_right} == set(family.strips_right)
    assert tokenizer.template_source == family.source
    tokenizer.close()


@pytest.mark.parametrize("family", [QWEN25, PHI4], ids=lambda family: family.name)
def test_byte_level(family: Family, tmp_path: Path) -> None:
    from tests.text.families import write_gguf

    theirs = reference(family)
    path = converted(save(tmp_path / "model", model=model_for(family, 0), tokenizer=theirs), tmp_path / "out.gguf")
    with GgufFile(path) as ours, GgufFile(write_gguf(family, tmp_path / "other.gguf")) as other:
        assert vocabulary_sha256(ours) == vocabulary_sha256(other)


def test_damaged_pieces_are_refused(tmp_path: Path) -> None:
    path, whole = tmp_path / "tokenizer.model", sentencepiece_model(MISTRAL)
    path.write_bytes(whole)
    assert len(read_pieces(path).texts) == len(vocabulary(MISTRAL)[0])
    unigram = sentencepiece_model(MISTRAL, kind=1)
    bad = [b"", b"\x0a", b"\xff" * 20, whole[:-3], whole[:1000], message(1, message(1, b"\xff")), unigram, b"\x0b"]
    for data in (*bad, b"\x0a\xff\xff\xff\xff\x7f"):
        path.write_bytes(data)
        with pytest.raises(ModelFileError, match="SentencePiece"):
            read_pieces(path)


def test_bos_and_ends(tmp_path: Path) -> None:
    from tokenizers import processors

    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CONTROLS[0]} $A", special_tokens=[(CONTROLS[0], 0)]
    )
    tokenizer.bos_token = CONTROLS[0]
    folder = save(tmp_path / "model", tokenizer=tokenizer)
    edit(folder / "generation_config.json", eos_token_id=[2, 1])
    path = converted(folder, tmp_path / "out.gguf")
    ours = Tokenizer(path)
    assert ours.bos == 0
    assert ours.adds_bos
    assert [ours.is_end_of_generation(token) for token in (1, 2, 7)] == [True, True, False]
    assert key(path, "eot_token_id") == 1
    ours.close()


@pytest.mark.parametrize("where", ["file", "config", "list"])
def test_chat_templates(where: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "model", tokenizer=tiny_tokenizer(template=None))
    if where == "file":
        (folder / "chat_template.jinja").write_text(CHATML)
        (folder / "tokenizer_config.json").unlink()
    elif where == "config":
        edit(folder / "tokenizer_config.json", chat_template=CHATML)
    else:
        named = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": "tools"}]
        edit(folder / "tokenizer_config.json", chat_template=named)
    path = converted(folder, tmp_path / "out.gguf")
    tokenizer = Tokenizer(path)
    assert tokenizer.template_source == CHATML
    tokenizer.close()
    with GgufFile(path) as file:
        assert file.value("tokenizer.chat_template.tool_use") == ("tools" if where == "list" else None)


def test_a_tokenizer_that_is_too_large(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["<one too many>"])
    result = run(save(tmp_path / "model", tokenizer=tokenizer), tmp_path / "out.gguf")
    assert result.exit_code == 1
    assert "a token 273, and the model embeddings of 273 tokens only" in result.output


def test_phi3_by_another_name_is_still_read(tmp_path: Path) -> None:
    # libllama fails on a name that it takes for Phi-3's where that model's tokens are missing.
    path = converted(save(tmp_path / "My-Phi-3-tune"), tmp_path / "out.gguf")
    with GgufFile(path) as file:
        assert file.value("general.name") == "My-Phi 3-tune"
    path = converted(tmp_path / "My-Phi-3-tune", tmp_path / "named.gguf", "--name", "A name")
    with GgufFile(path) as file:
        assert file.value("general.name") == "A name"
