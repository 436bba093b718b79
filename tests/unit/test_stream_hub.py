"""Data sets of the hub that are streamed: read where they are, at one commit, by ranges. The server is on this machine."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from ftcore.data.reading.remote import RemoteFile, is_remote, remote_path
from ftcore.data.reading.rows import DataFile
from tests.unit.hub_server import COMMIT, serving

PROGRAM = """
import json, sys
from pathlib import Path
from ftcore.data.prepared import ModelSource
from ftcore.spec.data_sections import DataSection, TrainingSet
from ftcore.spec.errors import FtError
from ftcore.stream.prepare import prepare_stream
from ftcore.stream.rows import FileRows
from ftcore.stream.state import Place
folder = Path(sys.argv[1])
model = ModelSource(path=str(folder), revision="", digest="", name="", trust_remote_code=False)
data = DataSection(train=TrainingSet(path=sys.argv[2], revision=sys.argv[3]), streaming=True, lanes=3)
try:
    source = prepare_stream(data, model, folder / "cache")
    rows = FileRows([file.data_file for file in source.files])
    read = [(Place(shard.file, position), row.value) for shard in source.shards for position, _, row in rows.read(shard.file, shard.start, shard.end)]
    picked = rows.pick([place for place, _ in read[::-3]])
    print(json.dumps({"read": [value for _, value in read], "picked": [row.value for row in picked], "revision": source.sets[0].revision,
                      "shards": len(source.shards), "fingerprint": source.fingerprint, "format": source.sets[0].dataset.format, "rows": source.rows}))
except FtError as error:
    print(json.dumps({"problems": [str(problem.what) for problem in error.problems]}))
"""
ROWS = [{"text": f"row {number} " + "x" * (number % 50)} for number in range(300)]


def stream(name: str, folder: Path, endpoint: str, revision: str = "") -> dict[str, Any]:
    """What a fresh process finds and reads."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    settings = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "hf"), "HF_HUB_DISABLE_XET": "1"}
    arguments = [sys.executable, "-c", PROGRAM, str(folder), name, revision]
    done = subprocess.run(arguments, env=settings, cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pa.parquet.write_table(pa.Table.from_pylist(rows), sink, row_group_size=40)
    return sink.getvalue()


def test_files_of_the_hub_are_read_where_they_are(tmp_path: Path) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    for kind, files in {"jsonl": {"train.jsonl": lines}, "parquet": {"data/train-00000-of-00001.parquet": as_parquet(ROWS)}}.items():
        with serving({}, files) as server:
            found = stream("org/rows", tmp_path / kind, f"http://127.0.0.1:{server.server_port}")
            assert not list((tmp_path / kind / "hf").rglob("*.jsonl")) + list((tmp_path / kind / "hf").rglob("*.parquet"))
            assert {path for path in server.requested if "/resolve/" in path and COMMIT not in path} <= {"/datasets/org/rows/resolve/main/README.md"}
        assert found["read"] == ROWS and found["picked"] == ROWS[::-3]
        assert (found["revision"], found["shards"], found["format"], found["rows"]) == (COMMIT, 3, "text", None)


def test_refusals_of_the_hub(tmp_path: Path) -> None:
    with serving({}, {"train.jsonl": b""}) as server:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        assert "the hub has no data set org/none" in stream("org/none", tmp_path / "a", endpoint)["problems"][0]
        assert "no rows: all files are empty" in stream("org/rows", tmp_path / "b", endpoint)["problems"][0]
    (gone,) = stream("org/rows", tmp_path / "b", endpoint)["problems"]
    assert "the hub data set of that name could not be fetched" in gone
    with serving({}, {"train-unsaid.jsonl": b""}) as server:
        (unsaid,) = stream("org/rows", tmp_path / "c", f"http://127.0.0.1:{server.server_port}")["problems"]
        assert "the hub says nothing of train-unsaid.jsonl of org/rows" in unsaid


def test_a_request_that_fails_is_made_again() -> None:
    class Flaky(RemoteFile):
        """A file of 10 bytes of which every second request fails, at most `failures` times."""

        failures = 0

        def _open(self) -> Any:
            outer = self

            class Inner(io.BytesIO):
                def read(self, size: int | None = -1, /) -> bytes:
                    if outer.failures:
                        outer.failures -= 1
                        super().read(size)
                        raise RuntimeError("the connection was reset")
                    return super().read(size)

            return Inner(b"0123456789")

    file = DataFile(path=remote_path("org/rows", COMMIT, "a.jsonl"), name="a.jsonl", kind="jsonl", size=10)
    assert is_remote(file) and str(file.path) == f"hf:/datasets/org/rows@{COMMIT}/a.jsonl"
    flaky = Flaky(file, pauses_s=(0.0, 0.0))
    flaky.failures = 2
    assert io.BufferedReader(flaky, 4).read() == b"0123456789" and flaky.failures == 0
    broken = Flaky(file, pauses_s=(0.0, 0.0))
    broken.failures = 3
    with pytest.raises(OSError, match="RuntimeError: the connection was reset"):
        broken.read(4)
