"""Chat templates that behave as those of well-known models, and vocabularies for them: one as a GGUF file and as a
`transformers` tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf

from tests.tiny import MERGES, byte_alphabet

WORDS = (
    "the",
    "in",
    "er",
    "hello",
    "world",
    "▁t",
    "▁the",
    "▁a",
    "▁hello",
    "▁world",
    "he",
    "ll",
    "lo",
    "hell",
    "▁w",
    "or",
)


@dataclass(frozen=True)
class Family:
    """One model's way with conversations.

    Attributes:
        system: what becomes of a system message: "shown", "refused" (or lost), "folded" by the template, or "moved".
        alternates: whether it insists on user and assistant in turn.
        strips_right: control tokens that swallow the white space behind them.
        spaced: whether its SentencePiece vocabulary puts a space before a text; None for byte-level BPE.
    """

    name: str
    source: str
    controls: tuple[str, ...]
    bos: str | None
    eos: str
    user_defined: tuple[str, ...] = ()
    system: str = "shown"
    alternates: bool = False
    spaced: bool | None = None
    strips_right: tuple[str, ...] = ()


_IM = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHATML = "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
_CHATML_PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_ALTERNATE = (
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must take turns: user, assistant, user') }}{% endif %}"
)

SMOLLM2 = Family(
    "smollm2",
    "{% for message in messages %}{% if loop.first and message.role != 'system' %}"
    "<|im_start|>system\nYou are a small test model.<|im_end|>\n{% endif %}"
    + _CHATML
    + "{% endfor %}"
    + _CHATML_PROMPT,
    _IM,
    None,
    "<|im_end|>",
)
QWEN25 = Family(
    "qwen2.5",
    "{%- if tools is not none %}{{- tools | tojson }}{%- endif %}\n"
    "{%- if messages[0].role == 'system' %}\n"
    "    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}\n"
    "{%- else %}\n    {{- '<|im_start|>system\\nYou come from a test.<|im_end|>\\n' }}\n{%- endif %}\n"
    "{%- for message in messages %}\n    {%- if message.role == 'user' or not loop.first %}\n"
    "        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n    {%- endif %}\n"
    "{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n",
    _IM,
    None,
    "<|im_end|>",
    ("<tool_call>", "</tool_call>"),
)
QWEN3 = Family(
    "qwen3",
    "{%- set ns = namespace(last=-1) %}\n"
    "{%- for message in messages %}{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}"
    "{%- endfor %}\n"
    "{%- for message in messages %}\n    {%- set content = message.content %}\n    {%- set thought = '' %}\n"
    "    {%- if message.role == 'assistant' and '</think>' in content %}\n"
    "        {%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}\n"
    "        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}\n    {%- endif %}\n"
    "    {{- '<|im_start|>' + message.role + '\\n' }}\n"
    "    {%- if message.role == 'assistant' and loop.index0 > ns.last and (loop.last or thought) %}\n"
    "        {{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}\n    {%- endif %}\n"
    "    {{- content + '<|im_end|>\\n' }}\n{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n"
    "    {%- if enable_thinking is defined and enable_thinking is false %}\n"
    "        {{- '<think>\\n\\n</think>\\n\\n' }}\n    {%- endif %}\n{%- endif %}\n",
    _IM,
    None,
    "<|im_end|>",
    ("<think>", "</think>", "<tool_call>"),
)
LLAMA3 = Family(
    "llama3",
    "{{- bos_token }}\n{%- set date = strftime_now('%d %b %Y') if strftime_now is defined else 'today' %}\n"
    "{%- if messages[0]['role'] == 'system' %}\n    {%- set system = messages[0]['content'] | trim %}\n"
    "    {%- set messages = messages[1:] %}\n{%- else %}\n    {%- set system = '' %}\n{%- endif %}\n"
    "{{- '<|start_header_id|>system<|end_header_id|>\\n\\nDate: ' ~ date ~ '\\n\\n' ~ system ~ '<|eot_id|>' }}\n"
    "{%- for message in messages %}\n"
    "    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim }}"
    "{% generation %}<|eot_id|>{% endgeneration %}\n{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n{%- endif %}\n",
    ("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
    "<|begin_of_text|>",
    "<|eot_id|>",
)
_GEMMA_TURN = (
    "<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}\n"
    "{% if loop.first %}{{ first }}{% endif %}{{ message.content | trim }}<end_of_turn>\n"
)
_GEMMA_PROMPT = "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
_GEMMA_CONTROLS = ("<unk>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")
_GEMMA = ("<bos>", "<eos>", ("\n\n", "<table>"))
GEMMA2 = Family(
    "gemma2",
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system role here') }}{% endif %}"
    "{% for message in messages %}" + _ALTERNATE + _GEMMA_TURN + "{% endfor %}" + _GEMMA_PROMPT,
    _GEMMA_CONTROLS,
    *_GEMMA,
    system="refused",
    alternates=True,
    spaced=False,
)
GEMMA3 = Family(
    "gemma3",
    "{{ bos_token }}{% set first = '' %}{% if messages[0].role == 'system' %}"
    "{% set first = messages[0].content + '\n\n' %}{% set messages = messages[1:] %}{% endif %}"
    "{% for message in messages %}" + _ALTERNATE + _GEMMA_TURN + "{% endfor %}" + _GEMMA_PROMPT,
    _GEMMA_CONTROLS,
    *_GEMMA,
    system="folded",
    alternates=True,
    spaced=False,
)
_MISTRAL_CONTROLS = ("<unk>", "<s>", "</s>")
MISTRAL = Family(
    "mistral-v1",
    "{{ bos_token }}{% for message in messages %}" + _ALTERNATE + "{% if message.role == 'user' %}"
    "{{ '[INST] ' + message.content + ' [/INST]' }}{% elif message.role == 'assistant' %}"
    "{{ ' ' + message.content + eos_token }}{% else %}{{ raise_exception('user and assistant only') }}{% endif %}"
    "{% endfor %}",
    _MISTRAL_CONTROLS,
    "<s>",
    "</s>",
    system="refused",
    alternates=True,
    spaced=True,
)
MISTRAL_FOLDED = Family(
    "mistral-folded",
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set system = messages[0].content + '\n\n' %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}{% for message in messages %}"
    + _ALTERNATE
    + "{% if message.role == 'user' %}[INST] {{ system if loop.first }}{{ message.content }} [/INST]{% else %}"
    " {{ message.content }}{{ eos_token }}{% endif %}{% endfor %}",
    _MISTRAL_CONTROLS,
    "<s>",
    "</s>",
    system="folded",
    alternates=True,
    spaced=True,
)
MISTRAL_MOVED = Family(
    "mistral-moved",
    MISTRAL_FOLDED.source.replace("system if loop.first", "system if loop.last"),
    _MISTRAL_CONTROLS,
    "<s>",
    "</s>",
    system="moved",
    alternates=True,
    spaced=True,
)
PHI3 = Family(
    "phi-3",
    "{% for message in messages %}{{ '<|' + message.role + '|>\n' + message.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
    ("<unk>", "<s>", "</s>", "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
    "<s>",
    "<|endoftext|>",
    spaced=True,
    strips_right=("</s>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
)
PHI4 = Family(
    "phi4",
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '<|im_sep|>' + message.content + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}",
    (*_IM, "<|im_sep|>"),
    "<|endoftext|>",
    "<|im_end|>",
)
FAMILIES = [
    *(SMOLLM2, QWEN25, QWEN3, LLAMA3, GEMMA2, GEMMA3, MISTRAL, MISTRAL_FOLDED, MISTRAL_MOVED, PHI3, PHI4),
]


def vocabulary(family: Family) -> tuple[list[str], list[float], list[int]]:
    """Texts, scores and types (gguf.TokenType): controls, USER_DEFINED, bytes, then what merges make."""
    kinds = gguf.TokenType
    special = [*family.controls, *family.user_defined]
    types = [kinds.CONTROL] * len(family.controls) + [kinds.USER_DEFINED] * len(family.user_defined)
    if family.spaced is None:
        texts = [*special, *byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES)]
        types += [kinds.NORMAL] * (len(texts) - len(special))
        return texts, [0.0] * len(texts), [int(kind) for kind in types]
    types[0] = kinds.UNKNOWN
    letters = ["▁", *map(chr, range(0x21, 0x7F)), "é"]
    # Byte tokens and what no pair makes stand last in rank.
    texts = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *WORDS]
    types += [kinds.BYTE] * 256 + [kinds.NORMAL] * (len(letters) + len(WORDS))
    scores = (
        [0.0] * (len(special) + 256)
        + [-1000.0] * len(letters)
        + [-float(len(w)) - i / 100 for i, w in enumerate(WORDS)]
    )
    return texts, scores, [int(kind) for kind in types]


def write_gguf(family: Family, path: Path) -> Path:
    """A GGUF file that has the family's vocabulary and template and nothing else."""
    texts, scores, types = vocabulary(family)
    writer = gguf.GGUFWriter(path, "llama")
    # libllama knows by the name that Phi-3's control tokens swallow white space.
    writer.add_name(family.name)
    for add in (writer.add_context_length, writer.add_embedding_length, writer.add_block_count, writer.add_head_count):
        add(8)
    writer.add_feed_forward_length(8)
    writer.add_layer_norm_rms_eps(1e-5)
    if family.spaced is None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges(list(MERGES))
    else:
        writer.add_tokenizer_model("llama")
        writer.add_token_scores(scores)
        writer.add_add_space_prefix(family.spaced)
    writer.add_token_list(texts)
    writer.add_token_types(types)
    if family.bos is not None:
        writer.add_bos_token_id(texts.index(family.bos))
        writer.add_add_bos_token(True)
    writer.add_eos_token_id(texts.index(family.eos))
    writer.add_chat_template(family.source)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def reference(family: Family) -> Any:
    """The `transformers` tokenizer of the same vocabulary and template."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    texts, scores, _ = vocabulary(family)
    ids = {text: i for i, text in enumerate(texts)}
    if family.spaced is None:
        merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in MERGES)]
        tokenizer = Tokenizer(models.BPE(ids, merges))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    else:
        # SentencePiece joins any two pieces that make one, the best score first; so every way to make one is a merge.
        pairs = [
            (-scores[ids[word]], word[:i], word[i:])
            for word in WORDS
            for i in range(1, len(word))
            if {word[:i], word[i:]} <= set(ids)
        ]
        merges = [(left, right) for _, left, right in sorted(pairs)]
        tokenizer = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        space = normalizers.Replace(" ", "▁")
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), space]) if family.spaced else space
    strips = family.strips_right
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False, rstrip=text in strips) for text in family.controls]
    )
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in family.user_defined])
    assert tokenizer.get_vocab_size() == len(texts)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=family.bos, eos_token=family.eos, chat_template=family.source
    )
