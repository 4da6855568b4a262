"""`adapter_config.json` of PEFT: refuses what cannot be converted exactly, and gives each module's scale."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icarus_convert.json_file import read_json_object
from icarus_local.errors import AdapterError

CONFIG_FILE = "adapter_config.json"

# Says nothing about the function that the saved matrices compute.
_HARMLESS = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "eva_config",
        "exclude_modules",
        "inference_mode",
        "layers_pattern",
        "layers_to_transform",
        "loftq_config",
        "lora_dropout",
        "lora_ga_config",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "target_modules",
    }
)
_READ = frozenset(
    {
        "alpha_pattern",
        "bias",
        "init_lora_weights",
        "lora_alpha",
        "peft_type",
        "r",
        "rank_pattern",
        "task_type",
        "use_rslora",
    }
)
_REASONS = {
    "use_dora": "DoRA scales every row by a magnitude that no LoRA file holds",
    "modules_to_save": "whole modules were trained beside the LoRA; a GGUF LoRA cannot hold them, and norms or "
    "embeddings would change the shared cache",
    "fan_in_fan_out": "its weights are stored transposed (Conv1D)",
    "lora_bias": "a bias of lora_B has no place in a GGUF LoRA",
    "trainable_token_indices": "embeddings were trained, which would change the shared cache",
    "target_parameters": "it adapts parameters (experts), not linear modules",
    "alora_invocation_tokens": "an activated LoRA waits for its invocation tokens",
    "layer_replication": "it was trained on a base with replicated layers",
    "use_qalora": "QALoRA pools its input, which a GGUF LoRA does not",
}
_PLAIN_INITS = (None, True, False, "gaussian", "eva", "orthogonal")
_AGAIN = "Train a plain LoRA on Q, O and the MLP (icarus-train does)"


@dataclass(frozen=True)
class LoraConfig:
    """What of the configuration decides the scale.

    Attributes:
        path: the file, for messages.
        r, alpha: the defaults.
        rank_pattern, alpha_pattern: by PEFT's pattern, in the file's order.
        use_rslora: scale by sqrt(r).
        base_model: the name of the base that it was trained on, or "".
    """

    path: Path
    r: Any
    alpha: Any
    rank_pattern: Mapping[str, Any]
    alpha_pattern: Mapping[str, Any]
    use_rslora: bool
    base_model: str

    def rank(self, module: str) -> int:
        """The rank that PEFT gives `module`, such as `model.layers.0.self_attn.q_proj`.

        Raises:
            AdapterError: not a whole number above 0.
        """
        r = _lookup(self.path, self.rank_pattern, module, self.r)
        if not isinstance(r, int) or isinstance(r, bool) or not 0 < r < 1 << 20:
            raise AdapterError(f"{self.path}: the rank r of {module} is {r!r}, not a whole number above 0", _AGAIN)
        return r

    def scale(self, module: str) -> float:
        """PEFT's scale of `module`: alpha / r, or alpha / sqrt(r) for rsLoRA.

        Raises:
            AdapterError: alpha or r is missing, 0, NaN, or below 0.
        """
        r = self.rank(module)
        alpha = _lookup(self.path, self.alpha_pattern, module, self.alpha)
        # The comparison also fails for NaN.
        if not isinstance(alpha, (int, float)) or isinstance(alpha, bool) or not 0 < alpha < 1e9:
            raise AdapterError(f"{self.path}: lora_alpha of {module} is {alpha!r}, not a number above 0", _AGAIN)
        return alpha / (math.sqrt(r) if self.use_rslora else r)


def _lookup(path: Path, pattern: Mapping[str, Any], module: str, default: Any) -> Any:
    """PEFT's rule (peft/utils/other.py, get_pattern_key): the first key that is a regex for the name's end."""
    for key, value in pattern.items():
        try:
            matched = re.match(rf"(.*\.)?({key})$", module)
        except (re.error, RecursionError, OverflowError) as error:
            raise AdapterError(
                f"{path}: the pattern {key!r} is no regular expression: {error}", "Correct it"
            ) from error
        if matched:
            return value
    return pattern.get(module, default)


def read_config(path: Path) -> LoraConfig:
    """Reads and checks `adapter_config.json`.

    Raises:
        AdapterError: a setting that a GGUF LoRA on a shared cache cannot express, by name.
    """
    config = read_json_object(path)
    _check_settings(path, config)
    patterns = {}
    for key in ("rank_pattern", "alpha_pattern"):
        patterns[key] = config.get(key) or {}
        if not isinstance(patterns[key], dict):
            raise AdapterError(f"{path}: {key} is no object of patterns", "Save the adapter again")
    for key in ("r", "lora_alpha"):
        if key not in config:
            raise AdapterError(f"{path} lacks {key}, without which the scale is unknown", _AGAIN)
    use_rslora = config.get("use_rslora", False)
    if not isinstance(use_rslora, bool):
        raise AdapterError(f"{path}: use_rslora is {use_rslora!r}, not true or false", "Save the adapter again")
    base_model = config.get("base_model_name_or_path")
    return LoraConfig(
        path=path,
        r=config["r"],
        alpha=config["lora_alpha"],
        rank_pattern=patterns["rank_pattern"],
        alpha_pattern=patterns["alpha_pattern"],
        use_rslora=use_rslora,
        base_model=base_model if isinstance(base_model, str) else "",
    )


def _check_settings(path: Path, config: dict[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise AdapterError(f"{path}: peft_type is {config.get('peft_type')!r}; only LORA can be converted", _AGAIN)
    if config.get("task_type") not in (None, "CAUSAL_LM"):
        raise AdapterError(f"{path}: task_type is {config['task_type']!r}; agents are CAUSAL_LM", _AGAIN)
    if config.get("bias", "none") != "none":
        raise AdapterError(f"{path}: bias is {config['bias']!r}; trained biases have no place in a GGUF LoRA", _AGAIN)
    init = config.get("init_lora_weights", True)
    # `in` would take 1 for True.
    if not any(init is plain or (isinstance(init, str) and init == plain) for plain in _PLAIN_INITS):
        raise AdapterError(
            f"{path}: init_lora_weights is {init!r}, which changes the base's own weights (or trains another function)",
            "Save it as a plain LoRA: model.save_pretrained(..., path_initial_model_for_weight_conversion=...)",
        )
    for key, value in config.items():
        if value and key not in _HARMLESS and key not in _READ:
            reason = _REASONS.get(key, "the converter does not know what this setting changes")
            raise AdapterError(f"{path}: {key} is set: {reason}", _AGAIN)
