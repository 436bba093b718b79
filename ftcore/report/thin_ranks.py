"""Reading a run for its page: the ranks' own files whole where they are small, a sample of their lines where they are not."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

from ftcore.spec.recorded import recorded_object
from ftcore.spec.run_lines import Line, RunRecord, by_update, of_kept, read_run

WHOLE_BYTES = 48 << 20
"""Of all ranks' files together: read whole up to here."""
BLOCKS, BLOCK_BYTES = 24, 32 << 10
"""Read of each file beyond that: evenly spread over it."""


def read_for_report(folder: Path) -> RunRecord:
    """The run's record. Raises CheckpointError for a folder without a run."""
    files = rank_files(folder)
    if sum(path.stat().st_size for path in files.values()) <= WHOLE_BYTES:
        return read_run(folder)
    record = read_run(folder, with_ranks=False)
    return dataclasses.replace(record, ranks={rank: of_kept(by_update(_block_lines(path)), record.updates, rank) for rank, path in files.items()})


def rank_files(folder: Path) -> dict[int, Path]:
    """Rank -> its file."""
    matched = [(re.fullmatch(r"rank_([0-9]+)\.jsonl", path.name), path) for path in (folder / "metrics").glob("rank_*.jsonl")]
    return dict(sorted((int(match[1]), path) for match, path in matched if match and path.is_file()))


def _block_lines(path: Path) -> Iterator[Line]:
    """Lines of evenly spread blocks, the first and the last of the file among them; none of a file that can't be read."""
    with contextlib.suppress(OSError):
        yield from _lines_in_blocks(path)


def _lines_in_blocks(path: Path) -> Iterator[Line]:
    size = path.stat().st_size
    with path.open("rb") as file:
        for number in range(BLOCKS):
            start = max(0, (size - BLOCK_BYTES) * number // (BLOCKS - 1))
            file.seek(start)
            lines = file.read(BLOCK_BYTES).split(b"\n")
            # The first and the last of a block are parts of lines.
            for text in lines[0 if number == 0 else 1 : -1]:
                line = recorded_object(text)
                if line is not None:
                    yield line
