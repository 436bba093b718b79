"""Reading 100,000 chats from each kind of file: CPU seconds, beside the format's own library, and memory: `python -m benchmarks.reading [ROWS]`."""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ftcore.data.reading.find import find_files
from ftcore.data.reading.reader import read_chunks
from ftcore.spec.data_sections import DataSet

ROUNDS = 3
MIB = 1 << 20


def write_files(folder: Path, rows: int) -> None:
    """The same chats in each kind of file, about 450 bytes each; the CSV file has prompt and completion."""
    random_ = random.Random(0)
    chats = []
    for number in range(rows):
        words = ["".join(random_.choices("abcdefghij\u00e9", k=6)) for _ in range(55)]
        turns = [("user", f"{number} {' '.join(words[:20])}"), ("assistant", " ".join(words[20:]))]
        chats.append({"messages": [{"role": role, "content": content} for role, content in turns]})
    lines = "".join(json.dumps(chat, ensure_ascii=False) + "\n" for chat in chats).encode()
    (folder / "chats.jsonl").write_bytes(lines)
    (folder / "chats.jsonl.gz").write_bytes(gzip.compress(lines))
    (folder / "chats.jsonl.zst").write_bytes(pa.compress(lines, codec="zstd", asbytes=True))
    (folder / "chats.json").write_text(json.dumps(chats, ensure_ascii=False, indent=1), encoding="utf-8")
    table = pa.Table.from_pylist(chats)
    pq.write_table(table, folder / "chats.parquet")
    with pa.OSFile(str(folder / "chats.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, 1000)
    with (folder / "pairs.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["prompt", "completion"], *([message["content"] for message in chat["messages"]] for chat in chats)])


def own_library(path: Path) -> Any:
    """The rows by the plain way of the format's own library, all at once."""
    match path.suffixes[-1]:
        case ".jsonl":
            return [json.loads(line) for line in path.open("rb")]
        case ".gz":
            return [json.loads(line) for line in gzip.open(path)]
        case ".zst":
            return [json.loads(line) for line in pa.CompressedInputStream(str(path), "zstd").read().splitlines()]
        case ".json":
            return json.loads(path.read_bytes())
        case ".csv":
            return list(csv.DictReader(path.open(newline="", encoding="utf-8")))
        case ".parquet":
            return pq.read_table(path).to_pylist()
        case _:
            return pa.ipc.open_stream(pa.memory_map(str(path))).read_all().to_pylist()


def ours(path: Path) -> int:
    """Reads all rows, chunk by chunk; how many."""
    source = find_files(DataSet(path=str(path)), "data.train", purpose="train", cache_dir=path.parent)
    return sum(len(chunk.rows()) for chunk in read_chunks(source))


def cpu_s(work: Callable[[], Any]) -> float:
    """Best of a few rounds, CPU seconds of this process."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def peak_mib(path: Path) -> float:
    """Memory that reading the file adds, in a process of its own."""
    program = "import sys, pathlib, benchmarks.reading as it; print(it.added_mib(pathlib.Path(sys.argv[1])))"
    return float(subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True).stdout)


def added_mib(path: Path) -> float:
    """How much the peak of this process's memory rises while the file is read."""
    before = _peak_mib()
    ours(path)
    return _peak_mib() - before


def _peak_mib() -> float:
    # Not getrusage's: that begins with what the parent process had.
    line = next(line for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", metavar="ROWS", nargs="?", type=int, default=100_000, help="rows of each file (100000)")
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as aside:
        folder = Path(aside)
        write_files(folder, rows)
        print(f"{rows} rows\n\n| file | MiB | CPU s | its own library | memory added, MiB |\n|---|---|---|---|---|")
        for path in sorted(folder.iterdir()):
            assert ours(path) == rows
            mine, theirs = cpu_s(lambda path=path: ours(path)), cpu_s(lambda path=path: own_library(path))
            print(f"| `{path.name}` | {path.stat().st_size / MIB:.0f} | {mine:.2f} | {theirs:.2f} | {peak_mib(path):.0f} |")


if __name__ == "__main__":
    main()
