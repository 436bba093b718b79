"""Clearing caches away: what is old goes with all that is remembered of it, what is used stays."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ftcore.data.build import prepare_set
from ftcore.data.cache import SampleSet
from ftcore.data.collect import Choice, collect, main, used_by
from ftcore.data.digests import file_digest
from ftcore.data.lengths import note_lengths
from ftcore.data.lock import exclusive, if_free
from ftcore.data.prepared import ModelSource, Prepared, PreparedSet
from ftcore.data.reading.digest import source_digest
from ftcore.data.reading.find import find_files
from ftcore.spec.errors import CheckpointError
from ftcore.spec.sections import DataSection, ModelSection, TrainingSet
from tests.unit.prepared_sets import tiny_source

ROOT = Path(__file__).resolve().parents[2]
DAY_S = 86_400


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return tiny_source(tmp_path_factory.mktemp("tokenizer"))


def made(folder: Path, name: str, tiny: ModelSource) -> PreparedSet:
    """A cache of one row that holds its own name, and what is remembered of it."""
    rows = folder / f"{name}.jsonl"
    rows.write_text(json.dumps({"prompt": name, "completion": "b"}) + "\n", encoding="utf-8")
    data = DataSection(train=TrainingSet(path=str(rows)))
    assert data.train is not None
    for _ in range(2):
        prepared = prepare_set("data.train", data.train, data, tiny, folder / "cache")
    note_lengths(prepared, data.train, data, ModelSection(model_name_or_path="tiny"), folder / "cache")
    return prepared


def states(folder: Path, choice: Choice, *, dry_run: bool = False) -> Sequence[str]:
    return [entry.state for entry in collect(folder / "cache", choice, dry_run=dry_run).entries]


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in (folder / "cache").rglob("*") if path.is_file())


def age(prepared: PreparedSet, days: float) -> None:
    then = time.time() - days * DAY_S
    for path in Path(prepared.arrow).parent.glob(f"{Path(prepared.arrow).stem}.*"):
        os.utime(path, (then, then))


def test_what_is_old_goes_with_all_that_is_remembered_of_it(tiny: ModelSource, tmp_path: Path) -> None:
    new = made(tmp_path, "new", tiny)
    only = [each for each in files(tmp_path) if "digests" not in each]
    old = made(tmp_path, "old", tiny)
    age(old, 8)
    before = files(tmp_path)
    dry = collect(tmp_path / "cache", Choice(older_than_days=7), dry_run=True)
    assert files(tmp_path) == before
    done = collect(tmp_path / "cache", Choice(older_than_days=7))
    assert [(entry.key, entry.state) for entry in done.entries] == [(Path(old.arrow).stem, "deleted"), (Path(new.arrow).stem, "kept")]
    assert (dry.entries, dry.freed_bytes, dry.notes_deleted) == (done.entries, done.freed_bytes, done.notes_deleted)
    first = done.entries[0]
    assert (first.made_of, first.format, first.rows, first.samples) == (str(tmp_path / "old.jsonl"), "prompt_completion", 1, 1)
    assert done.freed_bytes == first.bytes > 1000 and done.notes_deleted == 3
    assert [each for each in files(tmp_path) if "digests" not in each] == only
    (tmp_path / "old.jsonl").unlink()
    assert collect(tmp_path / "cache", Choice(older_than_days=7)).notes_deleted == 1


def test_a_cache_that_is_asked_for_is_young_again(tiny: ModelSource, tmp_path: Path) -> None:
    age(made(tmp_path, "a", tiny), 8)
    made(tmp_path, "a", tiny)
    assert states(tmp_path, Choice(older_than_days=7)) == ["kept"]


def test_what_a_run_reads_or_a_preparation_makes_stays(tiny: ModelSource, tmp_path: Path) -> None:
    prepared = made(tmp_path, "a", tiny)
    samples = SampleSet.open(prepared.arrow)
    assert states(tmp_path, Choice()) == ["in use"]
    assert len(samples) == 1
    del samples
    with exclusive(Path(prepared.arrow).with_suffix(".lock")):
        assert states(tmp_path, Choice()) == ["in use"]
    assert states(tmp_path, Choice(nothing=True)) == ["kept"]
    assert states(tmp_path, Choice()) == ["deleted"]
    assert files(tmp_path) == [each for each in files(tmp_path) if "digests" in each]
    assert states(tmp_path, Choice()) == []


def test_a_file_that_is_looked_at_just_now_is_still_shared(tiny: ModelSource, tmp_path: Path) -> None:
    prepared = made(tmp_path, "a", tiny)
    with contextlib.ExitStack() as looks:
        assert looks.enter_context(if_free(Path(prepared.arrow)))
        ends = threading.Timer(0.1, looks.pop_all().close)
        ends.start()
        samples = SampleSet.open(prepared.arrow)
    ends.join()
    assert states(tmp_path, Choice()) == ["in use"] and len(samples) == 1


def test_a_tab_is_no_comma_for_the_same_bytes(tiny: ModelSource, tmp_path: Path) -> None:
    text = "prompt\tcompletion\na\tb\n"
    digests = {}
    for name in ("a.tsv", "b.csv", "c.csv"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        source = find_files(TrainingSet(path=str(tmp_path / name)), "data.train", purpose="train", cache_dir=tmp_path)
        digests[name] = source_digest(source, lambda path: file_digest(path, tmp_path))
    assert digests["b.csv"] == digests["c.csv"] != digests["a.tsv"]


def test_caches_of_runs_can_be_kept(tiny: ModelSource, tmp_path: Path) -> None:
    prepared, run = made(tmp_path, "a", tiny), tmp_path / "run"
    other = made(tmp_path, "b", tiny)
    run.mkdir()
    (run / "prepared.json").write_text(Prepared(train={"train": prepared}, eval={}, model=tiny).to_json(), encoding="utf-8")
    done = collect(tmp_path / "cache", Choice(kept=used_by([run])))
    assert {entry.key: entry.state for entry in done.entries} == {Path(prepared.arrow).stem: "kept", Path(other.arrow).stem: "deleted"}
    with pytest.raises(CheckpointError, match="not a prepared run"):
        used_by([tmp_path])


def test_damaged_caches_and_remains_are_told(tiny: ModelSource, tmp_path: Path) -> None:
    prepared = made(tmp_path, "a", tiny)
    os.truncate(prepared.arrow, 100)
    (tmp_path / "cache" / "data" / ".0123.arrow.x1").write_bytes(b"half")
    done = collect(tmp_path / "cache", Choice())
    assert {entry.state for entry in done.entries} == {"deleted"}
    assert {entry.damaged.split(":")[0] for entry in done.entries} == {"a preparation that did not end", "can't use the prepared data"}
    assert not list((tmp_path / "cache" / "data").iterdir())


def test_the_process_needs_no_torch(tiny: ModelSource, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path, "a", tiny)
    program = "import sys; from ftcore.data.collect import main; main(sys.argv[1:]); assert not {'torch', 'transformers'} & set(sys.modules)"
    arguments = [sys.executable, "-c", program, str(tmp_path / "cache"), "--older-than", "0", "--dry-run"]
    said = json.loads(subprocess.run(arguments, capture_output=True, check=True, cwd=ROOT).stdout)
    assert (said["entries"][0]["state"], said["dry_run"]) == ("deleted", True)
    main([str(tmp_path / "cache")])
    assert json.loads(capsys.readouterr().out)["entries"][0]["state"] == "kept"
    arguments = [sys.executable, "-m", "ftcore.data.collect", str(tmp_path), "--all", "--keep", str(tmp_path)]
    refused = subprocess.run(arguments, capture_output=True, check=False, cwd=ROOT, text=True)
    assert refused.returncode == 5 and "not a prepared run" in refused.stderr and "Traceback" not in refused.stderr
