"""`icarus-train fetch` makes training records of a dataset on the Hub, and names the rows that it cannot use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from icarus_models.cli import main
from tests.hub_server import HubServer, serving

_COMMAND = "from icarus_models.cli import main; main()"


def jsonl(rows: Iterable[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def written(out: Path, name: str) -> list[Any]:
    return [json.loads(line)["messages"] for line in (out / f"{name}.jsonl").read_text("utf-8").splitlines()]


def turns(asked: str, said: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]


class FromFolder:
    """The command on files in a folder, as a dataset on the Hub has them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder / "set", folder / "out"
        self.folder.mkdir()

    def __call__(self, *given: str, rows: Iterable[Any] = ()) -> Result:
        if rows:
            (self.folder / "train.jsonl").write_bytes(jsonl(rows))
        return CliRunner().invoke(main, ["fetch", str(self.folder), "-o", str(self.out), "--heldout", "1", *given])


@pytest.fixture
def fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FromFolder:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    return FromFolder(tmp_path)


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"prompt": "1+1?", "answer": "2"}, turns("1+1?", "2")),
        ({"prompt": "1+1?", "completion": "2", "id": 7}, turns("1+1?", "2")),
        ({"question": "1+1?", "answer": "2"}, turns("1+1?", "2")),
        ({"instruction": "Add.", "input": "1 and 1", "output": "2"}, turns("Add.\n\n1 and 1", "2")),
        ({"instruction": "Add 1 and 1.", "input": "", "output": "2"}, turns("Add 1 and 1.", "2")),
        ({"messages": turns("1+1?", "2"), "prompt": "another"}, turns("1+1?", "2")),
        (
            {"conversations": [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "2"}]},
            turns("1+1?", "2"),
        ),
        ({"prompt": turns("1+1?", "2")[:1], "completion": turns("1+1?", "2")[1:]}, turns("1+1?", "2")),
    ],
)
def test_forms_that_datasets_have(fetch: FromFolder, row: dict[str, Any], messages: list[Any]) -> None:
    other = json.loads(json.dumps(row).replace("1+1", "1+2").replace("Add", "Sum"))
    assert fetch(rows=[row, other]).exit_code == 0
    assert messages in written(fetch.out, "train") + written(fetch.out, "heldout")


def test_columns_of_other_names_are_given(fetch: FromFolder) -> None:
    rows = [{"q": f"{n}+{n}?", "a": str(2 * n), "prompt": "no", "answer": "no"} for n in range(5)]
    assert fetch("--question", "q", "--answer", "a", rows=rows).exit_code == 0
    both = written(fetch.out, "train") + written(fetch.out, "heldout")
    assert sorted(both, key=repr) == [turns(row["q"], row["a"]) for row in rows]


def test_sizes_order_and_repeats(fetch: FromFolder) -> None:
    rows = [{"prompt": f"{n}?", "answer": "yes"} for n in range(40)] + [{"prompt": "1?", "answer": "yes"}] * 40
    assert fetch("--train", "20", "--heldout", "5", rows=rows).exit_code == 0
    train, heldout = written(fetch.out, "train"), written(fetch.out, "heldout")
    assert (len(train), len(heldout)) == (20, 5)
    different = {repr(one) for one in train + heldout}
    assert len(different) == 25, "no record twice, nor in both files"
    assert fetch("--train", "20", "--heldout", "5").exit_code == 0
    assert written(fetch.out, "train") == train, "the same seed, the same records"
    assert fetch("--train", "20", "--heldout", "5", "--seed", "1").exit_code == 0
    assert written(fetch.out, "train") != train


def test_rows_that_cannot_be_used_are_named(fetch: FromFolder) -> None:
    good = [{"prompt": f"{n}?", "answer": "yes"} for n in range(3)]
    result = fetch(rows=[*good, {"prompt": "3?", "answer": " "}, {"prompt": "4?", "answer": None}])
    assert result.exit_code == 0, result.output
    assert "2 rows left out: row 4: a message of the assistant without content; row 5:" in result.output
    assert len(written(fetch.out, "train")) == 2


