"""A cache that is there: found fast, waited for, never taken for whole when it isn't (B15, E10)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftcore.data.build import prepare_set
from ftcore.data.cache import SampleSet
from ftcore.data.gathered import RowProgress
from ftcore.data.lock import exclusive
from ftcore.data.prepared import ModelSource, PreparedSet
from ftcore.spec.events import EVENTS_FD
from ftcore.spec.sections import DataSection, TrainingSet
from tests.unit.prepared_sets import tiny_source

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return tiny_source(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that gives the events told since it was last called."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    monkeypatch.setenv(EVENTS_FD, str(writer))

    def told() -> list[dict[str, Any]]:
        with open(os.dup(reader), "rb", buffering=0) as pipe:
            return [json.loads(line) for line in (pipe.read(1 << 20) or b"").splitlines()]

    yield told
    os.close(reader)
    os.close(writer)


def prepared(path: str, source: ModelSource, cache: Path) -> PreparedSet:
    data = DataSection(train=TrainingSet(path=path, format="messages"))
    return prepare_set("data.train", data.training["train"], data, source, cache)


def test_a_warm_start_reads_neither_data_nor_samples(tiny: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests and checks are remembered for as long as a file is the same one."""
    rows = tmp_path / "rows.jsonl"
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    rows.write_text((json.dumps(row) + "\n") * 50, encoding="utf-8")
    first = prepared(str(rows), tiny, tmp_path)
    assert prepared(str(rows), tiny, tmp_path) == first
    monkeypatch.setattr("ftcore.data.digests._sha256", lambda _: pytest.fail("the data was read"))
    monkeypatch.setattr(SampleSet, "is_intact", lambda _: pytest.fail("the samples were read"))
    took = []
    for _ in range(5):
        began = time.thread_time()
        assert prepared(str(rows), tiny, tmp_path) == first
        took.append(time.thread_time() - began)
    # The quickest: the garbage of other tests may be collected in one of them.
    assert min(took) < 0.2


@pytest.mark.parametrize("how", ["byte", "outcomes"])
def test_a_damaged_cache_is_found_after_a_warm_start_too(how: str, tiny: ModelSource, tmp_path: Path) -> None:
    """The same size, and the time of the last change set back."""
    first = prepared("builtin:extraction/eval", tiny, tmp_path)
    prepared("builtin:extraction/eval", tiny, tmp_path)
    path = Path(first.arrow)
    if how == "outcomes":
        Path(first.outcomes).unlink()
    else:
        state, payload = path.stat(), bytearray(path.read_bytes())
        payload[payload.index(SampleSet.open(path).sample(1).ids.tobytes()) + 4] ^= 1
        path.write_bytes(payload)
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert prepared("builtin:extraction/eval", tiny, tmp_path) == first
    assert SampleSet.open(path).is_intact() and Path(first.outcomes).exists()


def test_a_job_waits_for_another_that_makes_the_same_cache(tiny: ModelSource, tmp_path: Path, events: Any) -> None:
    first = prepared("builtin:extraction/eval", tiny, tmp_path)
    lock = Path(first.arrow).with_suffix(".lock")
    events()
    held, seen = threading.Event(), []

    def hold() -> None:
        with exclusive(lock):
            held.set()
            end = time.monotonic() + 60
            while not seen and time.monotonic() < end:
                seen.extend(event["text"] for event in events() if event["event"] == "note")
                time.sleep(0.01)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    assert prepared("builtin:extraction/eval", tiny, tmp_path) == first
    holder.join()
    (note,) = seen
    assert note.startswith(f"data.train: process {os.getpid()} on host ") and note.endswith("is preparing the same data: waiting for it, to use what it makes")


def test_a_killed_preparation_leaves_nothing_that_is_taken_for_whole(tiny: ModelSource, tmp_path: Path) -> None:
    """Killed when the first of many chunks is done; the next one clears up after it, and makes the cache whole."""
    rows = tmp_path / "rows.jsonl"
    row = {"messages": [{"role": "user", "content": "a" * 800}, {"role": "assistant", "content": "b"}]}
    rows.write_text((json.dumps(row) + "\n") * 8000, encoding="utf-8")
    code = (
        "import os\nimport signal\nfrom pathlib import Path\nfrom ftcore.data.gathered import RowProgress\nfrom ftcore.data.prepared import ModelSource\n"
        "from tests.unit.test_warm_start import prepared\nRowProgress.tell = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"source = ModelSource(path={tiny.path!r}, revision='', digest='', name='tiny', trust_remote_code=False)\n"
        f"prepared({str(rows)!r}, source, Path({str(tmp_path)!r}))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == -signal.SIGKILL
    folder = tmp_path / "data"
    assert not list(folder.glob("*.arrow")) and list(folder.glob(".*.outcomes.jsonl.*"))
    rows.write_text((json.dumps(row) + "\n") * 20, encoding="utf-8")
    (left,) = folder.glob("*.lock")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ftcore.data.build.cache_key", lambda *_: left.stem)
        whole = prepared(str(rows), tiny, tmp_path)
    assert whole.samples == 20
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{left.stem}.{suffix}" for suffix in ("arrow", "lock", "outcomes.jsonl"))


def test_progress_tells_rows_a_second_and_the_time_left(events: Any) -> None:
    """E10."""
    now = [0.0]
    progress = RowProgress("data.train", size=1000, clock=lambda: now[0])
    for seconds, rows, read in ((9, 100, 250), (9.1, 110, 260), (10, 200, 500)):
        now[0] = seconds
        progress.tell(rows, read)
    now[0] = 4000
    progress.end(400)
    told = [(event["done"], event["total"], event["text"]) for event in events()]
    assert told == [
        (100, 400, "data.train: tokenising"),
        (200, 400, "data.train: 100 rows/s, about 2.0 s left"),
        (400, 400, "data.train: 400 rows in 1 h 6 min, 0 rows/s"),
    ]


def test_what_is_left_out_is_told(tiny: ModelSource, tmp_path: Path, events: Any) -> None:
    """C09: by the first preparation and by every later one."""
    data = DataSection(train=TrainingSet(path=str(ROOT / "tests/cases/data/long_prompt_short_answer.jsonl")), max_length=100)
    for overlong, words in (("drop", "1 of 2 rows dropped (1 overlong)"), ("truncate_right", "1 of 2 rows dropped (1 no_supervised_tokens)")):
        for _ in range(2):
            kept = prepare_set("data.train", data.training["train"], replace(data, overlong=overlong), tiny, tmp_path)
            (note,) = [event["text"] for event in events() if event["event"] == "note" and "dropped" in event["text"]]
            assert note == f"data.train: {words}; row by row in {kept.outcomes}"
