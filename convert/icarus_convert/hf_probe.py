"""Tokenises texts with the Hugging Face tokenizer and with libllama on the GGUF file: the ids must be the same."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from icarus_local.errors import ModelFileError
from icarus_local.text.tokenizer import Tokenizer

# In NFC, which some tokenizers bring text into and libllama does not.
TEXTS = (
    "Hello, world! It's a test; they're not you'll, I'd say - or I'VE, WE'LL.",
    "The quick brown fox (jumps) over the lazy dog's back... twice?! \"Yes\", 'no'.",
    "0 7 42 123 1234 12345 1000000 3.14159 1,234,567.89 1e-10 0xFF 2026-01-31 12:34:56 +49 (0)30 50%",
    "a  b   c    d     e        f\t\tg \t h \n i\n\nj\n\n\nk\r\nl   \n   m \n",
    "   leading, and trailing   ",
    'def add(a: int, b: int) -> int:\n    """Sum."""\n    if a != b:\n\t\treturn a + b  # why?\n  x[0] += y[\'k\']\n',
    '#include <stdio.h>\nint main(void) { for (int i = 0; i < 10; ++i) printf("%d\\n", i << 2); return 0; }\n',
    'SELECT name, COUNT(*) FROM users WHERE age >= 18 GROUP BY name; -- ok?\n{"a": [1, 2.5, null], "b": {}}',
    "snake_case camelCase PascalCase SCREAMING_CASE kebab-case path/to/file.txt https://example.org/?q=1&r=2#x",
    "Überraschung: façade naïve São Paulo, Łódź, Ærø, İstanbul, čeština, smørrebrød - Straße!",
    "Привет, мир! Москва́ не сразу строилась; ёлка. Καλημέρα, κόσμε. Здравей",
    "你好,世界!今天天气很好。我们去北京吧?一二三 東京は日本の首都です。カタカナとひらがな、ー。안녕하세요 세계!",
    "שלום עולם! مرحبا بالعالم، كيف حالك؟ ١٢٣ सभी मनुष्यों को गौरव। สวัสดีชาวโลก ১২৩ தமிழ் ქართული հայերեն",
    "emoji 😀👍🏽 👩‍👩‍👧‍👦 🇩🇪 ☃️ … – — “quotes” «guillemets» ‘single’ № € £ ¥ © ® ™ ½ ² ³ x²+y²≤z² ∑∞√ → ⇒",
    "\u00a0no-break\u00a0space\u2003em\u200bzero\u3000wide",
    "Markdown: **bold**, _it_, `code`, [a](b)\n\n- one\n- two\n  1. three\n\n```py\nx = 1\n```\n| a | b |\n|---|---|\n",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaa !!!!!!!! ======== -------- ........ ________ ((((())))) \\\\n \\t $x^2$",
)
_MAX_WORDS = 4000
_PER_TEXT = 40


def check_ids(path: Path, reference: Any, extra: list[str], pre: str) -> None:
    """Compares the ids of texts in many scripts, of code, and of words of the vocabulary.

    Args:
        path: a GGUF file with the vocabulary. reference: a `tokenizers.Tokenizer`.
        extra: tokens that stay one even inside a text (USER_DEFINED).
        pre: the pre-tokenizer's name, for messages.

    Raises:
        ModelFileError: libllama cannot read the vocabulary, or gives other ids; names the first piece that differs.
    """
    tokenizer = Tokenizer(path)
    try:
        # What libllama takes for a control token, whatever the file calls it, is none inside a text.
        whole = [token for token in extra if token not in tokenizer.controls][:256]
        for text in (*TEXTS, *(f"a{token}b {token}c" for token in whole), *_words(reference)):
            theirs = list(reference.encode(text, add_special_tokens=False).ids)
            ours = tokenizer.encode(text)
            if ours != theirs:
                raise ModelFileError(
                    f"libllama, with the pre-tokenizer {pre}, tokenises otherwise than the model's own tokenizer: in "
                    f"the text {_piece(text, tokenizer, ours, reference, theirs)}",
                    "Nothing was written",
                )
    finally:
        tokenizer.close()


def _words(reference: Any) -> Iterator[str]:
    """Texts out of words of the vocabulary, spread over all of it."""
    n = reference.get_vocab_size(with_added_tokens=False)
    special = {token.content for token in reference.get_added_tokens_decoder().values()}
    ids = range(0, n, max(1, n // _MAX_WORDS))
    words = [reference.decode([token], skip_special_tokens=False) for token in ids]
    # A piece of a character is no text, and a control token's text is nothing that a text may hold.
    words = [
        unicodedata.normalize("NFC", word)
        for word in words
        if word.strip() and "\ufffd" not in word and not any(text in word for text in special)
    ]
    for start in range(0, len(words), _PER_TEXT):
        yield " ".join(words[start : start + _PER_TEXT])


def _piece(text: str, tokenizer: Tokenizer, ours: list[int], reference: Any, theirs: list[int]) -> str:
    """The first place where the two differ, in words."""
    same = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    after = reference.decode(theirs[same : same + 4], skip_special_tokens=False)

    def shown(ids: list[int]) -> str:
        return " ".join(
            repr(tokenizer.token_text(i)) if i < tokenizer.n_vocab else str(i) for i in ids[same : same + 4]
        )

    return f"{text[:24]!r}... it gives {shown(ours)} for {after!r}, not {shown(theirs)}"
