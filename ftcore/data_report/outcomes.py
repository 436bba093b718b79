"""What became of the rows that were not kept as they are: read from the file that the preparation left, a line at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

BAD, DROPPED, TRUNCATED, SPLIT = "bad", "dropped", "truncated", "split"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One row that was not kept as it is."""

    row: int
    file: str
    line: int | None
    outcome: str
    """bad, dropped, truncated or split."""
    reason: str
    tokens: int
    """Of the whole row; 0 where it was never tokenised."""
    roles: str = ""
    """Of a conversation without an answer to learn from."""


@dataclass(slots=True)
class Told:
    """All outcomes of a set, added up."""

    counts: dict[str, int] = field(default_factory=dict)
    """bad, dropped, truncated, split -> rows."""
    first: dict[str, list[Outcome]] = field(default_factory=dict)
    """The first rows of each."""
    without_targets: list[int] = field(default_factory=list)
    """The first rows with nothing to learn from."""
    lost: list[int] = field(default_factory=list)
    """Tokens of each row that was dropped."""
    longest: list[Outcome] = field(default_factory=list)
    """The longest of the rows that were tokenised, longest first."""

    @property
    def lost_lengths(self) -> npt.NDArray[np.int64]:
        """[D] tokens of the rows that were dropped."""
        return np.array(self.lost, dtype=np.int64)


def read_outcomes(path: str) -> Iterator[Outcome]:
    """The lines of the file; none where there is no file."""
    if not path or not Path(path).is_file():
        return
    with Path(path).open(encoding="utf-8") as file:
        for line in file:
            value = json.loads(line)
            yield Outcome(
                row=value["row"],
                file=value["file"],
                line=value["line"],
                outcome=value["outcome"],
                reason=value["reason"],
                tokens=value.get("tokens") or 0,
                roles=value.get("roles", ""),
            )


def add_up(outcomes: Iterable[Outcome], listed: int) -> Told:
    """Counts, and `listed` rows of each kind."""
    told = Told()
    for each in outcomes:
        told.counts[each.outcome] = told.counts.get(each.outcome, 0) + 1
        first = told.first.setdefault(each.outcome, [])
        if len(first) < listed:
            first.append(each)
        if each.reason == "no_supervised_tokens" and len(told.without_targets) < listed:
            told.without_targets.append(each.row)
        if each.outcome == DROPPED and each.tokens:
            told.lost.append(each.tokens)
        if each.tokens:
            told.longest = sorted([*told.longest, each], key=lambda other: -other.tokens)[:listed]
    return told
