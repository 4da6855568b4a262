"""Checked reading of a JSON configuration: each value is of its type and within bounds before it is used."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from icarus_local.errors import ModelFileError


class Values:
    """One object of a JSON file. A key that holds null counts as missing, as in transformers."""

    def __init__(self, path: Path, values: dict[str, Any], prefix: str = "") -> None:
        self.path, self._values, self._prefix = path, values, prefix

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def __bool__(self) -> bool:
        return bool(self._values)

    def get(self, key: str) -> Any:
        """The value as it stands."""
        return self._values.get(key)

    def section(self, key: str) -> Values:
        """An object inside; an empty one where it is missing.

        Raises:
            ModelFileError: not an object.
        """
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(key, "an object")
        return Values(self.path, value or {}, f"{self._prefix}{key}.")

    def integer(self, key: str, default: int | None, low: int = 1, high: int = 1 << 24) -> int:
        """A whole number from low to high.

        Raises:
            ModelFileError: missing without a default, of another type or outside.
        """
        value = self._or(key, default)
        if type(value) is not int or not low <= value <= high:
            raise self._wrong(key, f"a whole number from {low} to {high}")
        return value

    def number(self, key: str, default: float | None, low: float = 1e-12, high: float = 1e12) -> float:
        """A number from low to high.

        Raises:
            ModelFileError: missing without a default, of another type or outside.
        """
        value = self._or(key, default)
        if type(value) not in (int, float) or not low <= value <= high:
            raise self._wrong(key, f"a number from {low:g} to {high:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false.

        Raises:
            ModelFileError: something else.
        """
        value = self._or(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None) -> str:
        """A text.

        Raises:
            ModelFileError: missing without a default, or something else.
        """
        value = self._or(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a text")
        return value

    def refuse_others(self, known: Iterable[str], where: str) -> None:
        """Refuses keys that are not known: what they change is not computed.

        Raises:
            ModelFileError: there is one.
        """
        for key in self._values:
            if key not in known and self.get(key) is not None:
                raise ModelFileError(f"{self.path} sets {self._prefix}{key}, which is not computed in {where}")

    def _or(self, key: str, default: Any) -> Any:
        value = self.get(key)
        if value is None and default is None:
            raise ModelFileError(f"{self.path} lacks {self._prefix}{key}")
        return default if value is None else value

    def _wrong(self, key: str, wanted: str) -> ModelFileError:
        shown = repr(self.get(key))
        shown = shown if len(shown) < 60 else f"{shown[:57]}..."
        return ModelFileError(f"{self.path}: {self._prefix}{key} is {shown}, not {wanted}")
