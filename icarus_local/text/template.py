"""Renders a model's Jinja chat template to token ids in which only the template can place control tokens."""

from __future__ import annotations

import datetime
import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from jinja2.exceptions import TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from icarus_local.errors import TemplateError

# Private-use characters mark places in the rendered text; a message that holds one gets the next.
_PRIVATE_USE = range(0xE000, 0xF8FF)
_MAX_RENDERED = 16 * 1024 * 1024

FALLBACK_NAME = "chatml"
FALLBACK_SOURCE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Message = Mapping[str, Any]


class Vocabulary(Protocol):
    """What a template needs of a tokenizer."""

    controls: dict[str, int]
    user_defined: list[str]
    bos: int | None
    eos: int | None

    def encode(self, text: str) -> list[int]: ...
    def token_text(self, token: int | None) -> str: ...


class Answer(list[int]):
    """Token ids that stand in a message instead of text: what an agent generated, never tokenised again."""


class ChatTemplate:
    """A compiled template bound to a vocabulary.

    Attributes:
        source: the Jinja source.
        sha256: of the source, as kept in adapter files.
    """

    def __init__(self, source: str, vocabulary: Vocabulary, name: str = "tokenizer.chat_template") -> None:
        """Compiles `source`.

        Raises:
            TemplateError: a syntax error, with its line.
        """
        self.source, self.name, self._vocabulary = source, name, vocabulary
        self.sha256 = hashlib.sha256(source.encode()).hexdigest()
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise TemplateError(
                f"the chat template {name} is broken at line {error.lineno}: {error.message}"
            ) from error
        controls = sorted(vocabulary.controls, key=len, reverse=True)
        self._special = _any_of(controls + vocabulary.user_defined)
        self._controls = _any_of(controls)
        self._user_defined = set(vocabulary.user_defined)
        self._encode = functools.lru_cache(maxsize=4096)(lambda text: tuple(vocabulary.encode(text)))

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
        """Token ids of a conversation.

        Args:
            messages: each with `role` and `content`; content is text, or an `Answer` whose ids are placed as they are.
            add_generation_prompt: end where the next assistant message begins.

        Raises:
            TemplateError: the template fails on, or refuses, this conversation.
        """
        texts = "".join(m["content"] for m in messages if isinstance(m["content"], str))
        breaker, marker = _unused_characters(texts + self.source)
        answers: list[Answer] = []
        shown: list[dict[str, Any]] = []
        for message in messages:
            content = message["content"]
            if isinstance(content, Answer):
                shown.append({**message, "content": f"{marker}{len(answers)}{marker}"})
                answers.append(content)
            else:
                shown.append({**message, "content": self._break_up(content, breaker)})
        return self._to_ids(self._render_text(shown, add_generation_prompt), answers, breaker, marker)

    def _break_up(self, text: str, breaker: str) -> str:
        """Puts `breaker` into every special string, so that what is whole in the rendering came from the template."""
        if self._special is None:
            return text
        # Searched on from the second character of each hit: special strings may overlap.
        result, start = [], 0
        while match := self._special.search(text, start):
            result.append(text[start : match.start() + 1] + breaker)
            start = match.start() + 1
        return "".join(result) + text[start:]

    def _render_text(self, messages: list[dict[str, Any]], add_generation_prompt: bool) -> str:
        token_text = self._vocabulary.token_text
        try:
            text = self._template.render(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                bos_token=token_text(self._vocabulary.bos),
                eos_token=token_text(self._vocabulary.eos),
            )
        except TemplateError:
            raise
        except Exception as error:  # whatever a template's own code brings about
            raise TemplateError(
                f"the chat template {self.name} fails on this conversation: {error}",
                "Give another with --chat-template FILE",
            ) from error
        if len(text) > _MAX_RENDERED:
            raise TemplateError(
                f"the chat template {self.name} rendered {len(text)} characters; {_MAX_RENDERED} are allowed"
            )
        return text

    def _to_ids(self, text: str, answers: list[Answer], breaker: str, marker: str) -> list[int]:
        placed = 0
        ids: list[int] = []
        parts = re.split(f"{marker}(\\d+){marker}", text)
        for i, part in enumerate(parts):
            if i % 2:
                ids += answers[int(part)]
                placed += int(part) == placed
            else:
                ids += self._text_to_ids(part.removesuffix(self._padding) if i + 1 < len(parts) else part, breaker)
        if placed != len(answers) or len(parts) != 2 * len(answers) + 1:
            raise TemplateError(
                f"the chat template {self.name} drops, repeats or reorders earlier answers, so they cannot be kept as "
                "they were generated",
                "Give another with --chat-template FILE",
            )
        return ids

    def _text_to_ids(self, text: str, breaker: str) -> list[int]:
        """Text between two control tokens is tokenised whole: cut anywhere else it gives other ids."""
        ids: list[int] = []
        for i, piece in enumerate(self._controls.split(text) if self._controls else [text]):
            if i % 2:
                ids.append(self._vocabulary.controls[piece])
            elif piece:
                ids += self._plain_to_ids(piece, breaker)
        return ids

    def _plain_to_ids(self, piece: str, breaker: str) -> list[int]:
        if not self._user_defined:
            return list(self._encode(piece.replace(breaker, "")))
        # A USER_DEFINED token is recognised in plain text too: only there is the text cut where it was broken up.
        ids: list[int] = []
        for run in self._cut_user_defined(piece, breaker):
            ids += self._encode(run)
        return ids

    def _cut_user_defined(self, piece: str, breaker: str) -> list[str]:
        runs = [""]
        parts = piece.split(breaker)
        for i, part in enumerate(parts):
            runs[-1] += part
            following = "".join(parts[i + 1 :])
            broken = part[-1:] + following
            if following and any(broken.startswith(text) for text in self._user_defined):
                runs.append("")
        return [run for run in runs if run]

    @functools.cached_property
    def accepts_system(self) -> bool:
        """Whether a conversation may open with a system message."""
        try:
            self.render([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}])
        except TemplateError:
            return False
        return True

    @functools.cached_property
    def _padding(self) -> str:
        """White space that the template puts between a generation prompt and the answer when it renders it later.

        An answer began right behind the prompt, so there it is left out: else every turn would encode it again.
        """
        question = {"role": "user", "content": "a"}
        try:
            prompt = self._render_text([question], True)
            whole = self._render_text([question, {"role": "assistant", "content": "\ue000"}], False)
        except TemplateError:
            return ""
        before = whole.partition("\ue000")[0]
        padding = before.removeprefix(prompt) if before.startswith(prompt) else ""
        return padding if padding.isspace() else ""

    @functools.cached_property
    def end_of_turn(self) -> int:
        """The control token that closes an assistant message.

        Raises:
            TemplateError: the template puts no control token after an answer.
        """
        ids = self.render([{"role": "user", "content": "a"}, {"role": "assistant", "content": Answer([-1])}], False)
        controls = set(self._vocabulary.controls.values())
        for token in ids[ids.index(-1) + 1 :]:
            if token in controls:
                return token
        if self._vocabulary.eos is not None:
            return self._vocabulary.eos
        raise TemplateError(f"the chat template {self.name} closes no answer with a control token")


def own_template(source: str | None, vocabulary: Vocabulary) -> ChatTemplate:
    """A base's own template, or the default where it has none.

    Raises:
        TemplateError: it is broken.
    """
    return (
        ChatTemplate(FALLBACK_SOURCE, vocabulary, FALLBACK_NAME) if source is None else ChatTemplate(source, vocabulary)
    )


def _any_of(texts: Sequence[str]) -> re.Pattern[str] | None:
    texts = sorted({text for text in texts if text}, key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, texts)) + ")") if texts else None


def _unused_characters(text: str) -> tuple[str, str]:
    unused = (chr(code) for code in _PRIVATE_USE if chr(code) not in text)
    try:
        return next(unused), next(unused)
    except StopIteration:
        raise TemplateError("the conversation uses every private-use character of Unicode") from None


def _raise_exception(message: str) -> None:
    raise TemplateError(f"the chat template refuses this conversation: {message}")
