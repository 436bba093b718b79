"""Whether the buffers that are to stay in fp32 are there."""

from __future__ import annotations

import re

import torch

from ftcore.spec.errors import Problem, SpecError

WHERE = "train.keep_in_fp32"
SHOWN = 6
"""Names of buffers in a message."""


def check_kept_buffers(model: torch.nn.Module, patterns: tuple[str, ...]) -> None:
    """Raises SpecError naming every pattern that matches no floating-point buffer of `model`, or is none: DeepSpeed would pass over it without a word.

    A pattern matches anywhere in a buffer's name and `*` stands for any characters, as in deepspeed/runtime/keep_in_fp32.py.
    """
    names = [name for name, buffer in model.named_buffers() if buffer.is_floating_point()]
    problems = []
    for pattern in patterns:
        try:
            found = re.compile(pattern.replace("*", ".*"))
        except re.error as error:
            problems.append(Problem(what=f"{pattern!r} is no pattern: {error}", where=WHERE, fix="write a part of a name; * stands for any characters"))
            continue
        if not any(found.search(name) for name in names):
            problems.append(_unmatched(pattern, names, model))
    if problems:
        raise SpecError(problems)


def _unmatched(pattern: str, names: list[str], model: torch.nn.Module) -> Problem:
    if not names:
        return Problem(what=f"{type(model).__name__} has no floating-point buffer", where=WHERE, fix="remove it: parameters have fp32 masters anyway")
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    is_parameter = any(pattern in name for name, _ in model.named_parameters())
    why = "; a parameter of that name has an fp32 master anyway" if is_parameter else ""
    what = f"{pattern!r} matches no buffer of {type(model).__name__}{why}; its buffers are {', '.join(names[:SHOWN])}{more}"
    return Problem(what=what, where=WHERE, fix="name one of these, or a part of the name")
