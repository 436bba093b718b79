"""What a message or a row counts in the loss: `weight` and `train`, checked when rows are read and then taken out of the messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ftcore.spec.errors import DataError, Problem

KEYS = ("weight", "train")
SMALLEST, LARGEST = 1e-6, 1e6
"""Beyond these a product with a token's loss would leave what fp32 sums hold well."""
WEIGHT_FIX = f"a number: 0 (context, not learned), or from {SMALLEST:g} to {LARGEST:g}; 1 is what a message counts without it"


def taken_weights(messages: Sequence[dict[str, Any]], name: str, *, answers: bool = True) -> tuple[list[dict[str, Any]], dict[int, float]]:
    """The messages without `weight` and `train`, and message index -> weight of those that don't count 1.

    A chat template never sees the two keys: it may write out whatever a message holds. A null is a key that is not there.
    `answers`: whether the assistant's messages in the list are supervised at all.
    Raises DataError naming every message whose weight is no number, contradicts itself, or can't count.
    """
    weights: dict[int, float] = {}
    problems: list[Problem] = []
    for index, message in enumerate(messages):
        try:
            given = _given(message, f"{name}[{index}]")
            if given is not None:
                _check_counts(given, message["role"], f"{name}[{index}]", answers)
                weights[index] = given
        except DataError as error:
            problems.extend(error.problems)
    if problems:
        raise DataError(problems)
    bare = [{key: value for key, value in message.items() if key not in KEYS} for message in messages]
    return bare, {index: weight for index, weight in weights.items() if weight != 1 and messages[index]["role"] == "assistant"}


def checked_weight(value: Any, name: str) -> float:
    """A weight as the file gives it. Raises DataError when it is no number, or one that can't be a weight."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{name} is {str(value).lower() if isinstance(value, bool) else repr(value)[:60]}", fix=WEIGHT_FIX)
    if value == 0 or SMALLEST <= value <= LARGEST:
        return float(value)
    shown = f"over {LARGEST:g}" if value > LARGEST else "negative" if value < 0 else f"{value:g}"
    raise DataError(f"{name} is {shown}", fix=WEIGHT_FIX)


def _given(message: dict[str, Any], name: str) -> float | None:
    """The weight that the message states; None when it states none."""
    weight, train = message.get("weight"), message.get("train")
    if train is not None and not isinstance(train, bool):
        raise DataError(f"{name}.train is {train!r}", fix="true (learned) or false (context only)")
    if weight is None:
        return None if train is None else float(train)
    number = checked_weight(weight, f"{name}.weight")
    if train is not None and train != (number > 0):
        raise DataError(f"{name} has train {str(train).lower()} and weight {number:g}", fix="keep one of the two")
    return number


def _check_counts(weight: float, role: str, name: str, answers: bool) -> None:
    if weight == 0 or (role == "assistant" and answers):
        return
    if role == "assistant":
        raise DataError(f"{name} is part of the prompt, so it can't count {weight:g}", fix="take weight and train out, or move it to the completion")
    raise DataError(f"{name} is the {role}'s, so it can't count {weight:g}", fix="only assistant messages are learned: take weight and train out")
