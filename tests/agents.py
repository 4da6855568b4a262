"""Random agents for tests: PEFT adapters with weights that matter, converted by the real converter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from click.testing import CliRunner

from icarus_convert.cli import main as icarus_convert

# Phi 3 has Q, K and V in one projection and gate and up in one; experts are no modules, so a mixture has Q and O only.
TARGETS = ["q_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj", "gate_up_proj"]


def add_agents(model: Any, scales: dict[str, float], rank: int = 8, alpha: float = 16.0) -> Any:
    """A PeftModel over a copy of `model` with a random adapter per name, lora_B of the given standard deviation."""
    import copy

    import torch
    from peft import LoraConfig, get_peft_model

    names = list(scales)
    present = {key.rsplit(".", 1)[-1] for key, _ in model.named_modules()}
    targets = [target for target in TARGETS if target in present]
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets, task_type="CAUSAL_LM")
    # PEFT changes the model that it is given, and tests share one.
    peft = get_peft_model(copy.deepcopy(model), config, adapter_name=names[0])
    for name in names[1:]:
        peft.add_adapter(name, config)
    generator = torch.Generator().manual_seed(11)
    for key, parameter in peft.named_parameters():
        for name, scale in scales.items():
            if f".lora_B.{name}." in key:
                parameter.data = torch.randn(parameter.shape, generator=generator) * scale
                if ".qkv_proj." in key:
                    # The rows of K and V: ICaRus adapts neither.
                    parameter.data[model.config.hidden_size :] = 0
            elif f".lora_A.{name}." in key:
                parameter.data = torch.randn(parameter.shape, generator=generator) / parameter.shape[1] ** 0.5
    return peft.eval()


def convert(peft: Any, name: str, base: Path, directory: Path) -> Path:
    """One adapter of a PeftModel as an f32 GGUF, by way of its PEFT folder."""
    peft.save_pretrained(str(directory), selected_adapters=[name])
    output = directory / f"{name}.gguf"
    arguments = ["adapter", str(directory / name), "--base", str(base), "-o", str(output)]
    result = CliRunner().invoke(icarus_convert, [*arguments, "--outtype", "f32", "--assume-icarus"])
    assert result.exit_code == 0, result.output
    return output