def test_system_messages(fetch: FromFolder) -> None:
    rows = [{"messages": [{"role": "system", "content": "Be kind."}, *turns(f"{n}?", "yes")]} for n in range(3)]
    refused = fetch(rows=rows)
    assert refused.exit_code == 1
    assert "row 1: a message of the role 'system'" in refused.output
    assert "0 rows can be used" in refused.output
    assert not (fetch.out / "train.jsonl").exists()
    assert fetch("--without-system").exit_code == 0
    assert turns("0?", "yes") in written(fetch.out, "train") + written(fetch.out, "heldout")


def test_what_is_held_out_is_not_asked_in_training(fetch: FromFolder) -> None:
    rows = [{"prompt": f"{n}?{' ' * m}", "answer": f"{m}"} for n in range(6) for m in range(4)]
    result = fetch("--heldout", "5", rows=rows)
    assert result.exit_code == 0, result.output
    train, heldout = written(fetch.out, "train"), written(fetch.out, "heldout")
    assert len(heldout) == 5
    asked = [{one[0]["content"].strip() for one in side} for side in (train, heldout)]
    assert asked[0]
    assert asked[0].isdisjoint(asked[1])
    assert len(train) == 24 - 4 * len(asked[1])
    assert "it asks what a held-out row asks" in result.output


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--split", "test"), "test"),
        (("--config", "french"), "french"),
        (("--question", "prompt"), "--answer"),
        (("--question", "q", "--answer", "a"), "no question and answer among the columns prompt, answer"),
    ],
)
def test_what_is_not_there(fetch: FromFolder, given: tuple[str, ...], said: str) -> None:
    result = fetch(*given, rows=[{"prompt": f"{n}?", "answer": "yes"} for n in range(3)])
    assert result.exit_code in (1, 2)
    assert said in result.output
    assert "Traceback" not in result.output


def test_a_folder_without_data(fetch: FromFolder) -> None:
    result = fetch()
    assert result.exit_code == 1
    assert f"the dataset {fetch.folder} cannot be read" in result.output


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    with serving(tmp_path / "hub") as server:
        yield server


def from_hub(hub: HubServer, out: Path, *given: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: endpoints are read when the libraries load."""
    mine = {"HF_ENDPOINT": hub.url, "HF_HOME": str(out.parent / "home"), "HF_HUB_DOWNLOAD_TIMEOUT": "5", **changes}
    return subprocess.run(
        [sys.executable, "-c", _COMMAND, "fetch", "-o", str(out), "--heldout", "2", *given],
        env={**os.environ, **mine},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_a_dataset_of_the_hub_is_read_at_one_commit(hub: HubServer, tmp_path: Path) -> None:
    rows = [{"question": f"{n}?", "answer": "yes"} for n in range(9)]
    commit = hub.add("acme/sums/data/train.jsonl", jsonl(rows))
    done = from_hub(hub, tmp_path / "out", "acme/sums")
    assert done.returncode == 0, done.stderr
    both = written(tmp_path / "out", "train") + written(tmp_path / "out", "heldout")
    assert sorted(both, key=repr) == [turns(row["question"], "yes") for row in rows]
    assert json.loads((tmp_path / "out/source.json").read_text("utf-8"))["commit"] == commit
    read = [asked.path for asked in hub.asked if asked.method == "GET" and "resolve" in asked.path]
    assert read
    assert all(f"/resolve/{commit}/" in path for path in read)


@pytest.mark.slow
def test_a_dataset_that_the_hub_does_not_give(hub: HubServer, tmp_path: Path) -> None:
    hub.add("acme/sums/train.jsonl", jsonl([{"prompt": "?", "answer": "!"}]))
    for given, said in (
        (("acme/other",), "there is no repository"),
        (("acme/sums", "--revision", "v9"), "has no revision v9"),
        (("sums",), "Give OWNER/NAME, or a folder"),
    ):
        failed = from_hub(hub, tmp_path / "out", *given)
        assert failed.returncode == 1
        assert said in failed.stderr
        assert "Traceback" not in failed.stderr
    hub.gated = frozenset({"acme/sums"})
    assert "access must be granted first" in from_hub(hub, tmp_path / "out", "acme/sums").stderr
    nowhere = from_hub(hub, tmp_path / "out", "acme/sums", HF_ENDPOINT="http://127.0.0.1:9")
    assert "the connection to http://127.0.0.1:9 failed" in nowhere.stderr
