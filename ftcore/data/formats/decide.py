"""Which format a set has: the one named in its spec, or the one that its first rows show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ftcore.data.reading.rows import Row
from ftcore.spec.data_formats import LOOKED_AT, REQUIRED, detect_format
from ftcore.spec.errors import DataError, Problem
from ftcore.spec.names import COLUMNS
from ftcore.spec.sections import DataSet


def decide_format(dataset: DataSet, first: Sequence[Row], where: str) -> tuple[DataSet, str]:
    """The set with its format and the file's own names of all fields, and how they were found. `where` is the set's key in the spec (`data.train`).

    `first` are the first rows of the set, at least `LOOKED_AT` where there are so many. Raises DataError when `auto` finds no format, when
    `columns` names a field that the format hasn't, and when it names a field that the format can do without and no first row has.
    """
    values = [row.value for row in first[:LOOKED_AT]]
    reason = "named in the spec"
    if dataset.format == "auto":
        found = detect_format(values, dataset.columns)
        if not found.format:
            raise DataError([Problem(what=f"the format can't be told: {found.reason}", file=dataset.path, where=f"{where}.format", fix=found.fix)])
        dataset, reason = replace(dataset, format=found.format, columns=found.columns), found.reason
    _check_columns(dataset, values, where)
    return dataset, reason


def _check_columns(dataset: DataSet, first: Sequence[Mapping[str, Any]], where: str) -> None:
    known = COLUMNS[dataset.format]
    problems = [
        Problem(
            what=f"{name!r} is no field of the format {dataset.format}",
            where=f"{where}.columns",
            fix=f"its fields are {', '.join(known)}: write FIELD: NAME IN THE FILE",
        )
        for name in dataset.columns
        if name not in known
    ]
    for name, own in dataset.columns.items():
        if name in known and name not in REQUIRED[dataset.format] and not any(own in row for row in first):
            what = f"none of the first {len(first)} rows has the field {own!r}"
            problems.append(Problem(what=what, where=f"{where}.columns.{name}", fix=f"name the field that holds the {name} (a row without any may say null)"))
    if problems:
        raise DataError(problems)
