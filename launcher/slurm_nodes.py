"""Slurm's compressed lists of nodes (`gpu[008-011],m-[1-2]n[01-02]`), read without scontrol.

What is not understood is refused whole: a list read by half would start a smaller run.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter

from ftcore.spec.errors import ClusterError
from ftcore.spec.resolved import Host
from launcher.host_words import MAX_SLOTS, check_host_name

MOST_NODES = 65536
"""More nodes than Slurm itself allows in a cluster by default: a longer list is a slip."""

_GROUP = re.compile(r"([^\[\],]*)\[([^\[\]]*)\]")
_ITEM = re.compile(r"(?:[^\[\],]*\[[^\[\]]*\])+|[^\[\],]+")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_ABSENT = {"", "(null)", "None", "None assigned"}


def expand_nodes(text: str) -> tuple[str, ...]:
    """The host names of a node list as Slurm writes it (SLURM_JOB_NODELIST, `squeue -o %N`), in its order, zeros kept.

    Raises ClusterError for any other form.
    """
    text = text.strip()
    if text in _ABSENT:
        raise _refusal(text, "it names no node: the job has none yet, or this is not a Slurm job", "look at `squeue --me` for a job that runs")
    items = _items(text)
    total = sum(math.prod(group.count for group in groups) for _, groups in items)
    if total > MOST_NODES:
        raise _refusal(text, f"it stands for more than {MOST_NODES} nodes", "check the ranges")
    names = tuple(name for texts, groups in items for name in _names(texts, groups))
    wrong = [name for name in names if check_host_name(name) is not None or ":" in name]
    if wrong:
        raise _refusal(text, f"{_shown(wrong[0])} is no host name")
    name, times = Counter(name.lower() for name in names).most_common(1)[0]
    if times > 1:
        raise _refusal(text, f"node {name} stands in it {times} times")
    return names


def job_hosts(nodes: str, slots: tuple[int, ...]) -> tuple[Host, ...]:
    """The hosts of a Slurm job in the list's order: as many ranks on each as `slots` says, one number for all or one a node.

    Raises ClusterError for a list or numbers that don't fit together.
    """
    names = expand_nodes(nodes)
    each = slots * len(names) if len(slots) == 1 else slots
    if len(each) != len(names):
        what = f"{len(names)} nodes ({_shown(nodes)}), but counts for {len(each)}"
        raise ClusterError(what, where="SLURM_JOB_NODELIST", fix="ask for the same number of slots on every node, or one count a node")
    wrong = [count for count in each if not 1 <= count <= MAX_SLOTS]
    if wrong:
        raise ClusterError(f"a node has from 1 to {MAX_SLOTS} slots, not {wrong[0]}", where="slots_per_node", fix="give the real number")
    return tuple(Host(name=name, slots=count) for name, count in zip(names, each, strict=True))


def _items(text: str) -> list[tuple[list[str], list[_Numbers]]]:
    """Each item of the list: the texts before its brackets, and the numbers in them."""
    items: list[tuple[list[str], list[_Numbers]]] = []
    position = 0
    while True:
        matched = _ITEM.match(text, position)
        if matched is None:
            raise _refusal(text, f"it can't be read from {_shown(text[position:])} on")
        item = matched[0]
        groups = _GROUP.findall(item)
        items.append(([before for before, _ in groups], [_Numbers(text, ranges) for _, ranges in groups]) if groups else ([item], []))
        position = matched.end()
        if position == len(text):
            return items
        if text[position] != ",":
            raise _refusal(text, f"it can't be read from {_shown(text[position:])} on")
        position += 1


class _Numbers:
    """The numbers of one pair of brackets, counted before they are written out."""

    def __init__(self, text: str, ranges: str) -> None:
        self.parts: list[tuple[int, int, int]] = []
        for part in ranges.split(","):
            matched = _RANGE.fullmatch(part)
            first, last = (matched[1], matched[2] or matched[1]) if matched else ("1", "0")
            if int(last) < int(first):
                raise _refusal(text, f"'{part}' in its brackets is no number and no range of numbers")
            self.parts.append((int(first), int(last), len(first)))

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(last - first + 1 for first, last, _ in self.parts)

    def texts(self) -> list[str]:
        """Each number, with as many digits as the first one of its range."""
        return [f"{number:0{width}d}" for first, last, width in self.parts for number in range(first, last + 1)]


def _names(before: list[str], groups: list[_Numbers]) -> list[str]:
    if not groups:
        return before
    written = [[text + number for number in numbers.texts()] for text, numbers in zip(before, groups, strict=True)]
    return ["".join(parts) for parts in itertools.product(*written)]


def _refusal(text: str, reason: str, fix: str = "give it as Slurm writes it, for example `gpu[008-011],login1`") -> ClusterError:
    return ClusterError(f"node list {_shown(text)}: {reason}", where="SLURM_JOB_NODELIST", fix=fix)


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 80 else f"{text[:77]}...")
