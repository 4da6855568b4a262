"""Renders a model's Jinja chat template to token ids in which only the template can place control tokens."""

from __future__ import annotations

import datetime
import functools
import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from jinja2.exceptions import TemplateSyntaxError

from icarus_local.errors import TemplateError
from icarus_local.text.sandbox import MAX_SIZE, LimitError, Sandbox, place_of

# Private-use characters mark places in the rendered text; a message that holds one gets the next.
_PRIVATE_USE = range(0xE000, 0xF8FF)
_MAX_REASON = 500
# A character that no vocabulary has and no template writes.
_UNKNOWN = "\uf8fe"
_QUESTION = {"role": "user", "content": "a"}

THINK, THOUGHT = "<think>", "</think>"
"""What stands around a model's thought."""

FALLBACK_NAME = "chatml"
FALLBACK_SOURCE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_HINT = "Give another with --chat-template FILE"

Message = Mapping[str, Any]


class Vocabulary(Protocol):
    """What a template needs of a tokenizer.

    It may also have `adds_bos` (its texts begin with BOS) and `strips_right` (control tokens that swallow the white
    space behind them).
    """

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

    def __init__(
        self,
        source: str,
        vocabulary: Vocabulary,
        name: str = "tokenizer.chat_template",
        now: datetime.datetime | None = None,
    ) -> None:
        """Compiles `source`; `now` is the time that it is told, where it asks for one: None is that of this call.

        Raises:
            TemplateError: empty, too large, or a syntax error, with its line and column.
        """
        # Some editors begin a file with a byte order mark, which would open every prompt.
        source = source.removeprefix("\ufeff")
        if not source.strip():
            raise TemplateError(f"the chat template {name} is empty")
        if len(source) > MAX_SIZE:
            raise TemplateError(f"the chat template {name} has {len(source)} characters; {MAX_SIZE} are allowed")
        self.source, self.name, self._vocabulary = source, name, vocabulary
        self.sha256 = hashlib.sha256(source.encode()).hexdigest()
        self._sandbox = Sandbox()
        self._sandbox.globals["raise_exception"] = self._raise_exception
        # One moment for all renderings: a date that changed would change the whole conversation's ids.
        moment = now or datetime.datetime.now()
        self._sandbox.globals["strftime_now"] = lambda form: _formatted_time(moment, form)
        try:
            self._template = self._sandbox.from_string(source)
        except TemplateSyntaxError as error:
            raise TemplateError(f"the chat template {name} is broken{place_of(error)}: {error.message}") from error
        except Exception as error:  # nested too deeply for the compiler, for one
            raise TemplateError(f"the chat template {name} cannot be compiled: {error}") from error
        # Gemma's runs of spaces and of line ends mean nothing to a template, and ordinary text needs them whole.
        self._user_defined = {text for text in vocabulary.user_defined if text.strip(" \t\n\r▁")}
        self._special = _any_of([*vocabulary.controls, *self._user_defined])
        # A template looks for `</think>` in what an assistant said, and may cut there: that it must find whole.
        unread = [text for text in self._user_defined if text not in source]
        self._special_in_answers = _any_of([*vocabulary.controls, *unread])
        self._controls = _any_of([*vocabulary.controls])
        self._strips_right: frozenset[int] = getattr(vocabulary, "strips_right", frozenset())
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
                special = self._special_in_answers if message["role"] == "assistant" else self._special
                shown.append({**message, "content": self._break_up(content, breaker, special)})
        return self._to_ids(self._render_text(shown, add_generation_prompt), answers, breaker, marker)

    def _break_up(self, text: str, breaker: str, special: re.Pattern[str] | None) -> str:
        """Puts `breaker` into every special string, so that what is whole in the rendering came from the template."""
        if special is None:
            return text
        # Searched on from the second character of each hit: special strings may overlap.
        result, start = [], 0
        while match := special.search(text, start):
            result.append(text[start : match.start() + 1] + breaker)
            start = match.start() + 1
        return "".join(result) + text[start:]

    def _render_text(self, messages: list[dict[str, Any]], add_generation_prompt: bool) -> str:
        named = {"bos_token": self._vocabulary.bos, "eos_token": self._vocabulary.eos}
        self._sandbox.budget.begin(MAX_SIZE + 4 * sum(64 + len(message["content"]) for message in messages))
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **{name: self._vocabulary.token_text(token) for name, token in named.items() if token is not None},
            )
        except LimitError as error:
            raise LimitError(f"the chat template {self.name} is stopped{place_of(error)}: {error}", _HINT) from error
        except TemplateError:
            raise
        except Exception as error:  # whatever a template's own code brings about
            raise TemplateError(
                f"the chat template {self.name} fails on this conversation{place_of(error)}: {error}", _HINT
            ) from error
        finally:
            self._sandbox.budget.end()

    def _raise_exception(self, message: object) -> None:
        raise TemplateError(f"the chat template refuses this conversation: {str(message)[:_MAX_REASON]}")

    def _to_ids(self, rendered: str, answers: list[Answer], breaker: str, marker: str) -> list[int]:
        placed = 0
        ids: list[int] = []
        parts = re.split(f"{marker}(\\d+){marker}", rendered)
        for i, part in enumerate(parts):
            if i % 2:
                ids += answers[int(part)]
                placed += int(part) == placed
            else:
                text = part.removesuffix(self._padding) if i + 1 < len(parts) else part
                ids += self._text_to_ids(text, breaker, continued=i > 0)
        if placed != len(answers) or len(parts) != 2 * len(answers) + 1:
            raise TemplateError(
                f"the chat template {self.name} drops, repeats or reorders earlier answers, so they cannot be kept as "
                "they were generated",
                _HINT,
            )
        return ids

    def _text_to_ids(self, text: str, breaker: str, continued: bool) -> list[int]:
        """Text between two control tokens is tokenised whole: cut anywhere else it gives other ids.

        `continued` says that the text goes on after an answer, not after a control token.
        """
        ids: list[int] = []
        for i, piece in enumerate(self._controls.split(text) if self._controls else [text]):
            if i % 2:
                ids.append(self._vocabulary.controls[piece])
                continue
            plain = piece.lstrip() if i and ids[-1] in self._strips_right else piece
            if plain:
                ids += self._plain_to_ids(plain, breaker, continued and i == 0)
        return ids

    def _plain_to_ids(self, piece: str, breaker: str, continued: bool) -> list[int]:
        # A USER_DEFINED token is recognised in plain text too: only there is the text cut where it was broken up.
        runs = self._cut_user_defined(piece, breaker) if self._user_defined else [piece.replace(breaker, "")]
        ids: list[int] = []
        for i, run in enumerate(runs):
            ids += self._continue(run) if continued or i else self._encode(run)
        return ids

    def _cut_user_defined(self, piece: str, breaker: str) -> list[str]:
        parts = piece.split(breaker)
        text, markup = "".join(parts), tuple(self._user_defined)
        cuts, at = [0], 0
        for part in parts[:-1]:
            at += len(part)
            # The breaker stands behind the first character.
            if at and text.startswith(markup, at - 1):
                cuts.append(at)
        return [text[a:b] for a, b in itertools.pairwise([*cuts, len(text)]) if a < b]

    def _continue(self, text: str) -> tuple[int, ...]:
        """Ids of text that goes on after other text: without the space that SentencePiece puts before a text."""
        if not self._spaced:
            return self._encode(text)
        return self._encode(_UNKNOWN + text)[len(self._encode(_UNKNOWN)) :]

    @functools.cached_property
    def _spaced(self) -> bool:
        """Whether the vocabulary puts a space before a text."""
        return self._encode(_UNKNOWN * 2) != self._encode(_UNKNOWN) * 2

    @functools.cached_property
    def accepts_system(self) -> bool:
        """Whether a system message may open a conversation, is shown, and stays where it is as the conversation grows.

        Where it moves (to the last question, as in some of Mistral's) all would be encoded again at every turn.
        """
        system = {"role": "system", "content": _UNKNOWN}
        try:
            shown = _UNKNOWN in self._render_text([system, _QUESTION], True)
            return shown and (self._grows([system, _QUESTION]) or not self._grows([_QUESTION]))
        except LimitError:
            raise
        except TemplateError:
            return False

    @functools.cached_property
    def drops_thoughts(self) -> bool:
        """Whether an answer loses its thought (`<think>…</think>`) when another question follows."""
        thinking = {"role": "assistant", "content": f"{THINK}\n{_UNKNOWN}\n{THOUGHT}\n\na"}
        try:
            return _UNKNOWN not in self._render_text([_QUESTION, thinking, _QUESTION], True)
        except LimitError:
            raise
        except TemplateError:
            return False

    @functools.cached_property
    def opens_thought(self) -> bool:
        """Whether its generation prompt opens a thought."""
        return self._render_text([_QUESTION], True).rstrip().endswith(THINK)

    def _grows(self, messages: list[dict[str, Any]]) -> bool:
        """Whether an answer and another question leave the ids of `messages` as they are."""
        prompt = self.render(messages)
        more = self.render([*messages, {"role": "assistant", "content": Answer([-1])}, _QUESTION])
        return more[: len(prompt)] == prompt

    @functools.cached_property
    def _padding(self) -> str:
        """White space that the template puts between a generation prompt and the answer when it renders it later.

        An answer began right behind the prompt, so there it is left out: else every turn would encode it again.
        """
        try:
            prompt = self._render_text([_QUESTION], True)
            whole = self._render_text([_QUESTION, {"role": "assistant", "content": _UNKNOWN}], False)
        except LimitError:
            raise
        except TemplateError:
            return ""
        before = whole.partition(_UNKNOWN)[0]
        padding = before.removeprefix(prompt) if before.startswith(prompt) else ""
        return padding if padding.isspace() else ""

    @functools.cached_property
    def end_of_turn(self) -> int:
        """The control token that closes an assistant message.

        Raises:
            TemplateError: the template puts no control token after an answer.
        """
        ids = self.render([_QUESTION, {"role": "assistant", "content": Answer([-1])}], False)
        controls = set(self._vocabulary.controls.values())
        for token in ids[ids.index(-1) + 1 :]:
            if token in controls:
                return token
        if self._vocabulary.eos is not None:
            return self._vocabulary.eos
        raise TemplateError(f"the chat template {self.name} closes no answer with a control token")


