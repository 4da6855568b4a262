"""The ordinary LoRA that an ICaRus adapter is distilled from: it shares the base's weights with the student."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from peft import PeftModel
from transformers.cache_utils import DynamicCache

from icarus_local.errors import IcarusError
from icarus_models.records import Renderer, lines_of, messages_of, named, parsed
from icarus_models.reference import cache_argument


def answer_prompts(
    prompts: Path,
    file: Path,
    *,
    teacher: PeftModel,
    renderer: Renderer,
    max_tokens: int,
    tell: Callable[[str], None],
) -> None:
    """Writes `file`: the records of `prompts`, and where one has no answer, with the teacher's.

    Records are answered greedily, so that they have at most `max_tokens` with their answers, and kept as they come: a
    run that was killed goes on. Lines that cannot be used stay as they are, for whoever reads the file to name.

    Raises:
        IcarusError: the prompts cannot be read, or the file not be written.
    """
    lines = list(lines_of(prompts))
    try:
        raw = file.read_text(encoding="utf-8") if file.is_file() else ""
        # The last line may have been cut off.
        done = raw[: raw.rfind("\n") + 1].split("\n")[:-1]
        left_out: list[tuple[int, str]] = []
        with file.open("w", encoding="utf-8") as handle:
            for index, (number, line) in enumerate(lines):
                if index < len(done):
                    answer = done[index]
                else:
                    try:
                        answer = _answered(line, renderer, teacher, max_tokens)
                    except (ValueError, IcarusError) as error:
                        left_out.append((number, str(error)))
                        answer = line
                handle.write(answer + "\n")
                handle.flush()
                if (index + 1) % 10 == 0 or index + 1 == len(lines):
                    tell(f"{file}: {index + 1} of {len(lines)} prompts answered")
    except OSError as error:
        raise IcarusError(f"{file} cannot be written: {error.strerror}") from error
    if left_out:
        tell(f"{prompts}: {named(left_out)}")


def _answered(line: str, renderer: Renderer, teacher: PeftModel, max_tokens: int) -> str:
    messages = messages_of(parsed(line))
    if messages[-1]["role"] == "assistant":
        return line
    prompt = renderer.prompt(messages)
    room = max_tokens - len(prompt)
    if room < 1:
        raise ValueError(f"the prompt has {len(prompt)} tokens, of {max_tokens}")
    text = renderer.tokenizer.decode(_greedily(teacher, prompt, room, renderer))
    if not text.strip():
        raise ValueError("the teacher says nothing")
    said = {"role": "assistant", "agent": renderer.speaker.name, "content": text}
    return json.dumps({"messages": [*messages, said]}, ensure_ascii=False)


def _greedily(teacher: PeftModel, prompt: list[int], most: int, renderer: Renderer) -> list[int]:
    base, said = teacher.get_base_model(), list[int]()
    cache = DynamicCache()
    ids = torch.tensor([prompt], device=teacher.device)
    with torch.no_grad():
        while len(said) < most:
            logits = base(input_ids=ids, use_cache=True, **{cache_argument(base): cache}).logits
            token = int(logits[0, -1].argmax())
            if renderer.tokenizer.is_end_of_generation(token):
                break
            said.append(token)
            ids = torch.tensor([[token]], device=teacher.device)
    return said
