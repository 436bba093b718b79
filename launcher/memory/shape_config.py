"""config.json read with care: each value of the right type, or every wrong one named at once."""

from __future__ import annotations

from typing import Any

from ftcore.spec.errors import Problem, SpecError

WHERE = "model.model_name_or_path"
MOST = 2**31
"""No size of a model is larger."""
MOST_LAYERS = 4096


class Config:
    """The values of one config.json; what is missing without a default, or of the wrong type, is collected."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self._wrong: dict[str, str] = {}

    def size(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """The first of `names` that is set, as a whole number of at least `least`; else the default."""
        for name in names:
            value = self.data.get(name)
            if value is None:
                continue
            if type(value) is int and least <= value <= MOST:
                return value
            self._wrong[name] = f"{name} is {str(value)[:40]!r}, a whole number of at least {least} is expected"
            return least
        if default is None:
            self._wrong[names[0]] = f"it has no {names[0]}"
            return least
        return default

    def layers(self, *names: str, default: int | None = None) -> tuple[int, ...]:
        """The numbers of the decoder layers, of which there are at most MOST_LAYERS."""
        count = self.size(*names, default=default)
        if count > MOST_LAYERS:
            self._wrong[names[0]] = f"{names[0]} is {count}, more than {MOST_LAYERS}"
            return (0,)
        return tuple(range(count))

    def flag(self, name: str, default: bool) -> bool:
        """The truth value called `name`; else the default."""
        value = self.data.get(name)
        if value is None:
            return default
        if type(value) is not bool:
            self._wrong[name] = f"{name} is {str(value)[:40]!r}, true or false is expected"
            return default
        return value

    def text(self, *names: str, default: str) -> str:
        """The first of `names` that is a text; else the default."""
        return next((value for name in names if isinstance(value := self.data.get(name), str)), default)

    def numbers(self, name: str) -> tuple[int, ...]:
        """The list of whole numbers called `name`; empty when it is not set."""
        value = self.data.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or any(type(each) is not int for each in value):
            self._wrong[name] = f"{name} is {str(value)[:40]!r}, a list of whole numbers is expected"
            return ()
        return tuple(value)

    def share(self, whole: int, parts: int, name: str) -> int:
        """whole / parts, which has to come out even."""
        size, rest = divmod(whole, parts)
        if rest:
            self._wrong[name] = f"{name} ({parts}) does not divide {whole}"
        return max(size, 1)

    def require_right(self) -> None:
        """Raises SpecError naming all that was missing or wrong."""
        if self._wrong:
            raise SpecError(
                Problem(what=f"the model's config.json can't be used: {what}", where=WHERE, fix="download or copy the model again")
                for what in self._wrong.values()
            )
