"""Which files are train, validation and test: by the names of folders, else of files, as the hub does."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from ftcore.spec.errors import DataError

Purpose = Literal["train", "eval"]

KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""Split -> the words that stand for it."""
SEPARATOR = "[-._ 0-9]"
SHARD = re.compile(r"data/(?P<split>[^/]+)-[0-9]{5}-of-[0-9]{5}[^/]*\.[^/]*")
WANTED = {"train": ("train",), "eval": ("validation", "test")}
"""What a set is for -> the split taken where the spec names none: the first that is there."""


def _word(split: str) -> str:
    return rf"(?:[^/]*{SEPARATOR})?(?:{'|'.join(KEYWORDS[split])})"


_FOLDERS = {split: re.compile(rf"(?:.*/)?{_word(split)}(?:{SEPARATOR}[^/]*)?/.*") for split in KEYWORDS}
_FILES = {split: re.compile(rf"(?:.*/)?{_word(split)}{SEPARATOR}[^/]*") for split in KEYWORDS}


def by_split(names: Sequence[str]) -> dict[str, list[str]]:
    """Split -> its files, in the order of `names` (paths inside a folder, with /). The first rule that finds anything decides:

    shards called data/SPLIT-00000-of-00005.suffix; a folder whose name holds a split's word, set off by -._ a space or digits; a file
    whose name does; else all files are train. Files that the deciding rule doesn't name are left out.
    """
    shards: dict[str, list[str]] = {}
    for name in names:
        if found := SHARD.fullmatch(name):
            shards.setdefault(found["split"], []).append(name)
    if shards:
        return shards
    for rules in (_FOLDERS, _FILES):
        found_by_rule = {split: taken for split, rule in rules.items() if (taken := [name for name in names if rule.fullmatch(name)])}
        if found_by_rule:
            return found_by_rule
    return {"train": list(names)}


def held_out_by_case(names: Sequence[str]) -> str:
    """The first file that would be held out if its folder's or its own name were in small letters, which is all that the hub's rules read; "" without one."""
    small = {name: name.lower() for name in names}
    found = by_split(list(small.values()))
    held_out = {name for split in WANTED["eval"] for name in found.get(split, ())}
    return next((name for name in names if small[name] != name and small[name] in held_out), "")


def chosen(splits: Mapping[str, Sequence[str]], split: str, *, purpose: Purpose, of: str, where: str) -> str:
    """The split to read: `split`, or for "" what the purpose asks for. `of` is the data set's path.

    Raises DataError naming the splits that there are.
    """
    there = ", ".join(splits) or "none"
    if split:
        if split in splits:
            return split
        raise DataError(f"{of} has no split {split!r}", where=f"{where}.split", fix=f"its splits are: {there}")
    for name in WANTED[purpose]:
        if name in splits:
            return name
    raise DataError(f"{of} has no split {' or '.join(WANTED[purpose])}", where=f"{where}.split", fix=f"name one of its splits: {there}")
