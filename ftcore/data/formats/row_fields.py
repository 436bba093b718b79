"""A row's fields under the names that the file gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftcore.data.formats.values import kind
from ftcore.data.formats.weights import checked_weight
from ftcore.spec.data_formats import LOOKED_AT, REQUIRED, looks_like
from ftcore.spec.errors import DataError
from ftcore.spec.sections import DataSet
from ftcore.spec.yaml_text import mapping

_MISSING = object()
_MEDIA = ("image", "images", "video", "videos", "audio", "audios")
TOOL_FIELDS = ("tools", "functions")
"""Where a row may offer tools, unless `columns` names another field: they are never left out in silence."""


class RowFields:
    """The fields of one data set's format."""

    def __init__(self, dataset: DataSet, form: str, where: str) -> None:
        self._columns = dataset.columns
        self._form = form
        self._where = where

    def own(self, name: str) -> str:
        """The file's own name for a field."""
        return self._columns.get(name, name)

    def required(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Field -> value of every field that the format needs. Raises DataError with one problem for all that are missing."""
        found = {name: values.get(self.own(name), _MISSING) for name in REQUIRED[self._form]}
        missing = [name for name, value in found.items() if value is _MISSING]
        if missing:
            raise self._missing(missing, values)
        return found

    def optional(self, values: Mapping[str, Any], name: str) -> Any:
        """The value of a field that may be missing; None when it is, or is null."""
        return values.get(self.own(name))

    def tools(self, values: Mapping[str, Any]) -> tuple[Any, str]:
        """What a row offers as tools, and the field it stands in; None: nothing."""
        names = (self._columns["tools"],) if "tools" in self._columns else TOOL_FIELDS
        name = next((name for name in names if values.get(name) not in (None, "", [])), names[0])
        return values.get(name), name

    def weight(self, values: Mapping[str, Any]) -> float:
        """What the row counts; 1 without a weight. Text is taken as the number that it is: a CSV file has nothing else."""
        name, value = self.own("weight"), self.optional(values, "weight")
        if isinstance(value, str):
            value = _number(value) if value.strip() else None
        return 1.0 if value is None else checked_weight(value, name)

    def _missing(self, missing: list[str], values: Mapping[str, Any]) -> DataError:
        names = " and ".join(repr(self.own(name)) for name in missing)
        seen = ", ".join(list(values)[:LOOKED_AT]) or "none"
        what = f"no field {names}; the row's fields are: {seen}"
        look = looks_like(values, {})
        if look is None:
            names = mapping((name, "NAME") for name in missing)
            return DataError(what, fix=f"name the field that holds the {' and the '.join(missing)}: {self._where}.columns: {names}")
        form, columns = look
        if form == self._form:
            return DataError(what, fix=f"write {self._where}.columns: {mapping(columns)}")
        names = f", columns: {mapping(columns)}" if columns else ""
        fix = f"rows of a set have one format, here {self._form}: give these rows a set of their own; if all are so, write format: {form}{names}"
        return DataError(f"{what}; it looks like the format {form}", fix=fix)


def check_no_media(values: Mapping[str, Any], texts: list[str]) -> None:
    """Raises DataError when a text refers to an image or a sound that stands in a field of its own."""
    for name in _MEDIA:
        if values.get(name) and any(f"<{name.rstrip('s')}>" in text for text in texts):
            raise DataError(f"the row has {name} ({kind(values[name])}), and its text refers to them", fix="only text is trained on: take the row out")


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text
