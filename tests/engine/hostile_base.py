"""Opens seeded mutations of a base and computes with them: `python hostile_base.py FILE WORKDIR FIRST LAST`.

Run in a process of its own, since what it looks for would end the process. Prints each seed before its turn.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from icarus_local.engine.engine import Engine
from icarus_local.errors import IcarusError
from icarus_local.text.template import ChatTemplate
from icarus_local.text.tokenizer import Tokenizer


def mutated(data: bytes, n_meta: int, rng: random.Random) -> bytes:
    """A few bytes changed, most of them among the keys and the tensor table; sometimes cut short."""
    result = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4, 16])):
        place = rng.randrange(n_meta) if rng.random() < 0.95 else rng.randrange(len(result))
        result[place] = rng.choice(
            [0, 1, 0xFF, 0x7F, 0x80, rng.randrange(256), result[place] ^ (1 << rng.randrange(8))]
        )
    return bytes(result[: rng.randrange(len(result))] if rng.random() < 0.05 else result)


def use(path: Path) -> None:
    """What a chat does with a base."""
    with Engine(path, n_ctx=256) as engine:
        sequence = engine.cells.create()
        engine.forward(encode=[(sequence, [1, 2, 3])])
        engine.forward(encode=[(sequence, [4])], decode=[(sequence, None)])
    tokenizer = Tokenizer(path)
    tokenizer.decode(tokenizer.encode("Hello there, world 12 345\n"))
    if tokenizer.template_source:
        ChatTemplate(tokenizer.template_source, tokenizer).render([{"role": "user", "content": "hi"}])
    tokenizer.close()


def main() -> None:
    source, workdir, first, last = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    data = source.read_bytes()
    n_meta = int(sys.argv[5])
    refused = 0
    for seed in range(first, last):
        print(f"seed {seed}", file=sys.stderr, flush=True)
        path = workdir / "mutated.gguf"
        path.write_bytes(mutated(data, n_meta, random.Random(seed)))
        try:
            use(path)
        except IcarusError:
            refused += 1
    print(f"{last - first} mutations, {refused} refused, the others computed")


if __name__ == "__main__":
    main()
