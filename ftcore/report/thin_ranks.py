"""Reading a run for its page: the ranks' own files whole where they are small, a sample of their lines where they are not."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

from ftcore.spec.recorded import recorded_object
from ftcore.spec.run_record import Line, RunRecord, read_run

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
    known = {line["update"]: line.get("attempt") for line in record.updates}
    ranks = {rank: [line for line in _sample(path) if known.get(line["update"], line.get("attempt")) == line.get("attempt")] for rank, path in files.items()}
    return dataclasses.replace(record, ranks=ranks)


def rank_files(folder: Path) -> dict[int, Path]:
    """Rank -> its file."""
    matched = [(re.fullmatch(r"rank_([0-9]+)\.jsonl", path.name), path) for path in (folder / "metrics").glob("rank_*.jsonl")]
    return dict(sorted((int(match[1]), path) for match, path in matched if match and path.is_file()))


def _sample(path: Path) -> list[Line]:
    """Lines of evenly spread blocks, by update, with the first and the last."""
    return sorted({line["update"]: line for line in _block_lines(path)}.values(), key=lambda line: int(line["update"]))


def _block_lines(path: Path) -> Iterator[Line]:
    size = path.stat().st_size
    with path.open("rb") as file:
        for number in range(BLOCKS):
            start = max(0, (size - BLOCK_BYTES) * number // (BLOCKS - 1))
            file.seek(start)
            lines = file.read(BLOCK_BYTES).split(b"\n")
            # The first and the last of a block are parts of lines.
            for text in lines[0 if number == 0 else 1 : -1]:
                line = recorded_object(text)
                if line is not None and type(line.get("update")) is int:
                    yield line
