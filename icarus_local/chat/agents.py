"""What an agent is: a name, an adapter on the shared base, an instruction given at its turn, and how it samples."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from icarus_local.text.sampler import Sampling

BASE_NAME = "base"


class Agent(BaseModel):
    """One specialist. Without an adapter it speaks as the base model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,31}$")
    adapter: Path | None = Field(default=None, description="GGUF adapter file")
    instruction: str = Field(default="", max_length=4096, description="said at the agent's turn, in the shared context")
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    max_tokens: int = Field(default=512, ge=1)

    @property
    def hand_over(self) -> str:
        """What the conversation says to give this agent the word."""
        return self.instruction or f"{self.name}, please answer."


def base_agent() -> Agent:
    """The base model itself, which every conversation has."""
    return Agent(name=BASE_NAME)
