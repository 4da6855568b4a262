"""The model card of a run: what its own facts say, as Markdown. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_METHODS = {
    "icarus": "on the frozen base's cache (ICaRus): it reads K and V that the base alone writes, so agents share one",
    "lora": "as an ordinary LoRA, for comparison: over a shared cache it is wrong, and the converter refuses it",
}


def model_card(facts: Mapping[str, Any]) -> str:
    """The card of a run file's facts."""
    recipe, data, steps = facts["recipe"], facts["data"], facts["steps"]
    rows = [
        ("trained", f"{_METHODS[facts['method']]}; with `icarus-train`"),
        ("base", f"{facts['base']}, family {facts['base_family_id'][:12]}…, in any quantisation"),
        ("LoRA", _lora(recipe, facts["weights"])),
        ("data", "; ".join(f"{name}: {_of(part)}" for name, part in data.items())),
        ("steps", _steps(recipe, steps)),
        ("precision", facts["precision"]),
        ("held-out loss", _losses(facts["losses"])),
        ("versions", ", ".join(f"{name} {version}" for name, version in facts["versions"].items() if version)),
    ]
    if teacher := facts["data_sha256"].get("teacher"):
        rows.insert(1, ("learnt from", f"an ordinary LoRA, SHA-256 {teacher[:12]}…, by distillation"))
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    return (
        f"# {recipe['agent']}\n\n| | |\n|---|---|\n{table}\n\n"
        "The whole record, with the data's hashes and the losses of all steps, is `icarus_run.json` beside this file.\n"
    )


def _lora(recipe: Mapping[str, Any], weights: int) -> str:
    scale = "alpha/sqrt(rank)" if recipe["rslora"] else "alpha/rank"
    dropout = f", dropout {recipe['dropout']:g}" if recipe["dropout"] else ""
    where = ", ".join(recipe["modules"])
    return (
        f"rank {recipe['rank']}, alpha {recipe['alpha']:g}, scaled by {scale}{dropout}, on {where}; {weights:,} weights"
    )


def _of(part: Mapping[str, Any]) -> str:
    return (
        f"{part['samples']:,} conversations, {part['tokens']:,} tokens, {part['supervised']:,} of them supervised, "
        f"{len(part['left_out'])} lines left out"
    )


def _steps(recipe: Mapping[str, Any], steps: Mapping[str, Any]) -> str:
    rows = f"{recipe['batch'] * recipe['accumulation']} {'packed rows' if recipe['pack'] else 'conversations'}"
    stopped = " (stopped by time)" if steps["stopped_by_time"] else ""
    return (
        f"{steps['done']} of {steps['planned']}{stopped}, {rows} each, {recipe['optimizer']}, learning rate "
        f"{recipe['learning_rate']:g}, {recipe['schedule']}, seed {recipe['seed']}"
    )


def _losses(losses: Mapping[str, Any]) -> str:
    if losses["heldout_base"] is None:
        return "not measured"
    text = f"base {losses['heldout_base']:.3f}, trained {losses['heldout_trained']:.3f} nats a supervised token"
    if losses.get("heldout_teacher") is None:
        return text
    kept = share_text(losses["gain_kept"])
    return f"{text}; the teacher's {losses['heldout_teacher']:.3f}, of whose gain {kept} is kept"


def share_text(value: float | None) -> str:
    """A share of the teacher's gain in words."""
    return "nothing, for it has none," if value is None else f"{100 * value:.0f} %"
