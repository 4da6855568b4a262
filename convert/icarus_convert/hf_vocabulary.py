"""The tokenizer of a Hugging Face folder as a GGUF file holds it: texts, scores, types, merges and special tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf

from icarus_convert.hf_config import ModelConfig
from icarus_convert.hf_folder import HfFolder
from icarus_convert.hf_pretokenizer import check_name, recognise
from icarus_convert.hf_sentencepiece import SentencePieces, read_pieces
from icarus_convert.json_file import read_json_object
from icarus_local.errors import IcarusError, ModelFileError

_KIND = gguf.TokenType
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_SPACE = "▁"
_ADDED_SCORE, _UNUSED_SCORE = -1000.0, -10000.0
# Ends of turn that libllama finds by their texts.
_KNOWN_ENDS = frozenset(
    {
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>"),
        *("</s>", "<eos>", "<EOT>", "<|eot|>"),
    }
)


@dataclass
class Vocabulary:
    """What the tokenizer's keys hold.

    Attributes:
        model: "gpt2" (byte-level BPE) or "llama" (SentencePiece). pre: llama.cpp's name of the pre-tokenizer.
        scores: SentencePiece's. merges: BPE's.
        adds_space: whether SentencePiece puts a space before a text.
        special: ids by llama.cpp's name ("bos", "eos" ...). adds: whether a text begins or ends with one.
        reference: the `tokenizers.Tokenizer`.
        strips: whether control tokens swallow the white space behind them (Phi-3's).
    """

    model: str
    pre: str
    texts: list[str]
    types: list[int]
    reference: Any
    scores: list[float] | None = None
    merges: list[str] | None = None
    adds_space: bool | None = None
    special: dict[str, int] = field(default_factory=dict)
    adds: dict[str, bool] = field(default_factory=dict)
    template: str | list[Any] | None = None
    strips: bool = False

    @property
    def user_defined(self) -> list[str]:
        """Texts of USER_DEFINED tokens."""
        return [text for text, kind in zip(self.texts, self.types, strict=True) if kind == _KIND.USER_DEFINED]


def read_vocabulary(folder: HfFolder, config: ModelConfig, pre: str | None) -> Vocabulary:
    """Reads the tokenizer and pads it to the rows of the embedding.

    Args:
        pre: llama.cpp's name of the pre-tokenizer, where it is not recognised.

    Raises:
        IcarusError: no tokenizer, one that llama.cpp does not have, or the library that reads it is missing.
    """
    path = folder.path / "tokenizer.json"
    if not path.is_file():
        if (folder.path / "tokenizer.model").is_file():
            raise ModelFileError(
                f"{folder.path} has tokenizer.model and no tokenizer.json, with which the ids are proved",
                "transformers' AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) writes it",
            )
        raise ModelFileError(f"{folder.path} holds no tokenizer (tokenizer.json)", "Fetch the model again, whole")
    tokenizer = read_json_object(path)
    reference = _load_reference(path)
    model = tokenizer.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict) or model.get("type", "BPE") != "BPE":
        kind = model.get("type") if isinstance(model, dict) else None
        raise ModelFileError(f"{path} is a tokenizer of the kind {kind!r}; BPE and SentencePiece can be converted")
    added = _added(path, tokenizer, reference)
    if model.get("byte_fallback"):
        vocabulary = Vocabulary("llama", "default", [], [], reference, scores=[], adds_space=_adds_space(tokenizer))
    else:
        name = check_name(pre) if pre is not None else recognise(path, tokenizer)
        vocabulary = Vocabulary("gpt2", name, [], [], reference, merges=[])
    _place(path, vocabulary, config, model, added)
    _add_special(folder, vocabulary)
    vocabulary.strips = any(token.get("rstrip") is True and token.get("special") is True for token in added.values())
    return vocabulary


def _load_reference(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise IcarusError(
            "converting a base needs the package tokenizers, which is missing", "pip install 'icarus-local[convert]'"
        ) from error
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing more particular
        raise ModelFileError(f"{path} is no tokenizer: {error}", "Fetch it again") from error


def _added(path: Path, tokenizer: dict[str, Any], reference: Any) -> dict[int, dict[str, Any]]:
    """The added tokens by id."""
    found = {}
    for token in tokenizer.get("added_tokens") or ():
        if type(token.get("id")) is not int or not isinstance(token.get("content"), str):
            raise ModelFileError(f"{path} has an added token without id or text")
        if reference.token_to_id(token["content"]) != token["id"]:
            raise ModelFileError(f"{path}: the added token {token['content']!r} cannot have the id {token['id']}")
        found[token["id"]] = token
    return found


def _adds_space(tokenizer: dict[str, Any]) -> bool:
    """Whether a text gets a space before it, by the normalizer of older files or the Metaspace of newer ones."""
    pending = [tokenizer.get("normalizer"), tokenizer.get("pre_tokenizer")]
    while pending:
        part = pending.pop()
        if not isinstance(part, dict):
            continue
        if part.get("type") == "Prepend" and part.get("prepend") == _SPACE:
            return True
        if part.get("type") == "Metaspace":
            old = "always" if part.get("add_prefix_space", True) else "never"
            return bool(part.get("prepend_scheme", old) != "never")
        pending += part.get("normalizers") or part.get("pretokenizers") or []
    return False


def _place(
    path: Path, vocabulary: Vocabulary, config: ModelConfig, model: dict[str, Any], added: dict[int, dict[str, Any]]
) -> None:
    """Fills in texts and types of all rows of the embedding; rows without a token are UNUSED."""
    n = config.n_vocab
    ids: dict[str, int] = vocabulary.reference.get_vocab(with_added_tokens=True)
    highest = max(ids.values(), default=-1)
    if highest >= n:
        raise ModelFileError(f"{path} has a token {highest}, and the model embeddings of {n} tokens only")
    if len(set(ids.values())) != len(ids):
        raise ModelFileError(f"{path} gives one id to two tokens")
    vocabulary.texts = [f"[PAD{token}]" for token in range(n)]
    vocabulary.types = [int(_KIND.UNUSED)] * n
    spm = vocabulary.scores is not None
    for text, token in ids.items():
        vocabulary.texts[token] = text
        byte = spm and _BYTE.fullmatch(text) is not None
        vocabulary.types[token] = int(_KIND.BYTE if byte else _KIND.NORMAL)
    if spm:
        vocabulary.scores = [_UNUSED_SCORE] * n
        _score(path, vocabulary, ids, model)
    for token, entry in added.items():
        _place_added(vocabulary, config, token, entry)


def _score(path: Path, vocabulary: Vocabulary, ids: dict[str, int], model: dict[str, Any]) -> None:
    """SentencePiece's scores: its own where there is a `tokenizer.model`, else by the rank of the first merge."""
    assert vocabulary.scores is not None
    own = path.with_name("tokenizer.model")
    pieces = read_pieces(own) if own.is_file() else None
    if pieces is not None:
        _take_pieces(own, vocabulary, pieces)
        return
    unknown = model.get("unk_token")
    if isinstance(unknown, str) and unknown in ids:
        vocabulary.types[ids[unknown]] = int(_KIND.UNKNOWN)
    for rank, pair in enumerate(_merges(path, model)):
        token = ids.get("".join(pair))
        if token is None:
            raise ModelFileError(f"{path}: the merge {pair} makes no token")
        if vocabulary.scores[token] == _UNUSED_SCORE:
            # Far below those of any SentencePiece vocabulary a rank is still exact in float32.
            vocabulary.scores[token] = -float(rank)
    # What no pair makes must not come before what one does.
    lowest = min(_UNUSED_SCORE, -float(len(model["merges"])))
    vocabulary.scores = [lowest if score == _UNUSED_SCORE else score for score in vocabulary.scores]


def _take_pieces(path: Path, vocabulary: Vocabulary, pieces: SentencePieces) -> None:
    assert vocabulary.scores is not None
    if len(pieces.texts) > len(vocabulary.texts):
        raise ModelFileError(f"{path} has {len(pieces.texts)} pieces, and the model {len(vocabulary.texts)} embeddings")
    for token, text in enumerate(pieces.texts):
        vocabulary.texts[token] = text.decode("utf-8")
        vocabulary.scores[token] = pieces.scores[token]
        vocabulary.types[token] = pieces.types[token]


def _merges(path: Path, model: dict[str, Any]) -> list[tuple[str, str]]:
    """The merges as pairs; older files join the two with a space."""
    pairs = []
    for merge in model.get("merges") or ():
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
            raise ModelFileError(f"{path}: {merge!r} is no merge of two tokens")
        pairs.append((parts[0], parts[1]))
    return pairs


def _place_added(vocabulary: Vocabulary, config: ModelConfig, token: int, entry: dict[str, Any]) -> None:
    text = entry["content"]
    special = entry.get("special") is True or (config.arch != "phi3" and _looks_special(text))
    if not special:
        text = text.replace(_SPACE, " ")
    vocabulary.texts[token] = text
    vocabulary.types[token] = int(_KIND.CONTROL if special else _KIND.USER_DEFINED)
    if vocabulary.scores is not None:
        vocabulary.scores[token] = _ADDED_SCORE


def _looks_special(text: str) -> bool:
    """llama.cpp's rule for tokens that their makers forgot to call special."""
    marks = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))
    return text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]") or any(
        text.startswith(start) and text.endswith(end) for start, end in marks
    )


