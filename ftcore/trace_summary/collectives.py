"""Collectives of a trace, and by the same ones of other ranks which part of each was waiting for the last rank to come."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ftcore.trace_summary.recorded import COMMUNICATION, Recorded, Spans

_CALL = "c10d::"
_NOT_THE_KIND = re.compile(r"^(gloo|mpi|ucc):|^c10d::|base|coalesced|tensor|[_ ]")
_NCCL_KIND = re.compile(r"(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective as one rank saw it."""

    kind: str
    """allreduce, allgather and so on."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A rank's seconds in collectives, parted."""

    transfer_s: float
    waiting_s: float


def exchanges(recorded: Recorded, threads: set[int]) -> Spans:
    """On a CPU: the collectives that one of these threads asked for. Those of a thread beside the training, like the data's, hold nobody up.

    The first unanswered call of the same kind is taken for the one that asked: a process group works in order.
    """
    names = recorded.names.things
    calls = [
        (start, _kind(names[name][0]))
        for start, name, thread in zip(recorded.operators.starts, recorded.operators.names, recorded.operators.threads, strict=True)
        if thread in threads and names[name][0].startswith(_CALL)
    ]
    if not calls:
        return recorded.collectives
    waiting: dict[str, list[float]] = {}
    for start, kind in sorted(calls, reverse=True):
        waiting.setdefault(kind, []).append(start)
    chosen = Spans()
    done = recorded.collectives
    for place in np.argsort(np.array(done.starts), kind="stable").tolist():
        asked = waiting.get(_kind(names[done.names[place]]), [])
        if asked and asked[-1] <= done.starts[place]:
            asked.pop()
            event = {"ts": done.starts[place], "dur": done.ends[place] - done.starts[place]}
            chosen.add(event, done.names[place], done.threads[place])
    return chosen


def collectives_of(recorded: Recorded, threads: set[int], window: tuple[float, float]) -> list[Collective]:
    """Those that began in the window, in order: kernels on an accelerator, gloo's threads on a CPU."""
    spans = recorded.kernels if recorded.on_device else exchanges(recorded, threads)
    names = recorded.names.things
    found = []
    for place in np.argsort(np.array(spans.starts), kind="stable").tolist():
        is_one = not recorded.on_device or spans.threads[place] == COMMUNICATION
        if is_one and window[0] <= spans.starts[place] < window[1]:
            found.append(Collective(kind=_kind(names[spans.names[place]]), seconds=(spans.ends[place] - spans.starts[place]) / 1e6))
    return found


def part_waiting(ranks: Mapping[int, Sequence[Collective]]) -> dict[int, Waiting] | None:
    """The last rank to come waits for nobody, so that its time is the transfer's: what the others took longer, they waited.

    None where the ranks' collectives are not the same ones, or there is one rank.
    """
    sequences = [[each.kind for each in found] for found in ranks.values()]
    if len(sequences) < 2 or not sequences[0] or any(each != sequences[0] for each in sequences[1:]):
        return None
    seconds = np.array([[each.seconds for each in found] for found in ranks.values()])
    shortest = seconds.min(axis=0)
    return {rank: Waiting(transfer_s=float(shortest.sum()), waiting_s=float((row - shortest).sum())) for rank, row in zip(ranks, seconds, strict=True)}


def by_kind(collectives: Sequence[Collective]) -> list[dict[str, object]]:
    """Calls and seconds of each kind, the longest first."""
    calls = Counter(each.kind for each in collectives)
    seconds = {kind: sum(each.seconds for each in collectives if each.kind == kind) for kind in calls}
    return [{"name": kind, "calls": calls[kind], "seconds": seconds[kind]} for kind in sorted(calls, key=lambda kind: -seconds[kind])]


def _kind(name: str) -> str:
    device = _NCCL_KIND.search(name)
    if device is not None:
        return device[1].lower()
    while (shorter := _NOT_THE_KIND.sub("", name)) != name:
        name = shorter
    return name
