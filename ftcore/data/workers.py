"""Tokenises chunks of records here, or in several processes when there are very many."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence

from ftcore.data.fields import Record
from ftcore.data.spans import Tokens
from ftcore.spec.errors import DataError
from ftcore.spec.events import EVENTS_FD

ROWS_A_PROCESS = 25_000
"""A process takes seconds to import its tokenizer; below this many rows for it, it would not pay."""
MOST_PROCESSES = 16

Tokenise = Callable[[Sequence[Record]], list[Tokens | DataError]]
MakeTokenise = Callable[[], Tokenise]

_made: list[Tokenise] = []
_make: list[MakeTokenise] = []


def processes_for(rows: int, cores: int) -> int:
    """How many processes a file of `rows` rows is worth on `cores` cores: 1 means this one."""
    return max(1, min(rows // ROWS_A_PROCESS, cores, MOST_PROCESSES))


def tokenise_chunks(chunks: Sequence[Sequence[Record]], make: MakeTokenise, processes: int) -> Iterator[list[Tokens | DataError]]:
    """The results of each chunk, in order. `make` must be picklable when `processes` > 1. Raises what `make` or its function raises."""
    if processes < 2:
        tokenise = make()
        for chunk in chunks:
            yield tokenise(chunk)
        return
    # Never fork: the tokenizer library has threads of its own by now, and torch may be imported.
    with multiprocessing.get_context("spawn").Pool(processes, initializer=_start, initargs=(make,)) as pool:
        yield from pool.imap(_tokenise, chunks)


def _start(make: MakeTokenise) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ.pop(EVENTS_FD, None)  # the descriptor isn't inherited; its number may be another file's here
    _make.append(make)


def _tokenise(chunk: Sequence[Record]) -> list[Tokens | DataError]:
    if not _made:  # here and not in _start: a pool whose initializer fails starts processes for ever
        _made.append(_make[0]())
    return _made[0](chunk)