def _add_special(folder: HfFolder, vocabulary: Vocabulary) -> None:
    """Special tokens, merges and chat template, by the rules of the gguf package."""
    n = len(vocabulary.texts)
    try:
        special = gguf.SpecialVocab(folder.path, load_merges=vocabulary.merges is not None, n_vocab=n)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise ModelFileError(f"the tokenizer's files in {folder.path} are damaged: {error}") from error
    if vocabulary.merges is not None:
        vocabulary.merges = list(special.merges)
    vocabulary.special = {kind: token for kind, token in special.special_token_ids.items() if 0 <= token < n}
    vocabulary.adds = dict(special.add_special_token)
    _add_ends(folder, vocabulary)
    _observe(vocabulary)
    vocabulary.template = _template(folder, special.chat_template)


def _add_ends(folder: HfFolder, vocabulary: Vocabulary) -> None:
    """Of the ends that `generation_config.json` names, the first that libllama would not find by itself ends a turn."""
    ends = folder.generation.get("eos_token_id")
    ends = [token for token in (ends if isinstance(ends, list) else [ends]) if type(token) is int]
    for token in ends:
        if not 0 <= token < len(vocabulary.texts):
            raise ModelFileError(f"{folder.path}: generation_config.json ends at the token {token}, which is none")
        if "eos" not in vocabulary.special:
            vocabulary.special["eos"] = token
        elif token != vocabulary.special["eos"] and vocabulary.texts[token] not in _KNOWN_ENDS:
            vocabulary.special.setdefault("eot", token)


