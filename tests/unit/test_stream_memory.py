"""A stream of many rows takes the memory of its buffers, not of its file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROWS, BUFFER, LANES = 200_000, 500, 4
MOST_GROWTH_MIB = 24
"""The file has about 80 MiB, and its rows as Python values several times that."""

PROGRAM = """
import json, sys

import numpy as np
from ftcore.data.cache import Sample

from ftcore.data.stream_source import StreamFile
from ftcore.stream.course import Course, Made
from ftcore.stream.offers import StreamSample
from ftcore.stream.prepare import cut_file
from ftcore.stream.reader import StreamReader
from ftcore.stream.rows import FileRows
from pathlib import Path

class Alone:
    def sum(self, values): return values
    def gather(self, value): return [value]

def make(rows):
    ids, spans = np.zeros(4, dtype=np.int32), np.array([[0, 4]], dtype=np.int32)
    return [Made(samples=(StreamSample(id=place.position, sample=Sample(ids=ids, spans=spans, row=0), supervised=3, weight=3.0, set=0),)) for place, _ in rows]

path, lanes, buffer = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
file = StreamFile(path=str(path), name=path.name, kind="jsonl", compression="", size=path.stat().st_size, set=0)
shards = tuple(cut_file(file, 0, lanes, file.size))
course = Course(shards=(shards,), weights=(1.0,), lanes=lanes, buffer_rows=buffer, seed=1, repeat=False, samples=512, tokens=None, micro_batch_tokens=64)
reader = StreamReader(course, FileRows([file.data_file]), make, Alone(), (0, 1), None)
# Not getrusage's number: that one is the largest of this process and of the one that started it, whose memory would hide any growth.
most = lambda: int(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))) / 1024
seen, early = 0, 0.0
while (update := reader.next()) is not None:
    seen += len(update.lanes)
    early = early or (most() if seen > 20_000 else 0.0)
print(json.dumps({"seen": seen, "growth": most() - early, "shards": len(shards), "file": file.size / 2**20, "rounds": reader.rounds}))
"""


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with path.open("w") as file:
        file.writelines(f'{{"text": "{number} {"some words of a row " * 20}"}}\n' for number in range(ROWS))
    arguments = [sys.executable, "-c", PROGRAM, str(path), str(LANES), str(BUFFER)]
    done = subprocess.run(arguments, cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["seen"] == ROWS and found["shards"] == LANES and found["file"] > 70
    assert found["growth"] < MOST_GROWTH_MIB, found
    # E09: one sum over the ranks an update, and one more for a lane that ends within one.
    assert found["rounds"] <= -(-ROWS // 512) + LANES
