"""What a rule between keys of a spec is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ftcore.spec.errors import Problem
from ftcore.spec.sections import Spec
from launcher.spec_source import Draft

Findings = Iterator[Problem]


@dataclass(frozen=True, slots=True)
class Rule:
    """A check and the keys it reads; it is left out while one of them is wrong by itself."""

    reads: tuple[str, ...]
    check: Callable[[Spec, Draft], Findings]