def _observe(vocabulary: Vocabulary) -> None:
    """Whether a text gets BOS or EOS, where no file says so: as the tokenizer itself does it."""
    bare = vocabulary.reference.encode("a", add_special_tokens=False).ids
    whole = vocabulary.reference.encode("a", add_special_tokens=True).ids
    for kind, found in (("bos", whole[: -len(bare)] if bare else []), ("eos", whole[len(bare) :] if bare else [])):
        token = vocabulary.special.get(kind)
        if token is None:
            vocabulary.adds.pop(kind, None)
            continue
        edge = found[:1] if kind == "bos" else found[-1:]
        vocabulary.adds.setdefault(kind, edge == [token] and len(whole) > len(bare))


def _template(folder: HfFolder, found: Any) -> str | list[Any] | None:
    """The chat template; gguf finds none where there is no tokenizer_config.json."""
    alone = folder.path / "chat_template.jinja"
    if found is None and alone.is_file():
        found = alone.read_text("utf-8", "replace")
    if found is None or isinstance(found, str):
        return found
    if all(isinstance(entry, dict) and {"name", "template"} <= set(entry) for entry in found):
        return list(found)
    raise ModelFileError(f"{folder.path}: its chat template is neither a text nor a list of named ones")


def add_vocabulary(writer: gguf.GGUFWriter, vocabulary: Vocabulary) -> None:
    """Writes the tokenizer's keys."""
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(vocabulary.texts)
    if vocabulary.scores is not None:
        writer.add_token_scores(vocabulary.scores)
    writer.add_token_types(vocabulary.types)
    if vocabulary.merges:
        writer.add_token_merges(vocabulary.merges)
    if vocabulary.adds_space is not None:
        writer.add_add_space_prefix(vocabulary.adds_space)
    for kind, token in vocabulary.special.items():
        add = getattr(writer, f"add_{kind}_token_id", None)
        if add is not None:
            add(token)
    for kind, adds in vocabulary.adds.items():
        add = getattr(writer, f"add_add_{kind}_token", None)
        if add is not None:
            add(adds)
    if vocabulary.template is not None:
        writer.add_chat_template(vocabulary.template)