def own_template(source: str | None, vocabulary: Vocabulary, now: datetime.datetime | None = None) -> ChatTemplate:
    """A base's own template, or the default where it has none; `now` as of `ChatTemplate`.

    Raises:
        TemplateError: it is broken.
    """
    if source is not None:
        return ChatTemplate(source, vocabulary, now=now)
    # No template says where BOS belongs, so the vocabulary does.
    opening = "{{ bos_token }}" if getattr(vocabulary, "adds_bos", False) else ""
    return ChatTemplate(opening + FALLBACK_SOURCE, vocabulary, FALLBACK_NAME, now)


def _any_of(texts: Sequence[str]) -> re.Pattern[str] | None:
    texts = sorted({text for text in texts if text}, key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, texts)) + ")") if texts else None


def _unused_characters(text: str) -> tuple[str, str]:
    unused = (chr(code) for code in _PRIVATE_USE if chr(code) not in text)
    try:
        return next(unused), next(unused)
    except StopIteration:
        raise TemplateError("the conversation uses every private-use character of Unicode") from None


def _formatted_time(now: datetime.datetime, form: str) -> str:
    # The C library takes widths of any size.
    if len(form) > 256 or re.search(r"%\W*\d", form):
        raise LimitError("it formats the time too wide")
    return now.strftime(form)
