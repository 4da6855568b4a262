"""Opens seeded mutations of a base and computes with them: `python hostile_base.py FILE WORKDIR FIRST LAST`.

Run in a process of its own, since what it looks for would end the process. Prints each seed before its turn.
"""

from __future__ import annotations

import random
import resource
import signal
import struct
import sys
from pathlib import Path

from icarus_local.engine.engine import Engine
from icarus_local.errors import IcarusError
from icarus_local.ggml.gguf import GgufFile
from icarus_local.text.template import ChatTemplate
from icarus_local.text.tokenizer import Tokenizer

MOST_SECONDS = 120  # a mutation takes 0.03
MOST_BYTES = 8 << 30  # of addresses; what is asked for beyond them is too much for a model of 1 MiB
NUMBERS = [0, 1, 2, 3, 5, 7, 8, 9, 16, 31, 33, 63, 64, 65, 128, 255, 4095, 2**16, 2**24, 2**30, 2**31 - 1, 2**31]
WORDS = [
    *(struct.pack("<I", number) for number in [*NUMBERS, 2**32 - 1]),
    *(struct.pack("<f", number) for number in (-1, 1e-45, 1e-6, 0.5, 1, 1e6, 1e30, float("inf"), float("nan"))),
]
N_TYPES = 13  # of values in a GGUF file


def places(path: Path) -> tuple[int, list[int], list[int], list[int]]:
    """End of the metadata, and where it has values of the architecture's keys, types of keys, and tensor sizes."""
    data = path.read_bytes()
    with GgufFile(path) as file:
        prefix = f"{file.value('general.architecture')}."
        ends = [data.index(key.encode()) + len(key) for key in file.keys() if key.startswith(prefix)]  # noqa: SIM118
        tensors = [data.index(struct.pack("<Q", len(name)) + name.encode()) + 8 + len(name) for name in file.tensors]
        return min(info.offset for info in file.tensors.values()), [end + 4 for end in ends], ends, tensors


def mutated(data: bytes, where: tuple[int, list[int], list[int], list[int]], rng: random.Random) -> bytes:
    """A few numbers or bytes changed, most of them among the keys and the tensor table; sometimes cut short."""
    n_meta, values, types, tensors = where
    result = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        what = rng.random()
        if what < 0.4:
            place = rng.choice(values)
            result[place : place + 4] = rng.choice(WORDS)
        elif what < 0.5:
            result[rng.choice(types)] = rng.randrange(N_TYPES)
        elif what < 0.6:
            place = rng.choice(tensors) + rng.choice([0, 4, 12, 20])  # dimensions, sizes, and what follows them
            result[place : place + 4] = rng.choice(WORDS)
        else:
            place = rng.randrange(n_meta) if rng.random() < 0.95 else rng.randrange(len(result))
            result[place] = rng.choice(
                [0, 1, 0xFF, 0x7F, 0x80, rng.randrange(256), result[place] ^ (1 << rng.randrange(8))]
            )
    return bytes(result[: rng.randrange(len(result))] if rng.random() < 0.05 else result)


def use(path: Path) -> None:
    """What a chat does with a base."""
    with Engine(path, n_ctx=256, n_threads=1) as engine:
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
    data, where = source.read_bytes(), places(source)
    use(source)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    refused = 0
    for seed in range(first, last):
        print(f"seed {seed}", file=sys.stderr, flush=True)
        path = workdir / "mutated.gguf"
        path.write_bytes(mutated(data, where, random.Random(seed)))
        signal.alarm(MOST_SECONDS)
        try:
            use(path)
        except IcarusError:
            refused += 1
    print(f"{last - first} mutations, {refused} refused, the others computed")


if __name__ == "__main__":
    main()
