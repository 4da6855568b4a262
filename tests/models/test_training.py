"""Toy runs of both methods: the loss falls, resuming gives the same weights, only what may move has moved."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from icarus_convert.write import convert_adapter
from icarus_local.engine.engine import Engine
from icarus_local.errors import AdapterError, IcarusError
from icarus_local.text.tokenizer import Tokenizer
from icarus_models import training
from icarus_models.base import load_base
from icarus_models.batches import plan_rows
from icarus_models.catalog import agents
from icarus_models.evaluation.adapters import ordinary_gguf
from icarus_models.losses import LOSSES, mean_loss
from icarus_models.recipe import TARGET_MODULES, Recipe
from icarus_models.records import Renderer, dated_template, read_samples
from icarus_models.reference import add_lora
from icarus_models.run_files import RUN_FILE, write_json
from icarus_models.trainer import on_one_device
from icarus_models.training import train
from tests.convert.hf_models import save
from tests.tiny import Tiny, tiny_llama

from .conftest import Toy

WEIGHTS = "adapter_model.safetensors"


def quiet(line: str) -> None:
    pass


def facts(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / RUN_FILE).read_text(encoding="utf-8")))


@pytest.mark.parametrize("method", ["icarus", "lora"])
def test_a_run_learns_and_leaves_a_whole_folder(toy: Toy, method: str) -> None:
    told: list[str] = []
    with toy.data.open("a", encoding="utf-8") as file:
        file.write("\n{\n" + json.dumps({"prompt": "q", "answer": "long" * 300}))
    adapter = train(toy.recipe(method=method), toy.base, told.append)
    found = facts(adapter)
    assert found["format"] == 1
    assert found["method"] == method
    assert found["losses"]["heldout_trained"] < 0.5 * found["losses"]["heldout_base"]
    assert found["steps"] == {"planned": 12, "done": 12, "stopped_by_time": False}
    assert len(found["base_family_id"]) == len(found["tokenizer_sha256"]) == len(found["data_sha256"]["train"]) == 64
    assert found["versions"]["torch"]
    assert [number for number, _ in found["data"]["train"]["left_out"]] == [9, 10]
    assert any("line 9: not JSON" in line and "line 10: " in line for line in told)
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    assert sorted(config["target_modules"]) == ["down_proj", "gate_proj", "o_proj", "q_proj", "up_proj"]
    assert config["base_model_name_or_path"] == found["base"] == toy.base.name
    assert str(toy.folder) not in (adapter / "adapter_config.json").read_text("utf-8")
    card = (adapter / "README.md").read_text("utf-8")
    assert "8 conversations" in card
    assert "2 lines left out" in card
    assert ("shared cache it is wrong" in card) is (method == "lora")
    assert any("step 10/12" in line for line in told)
    with pytest.raises(IcarusError, match="finished"):
        train(toy.recipe(method=method), toy.base, quiet)


def test_only_q_o_and_the_mlp_move(toy: Toy) -> None:
    weights = load_file(train(toy.recipe(), toy.base, quiet) / WEIGHTS)
    assert len(weights) == 2 * 2 * len(TARGET_MODULES)
    for name, tensor in weights.items():
        assert any(f".{module}." in name for module in TARGET_MODULES)
        if "lora_B" in name:
            assert tensor.abs().max() > 0, f"{name} did not move"
    # An ordinary LoRA may adapt K and V, and then they move.
    modules = (*TARGET_MODULES, "k_proj", "v_proj")
    ordinary = load_file(train(toy.recipe("other", method="lora", modules=modules), toy.base, quiet) / WEIGHTS)
    moved = [name for name, tensor in ordinary.items() if "lora_B" in name and tensor.abs().max() > 0]
    assert len(moved) == 2 * len(modules)


def test_both_methods_see_the_same_data_and_start_alike(toy: Toy) -> None:
    folders = [train(toy.recipe(method, method=method), toy.base, quiet) for method in ("icarus", "lora")]
    runs = [facts(folder) for folder in folders]
    for key in ("data", "data_sha256", "template_sha256", "tokenizer_sha256", "weights", "steps"):
        assert runs[0][key] == runs[1][key], key
    assert runs[0]["losses"]["heldout_base"] == pytest.approx(runs[1]["losses"]["heldout_base"], abs=1e-5)
    assert runs[0]["recipe"] == {**runs[1]["recipe"], "method": "icarus"}
    # They learnt by other functions.
    one, other = (load_file(folder / WEIGHTS) for folder in folders)
    assert any((tensor - other[name]).abs().max() > 1e-3 for name, tensor in one.items())


@pytest.mark.parametrize("method", ["icarus", "lora"])
def test_resuming_gives_the_same_weights(toy: Toy, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    changes: dict[str, Any] = {"method": method, "dropout": 0.1, "pack": True, "accumulation": 2, "max_steps": 8}
    whole = load_file(train(toy.recipe(**changes), toy.base, quiet) / WEIGHTS)
    again = toy.recipe("again", **changes)
    killed_at_the_first_checkpoint(again, toy, monkeypatch)
    with pytest.raises(IcarusError, match="--resume"):
        train(again, toy.base, quiet)
    with pytest.raises(IcarusError, match="another recipe"):
        train(toy.recipe("again", **changes, rank=8), toy.base, quiet, resume=True)
    told: list[str] = []
    # Where it stops for a while is no part of what it learns.
    resumed = train(toy.recipe("again", **changes, max_minutes=60.0), toy.base, told.append, resume=True)
    assert facts(resumed)["steps"]["done"] == 8
    assert not any("step 5/8" in line for line in told)
    weights = load_file(resumed / WEIGHTS)
    for name, tensor in whole.items():
        assert torch.equal(tensor, weights[name]), name


def killed_at_the_first_checkpoint(
    recipe: Recipe, toy: Toy, monkeypatch: pytest.MonkeyPatch, base: Path | None = None
) -> None:
    class KilledError(Exception):
        pass

    def dies(*_: Any, **__: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr("icarus_models.trainer.Progress.on_save", dies, raising=False)
        with pytest.raises(KilledError):
            train(recipe, base or toy.base, quiet)


def test_a_run_that_was_killed_while_it_wrote_goes_on(toy: Toy) -> None:
    adapter = train(toy.recipe(), toy.base, quiet)
    whole = load_file(adapter / WEIGHTS)
    # Before the record: all steps are done. Before the last checkpoint was whole: the one before it serves.
    for lost in (adapter / RUN_FILE, adapter.parent / "checkpoint-12" / "trainer_state.json"):
        (adapter / RUN_FILE).unlink(missing_ok=True)
        lost.unlink(missing_ok=True)
        (adapter / WEIGHTS).unlink()
        again = train(toy.recipe(), toy.base, quiet, resume=True)
        assert facts(again)["steps"]["done"] == 12
        assert all(torch.equal(tensor, load_file(again / WEIGHTS)[name]) for name, tensor in whole.items())


@pytest.mark.parametrize("method", ["icarus", "lora"])
def test_batches_that_are_accumulated_are_one_batch(toy: Toy, method: str) -> None:
    changes: dict[str, Any] = {"method": method, "optimizer": "sgd", "max_grad_norm": 100.0, "max_steps": 4}
    whole = load_file(train(toy.recipe(**changes, batch=4), toy.base, quiet) / WEIGHTS)
    parts = load_file(train(toy.recipe("parts", **changes, batch=1, accumulation=4), toy.base, quiet) / WEIGHTS)
    for name, tensor in whole.items():
        assert (tensor - parts[name]).abs().max() < 1e-5, name


def test_a_run_stops_in_time(toy: Toy) -> None:
    adapter = train(toy.recipe(max_minutes=1e-9), toy.base, quiet)
    assert facts(adapter)["steps"] == {"planned": 12, "done": 1, "stopped_by_time": True}
    adapter = train(toy.recipe(), toy.base, quiet, resume=True)
    assert facts(adapter)["steps"] == {"planned": 12, "done": 12, "stopped_by_time": False}
    with pytest.raises(IcarusError, match="finished"):
        train(toy.recipe(), toy.base, quiet, resume=True)


def test_early_stopping_keeps_the_best(toy: Toy) -> None:
    told: list[str] = []
    # So large a rate that the loss rises after its first fall.
    changes: dict[str, Any] = {"learning_rate": 0.5, "schedule": "constant", "max_steps": 60, "save_steps": 2}
    recipe = toy.recipe(patience=2, warmup=0.0, **changes)
    found = facts(train(recipe, toy.base, told.append))
    seen = [float(line.rsplit(" ", 1)[1]) for line in told if "  held-out loss" in line]
    assert len(seen) == found["steps"]["done"] / 2 < 30
    assert seen.index(min(seen)) == len(seen) - 3
    assert found["losses"]["heldout_trained"] == pytest.approx(min(seen), abs=1e-4)


def test_a_run_in_bf16_and_with_checkpointing_learns(toy: Toy) -> None:
    changes: dict[str, Any] = {"precision": "bf16", "gradient_checkpointing": True, "rslora": True}
    found = facts(train(toy.recipe(**changes), toy.base, quiet))
    assert found["precision"] == "bfloat16"
    assert found["losses"]["heldout_trained"] < 0.5 * found["losses"]["heldout_base"]


def test_what_is_not_installed_is_told(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(IcarusError, match="bitsandbytes"):
        load_base(toy.base, four_bit=True)
    with pytest.raises(IcarusError, match="pip install tensorboard"):
        train(toy.recipe(report="tensorboard"), toy.base, quiet)


@pytest.mark.parametrize("name", ["poet", "coder"])
def test_an_agents_instruction_comes_from_its_file(toy: Toy, name: str) -> None:
    file = toy.folder / "agents.toml"
    file.write_text(f'[[agents]]\nname = "{name}"\ninstruction = "{"In verse. " * 20}"\n', encoding="utf-8")
    changes: dict[str, Any] = {"agent": name, "max_steps": 1, "max_tokens": 600}
    plain = facts(train(toy.recipe(**changes), toy.base, quiet))
    told = facts(train(toy.recipe("told", **changes, agents_file=file), toy.base, quiet))
    assert told["data"]["train"]["tokens"] > plain["data"]["train"]["tokens"] + 8 * 100
    assert "agents" in told["data_sha256"]


def test_the_exported_adapter_has_torchs_logits(toy: Toy) -> None:
    from icarus_models.adapter_logits import adapter_logits

    adapter = train(toy.recipe(), toy.base, quiet)
    written = convert_adapter(adapter, toy.base, toy.folder / "coder.gguf")
    tokens = [5, 40, 41, 90, 17, 200, 3, 60, 8, 9]
    wanted = adapter_logits(toy.base, adapter, tokens)
    with Engine(toy.base, n_ctx=256, kv_type="f32", device="cpu") as engine:
        sequence, speaker = engine.cells.create(), engine.add_adapter(written)
        for place, token in enumerate(tokens):
            row = engine.forward(encode=[(sequence, [token])], decode=[(sequence, speaker)]).decoder[0]
            assert abs(row - wanted.two_stream[place]).max() < 1e-3
    assert abs(wanted.two_stream - wanted.ordinary).max() > 0.1, "the two would pass for each other"


def test_an_ordinary_adapter_is_marked_and_refused_over_a_shared_cache(toy: Toy) -> None:
    from icarus_local.engine.adapter_file import read_adapter

    adapter = train(toy.recipe(method="lora", max_steps=2), toy.base, quiet)
    out = toy.folder / "ordinary.gguf"
    with pytest.raises(AdapterError, match="ordinary way"):
        convert_adapter(adapter, toy.base, out)
    ordinary_gguf(adapter, toy.base, out)
    with pytest.raises(AdapterError, match="'ordinary'"):
        read_adapter(out)
    icarus = train(toy.recipe("icarus", max_steps=2), toy.base, quiet)
    with pytest.raises(AdapterError, match="trained is icarus"):
        ordinary_gguf(icarus, toy.base, toy.folder / "other.gguf")


def test_early_stopping_goes_on_where_it_was(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    changes: dict[str, Any] = {"learning_rate": 0.5, "schedule": "constant", "max_steps": 60, "save_steps": 1}
    changes |= {"patience": 3, "warmup": 0.0}
    whole = train(toy.recipe(**changes), toy.base, quiet)
    done = facts(whole)["steps"]["done"]
    again = toy.recipe("again", **changes)
    # Once by a kill, then by the clock at every step up to the last but one: some of them without a better loss.
    killed_at_the_first_checkpoint(again, toy, monkeypatch)
    for _ in range(done - 2):
        stopped = train(toy.recipe("again", **changes, max_minutes=1e-9), toy.base, quiet, resume=True)
        assert facts(stopped)["steps"]["stopped_by_time"]
    resumed = train(again, toy.base, quiet, resume=True)
    assert facts(resumed)["steps"] == facts(whole)["steps"]
    for name, tensor in load_file(whole / WEIGHTS).items():
        assert torch.equal(tensor, load_file(resumed / WEIGHTS)[name]), name


def test_a_run_goes_on_with_what_it_was_started_with_only(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_at_the_first_checkpoint(toy.recipe(), toy, monkeypatch)
    path = toy.folder / "run" / "plan.json"
    plan = json.loads(path.read_text("utf-8"))
    assert plan["date"] == "2024-07-26"

    def refused(key: str) -> None:
        with pytest.raises(IcarusError, match=f"another {key}; resume with the same"):
            train(toy.recipe(), toy.base, quiet, resume=True)

    with monkeypatch.context() as patch:
        patch.setattr(training, "_precision", lambda _: torch.bfloat16)
        refused("precision")
    with monkeypatch.context() as patch:
        others = [agent.model_copy(update={"instruction": "Otherwise."}) for agent in agents()]
        patch.setattr(training, "agents", lambda: others)
        refused("samples_sha256.heldout, samples_sha256.train")
    with pytest.raises(IcarusError, match=r"another recipe\.rank;"):
        train(toy.recipe(rank=8), toy.base, quiet, resume=True)
    # What earlier versions did not write.
    for key in ("folders_sha256", "samples_sha256", "date", "precision"):
        del plan[key]
    write_json(path, plan)
    assert facts(train(toy.recipe(), toy.base, quiet, resume=True))["steps"]["done"] == 12


def test_a_folder_is_trained_on_for_its_own_gguf(toy: Toy, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(toy.folder / "hf", model=tiny.model)
    other = tiny_llama(toy.folder, seed=1, name="other")
    wider = tiny_llama(toy.folder, n_ff=96, name="wider")
    for gguf, what in ((other.path, "norms"), (wider.path, "shapes")):
        with pytest.raises(IcarusError, match=f"hf and .* are two models: their {what}.*icarus-convert base"):
            train(toy.recipe(tokenizer_gguf=gguf), folder, quiet)
    recipe = toy.recipe(tokenizer_gguf=toy.base)
    killed_at_the_first_checkpoint(recipe, toy, monkeypatch, folder)
    # Other weights with the same norms: the family does not tell them apart.
    tiny_norms = {name: value for name, value in tiny.model.state_dict().items() if value.ndim == 1}
    other.model.load_state_dict(tiny_norms, strict=False)
    again = save(toy.folder / "again", model=other.model)
    with pytest.raises(IcarusError, match=r"another folders_sha256\.base;"):
        train(recipe, again, quiet, resume=True)
    found = facts(train(recipe, folder, quiet, resume=True))
    assert found["losses"]["heldout_trained"] < found["losses"]["heldout_base"]


def test_several_processes_and_gpus_are_not_used(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import TrainingArguments

    args = TrainingArguments(output_dir=str(toy.folder))
    assert args.n_gpu <= 1
    args._n_gpu = 2
    told: list[str] = []
    assert on_one_device(args, told.append).train_batch_size == args.per_device_train_batch_size
    assert "the first of 2" in told[0]
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(IcarusError, match=r"WORLD_SIZE is 2.*without torchrun"):
        train(toy.recipe(), toy.base, quiet)
    assert not (toy.folder / "run").exists()


def test_bf16_is_not_emulated(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert training._precision(toy.recipe(precision="auto")) is torch.float32
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    assert training._precision(toy.recipe(precision="auto")) is torch.bfloat16


def test_a_steps_loss_is_nats_per_supervised_token(toy: Toy) -> None:
    records = [{"prompt": f"q{i}", "answer": "ab" * (1 + 20 * (i % 3 == 0))} for i in range(7)]
    toy.data.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    recipe = toy.recipe(learning_rate=1e-12, max_steps=10)
    log = facts(train(recipe, toy.base, quiet))["losses"]["train_log"]
    with closing(Tokenizer(toy.base)) as tokenizer:
        renderer = Renderer(tokenizer, dated_template(tokenizer), agents(), recipe.agent)
        samples = read_samples(toy.data, renderer, recipe.max_tokens).samples
    order = [samples[i] for (i,) in plan_rows([len(one.ids) for one in samples], recipe.batch, 10, recipe.seed)]
    base = add_lora(load_base(toy.base), recipe.rank, recipe.alpha, recipe.seed)
    wanted = [mean_loss(LOSSES["icarus"], base, rows) for rows in (order[:10], order[10:])]
    assert [one["step"] for one in log] == [5, 10]
    assert [one["loss"] for one in log] == pytest.approx(wanted, rel=1e-4)
