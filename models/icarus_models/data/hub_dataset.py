"""A dataset of the Hugging Face Hub, or of a folder, as training records: `datasets` reads it row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icarus_local.errors import IcarusError
from icarus_models.data.shape import Record
from icarus_models.records import checked_messages

# Where a dataset has its conversations, or its questions and answers; the first that it has is read.
_CHATS = ("messages", "conversations", "conversation")
_PAIRS = (
    ("prompt", "answer"),
    ("prompt", "completion"),
    ("prompt", "response"),
    ("question", "answer"),
    ("question", "response"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("input", "output"),
)
_ROLES = {"human": "user", "gpt": "assistant"}
_BESIDE = {"instruction": "input"}  # Alpaca's: what the instruction is about, in a column of its own
_BUFFER = 10_000  # rows that are shuffled at once: nobody waits for the whole of a large dataset


@dataclass(frozen=True, slots=True)
class Source:
    """Which rows are meant, and where in them question and answer stand.

    Attributes:
        name: OWNER/NAME on the Hub, or a folder. config, split, revision: as `datasets.load_dataset` has them.
        columns: of question and answer; None finds them by their names.
        without_system: leaves system messages out, instead of the rows that have one.
    """

    name: str
    config: str | None = None
    split: str = "train"
    revision: str | None = None
    columns: tuple[str, str] | None = None
    without_system: bool = False


@dataclass(slots=True)
class Drawn:
    """Records that differ, those held out ask what no other asks; and the rows left out: `(row number, reason)`."""

    train: list[Record]
    heldout: list[Record]
    left_out: list[tuple[int, str]]


def commit_of(source: Source) -> str | None:
    """The commit that a dataset's revision is; None for one in a folder.

    Raises:
        IcarusError: there is none of that name, no access to it, or no connection.
    """
    from huggingface_hub import HfApi

    from icarus_local.hub_place import Place, in_words

    if Path(source.name).is_dir():
        return None
    if source.name.count("/") != 1:
        raise IcarusError(f"{source.name} is no folder, and can be no dataset's name", "Give OWNER/NAME, or a folder")
    with in_words(Place(f"datasets/{source.name}"), source.revision):
        commit = HfApi().dataset_info(source.name, revision=source.revision).sha
    return str(commit)


def draw(source: Source, sizes: tuple[int, int], seed: int) -> Drawn:
    """Records of a dataset in a seeded order, at most `sizes` for training and held out; rows without use are named.

    Raises:
        IcarusError: `datasets` is missing, the dataset cannot be read, or none of the rows looked at can be used.
    """
    n_train, n_heldout = sizes
    train: dict[str, Record] = {}
    heldout: dict[str, Record] = {}
    questions: set[str] = set()
    left_out: list[tuple[int, str]] = []
    with _in_words(source):
        for number, row in _rows(source, seed):
            try:
                record = {"messages": _messages(row, source)}
                question = _question(checked_messages(record))
                key = repr(record)
                if len(heldout) < n_heldout:
                    heldout.setdefault(key, record)
                    questions.add(question)
                elif key not in heldout:
                    if question in questions:
                        raise ValueError("it asks what a held-out row asks")
                    train.setdefault(key, record)
            except ValueError as error:
                left_out.append((number, str(error)))
            if len(train) == n_train:
                break
    return Drawn(list(train.values()), list(heldout.values()), left_out)


def _question(messages: list[Record]) -> str:
    """What a conversation asks first, without case and white space that would hide that two ask the same."""
    return " ".join(messages[0]["content"].casefold().split())


def _rows(source: Source, seed: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows with their numbers from 1, shuffled."""
    import datasets

    rows = datasets.load_dataset(
        source.name, source.config, split=source.split, revision=source.revision, streaming=True
    )
    numbered = rows.map(lambda row, index: {"row": row, "number": index + 1}, with_indices=True)
    for both in numbered.shuffle(seed, buffer_size=_BUFFER):
        yield both["number"], both["row"]


def _messages(row: Mapping[str, Any], source: Source) -> list[Record]:
    """The messages of a row, with roles and contents only. Raises `ValueError`: there are none."""
    chat = next((name for name in _CHATS if row.get(name)), None)
    if source.columns is None and chat is not None:
        messages = _turns(row[chat], "")
    else:
        pairs = _PAIRS if source.columns is None else (source.columns,)
        asked, answered = next(((a, b) for a, b in pairs if a in row and b in row), ("", ""))
        if not asked:
            raise ValueError(f"no question and answer among the columns {', '.join(row)}")
        question, more = row[asked], row.get(_BESIDE.get(asked, ""))
        if source.columns is None and isinstance(more, str) and more.strip():
            question = f"{question}\n\n{more}"
        messages = [*_turns(question, "user"), *_turns(row[answered], "assistant")]
    return [one for one in messages if not (source.without_system and one["role"] == "system")]


def _turns(value: Any, role: str) -> list[Record]:
    """A column's messages: it holds a list of them, or the text of one."""
    if not isinstance(value, list):
        return [{"role": role, "content": value}]
    turns = []
    for one in value:
        if not isinstance(one, Mapping):
            raise ValueError("a message that is not a JSON object")
        said = one.get("role", one.get("from"))
        turns.append({"role": _ROLES.get(said, said), "content": one.get("content", one.get("value"))})
    return turns


@contextmanager
def _in_words(source: Source) -> Iterator[None]:
    try:
        import datasets
    except ImportError as error:
        raise IcarusError(
            f"datasets of the Hub are read by `datasets`, which is not installed ({error.name})",
            "pip install 'icarus-local[data]'",
        ) from error
    datasets.disable_progress_bars()
    try:
        yield
    except IcarusError:
        raise
    # What it raises is open: of its own, of huggingface-hub, of pyarrow and of whatever opens its files.
    except Exception as error:
        said = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise IcarusError(
            f"the dataset {source.name} cannot be read: {said}", "Check its name, --config, --split and --revision"
        ) from error
