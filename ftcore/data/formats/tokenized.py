"""Rows that are tokenised already: input_ids with labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ftcore.data.formats.values import kind, unpacked
from ftcore.spec.errors import DataError

NOT_LEARNED = -100
MOST = 2**31 - 1

Int32Array = npt.NDArray[np.int32]
Spans = tuple[tuple[int, int], ...]


def read_tokens(ids: Any, labels: Any, mask: Any, names: tuple[str, str]) -> tuple[Int32Array, Spans]:
    """The ids [T] and the half-open ranges whose labels count; `names` are those of ids and labels in the file, `mask` the row's attention_mask.

    A label is its own position's id or -100. Raises DataError for values that are no ids, lists of other lengths, labels that are other
    ids, and an attention_mask with a 0 (padding is no text).
    """
    tokens, wanted = _ids(ids, names[0], least=0), _ids(labels, names[1], least=NOT_LEARNED)
    if len(tokens) != len(wanted):
        raise DataError(f"{names[0]} has {len(tokens)} tokens and {names[1]} has {len(wanted)}", fix="give each token one label")
    if mask is not None:
        _check_mask(mask, len(tokens))
    counts = wanted != NOT_LEARNED
    wrong = np.flatnonzero(counts & (wanted != tokens))
    if len(wrong):
        raise _other_labels(tokens, wanted, int(wrong[0]), names)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], counts, [False])).astype(np.int8)))
    return tokens, tuple((int(start), int(end)) for start, end in zip(edges[::2], edges[1::2], strict=True))


def _ids(value: Any, name: str, *, least: int) -> Int32Array:
    numbers = unpacked(value, name)
    if not isinstance(numbers, list) or not numbers:
        raise DataError(f"{name} is {kind(numbers)}", fix="a list of token ids")
    other = next((index for index, number in enumerate(numbers) if type(number) is not int), None)
    if other is not None:
        raise DataError(f"{name}[{other}] is {kind(numbers[other])} ({str(numbers[other])[:40]})", fix="token ids are whole numbers")
    outside = next((index for index, number in enumerate(numbers) if not (0 <= number <= MOST or number == least)), None)
    if outside is not None:
        fix = "ids are 0 or more" + (f"; {NOT_LEARNED} marks what is not learned" if least < 0 else "")
        raise DataError(f"{name}[{outside}] is {numbers[outside]}", fix=fix)
    return np.array(numbers, dtype=np.int32)


def _check_mask(value: Any, length: int) -> None:
    mask = unpacked(value, "attention_mask")
    if not isinstance(mask, list) or len(mask) != length:
        raise DataError(f"attention_mask is {kind(mask)}, and the row has {length} tokens", fix="a 1 for each token, or no attention_mask")
    other = next((index for index, each in enumerate(mask) if each != 1), None)
    if other is not None:
        raise DataError(f"attention_mask[{other}] is {mask[other]!r}", fix="take padding out of the row: rows are put together without any")


def _other_labels(ids: Int32Array, labels: Int32Array, at: int, names: tuple[str, str]) -> DataError:
    counts = labels[:-1] != NOT_LEARNED
    shifted = len(ids) > 1 and bool(counts.any()) and bool((labels[:-1][counts] == ids[1:][counts]).all())
    fix = f"a label is its own position's id, or {NOT_LEARNED}; training itself compares it with what the token before predicts"
    what = f"{names[1]}[{at}] is {labels[at]} and {names[0]}[{at}] is {ids[at]}"
    return DataError(f"{what}; the labels stand one place early" if shifted else what, fix=fix)
