"""Evaluation is free of the split; exports load back as the engine's model."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from ftcore import dist
from ftcore.batch.collate import collate
from ftcore.data.cache import SampleSet
from ftcore.data.prepared import ModelSource, Prepared, PreparedSet
from ftcore.run import build_engine, restore
from ftcore.spec.errors import CheckpointError, SpecError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import Spec
from ftcore.train.evaluate import Layout, evaluate
from ftcore.train.loop import Trainer
from ftcore.train.loss import supervised_logits
from tests.ranks.jobs import make_job, make_run
from tests.ranks.pool import RankPool
from tests.ranks.reference import train_reference
from tests.ranks.specs import make_spec, with_section

Small = tuple[ModelSource, str]


def evaluate_split(rank: int, world_size: int, folder: str, stage: int, source: ModelSource, samples: str) -> list[tuple[float, int]]:
    ranks = dist.start()
    spec = make_spec(stage)
    if rank == 0:
        make_run(Path(folder), spec, world_size)
    dist.barrier()
    engine = build_engine(make_job(RunDir(Path(folder)), spec, source, samples), ranks)
    scored = [evaluate(engine, SampleSet.open(samples), Layout(micro_batch_tokens=budget, attention_share=0.001)) for budget in (40, 400)]
    dist.barrier()
    dist.stop()
    return [(one.loss, one.tokens) for one in scored]


@pytest.mark.parametrize(("world_size", "stage"), [(1, 0), (2, 3), (4, 2)])
def test_evaluation_loss_is_per_token_over_everything(world_size: int, stage: int, pool: RankPool, small: Small, tmp_path: Path) -> None:
    """K01: any number of ranks and any budget give the loss of the pooled rows."""
    source, path = small
    samples = SampleSet.open(path)
    everything = [list(range(len(samples)))]
    expected = train_reference(source.path, samples, everything, [0.0], make_spec(0).optimizer, torch.float64).losses[0]
    for ranks in pool.run(evaluate_split, world_size, str(tmp_path / "run"), stage, source, path, logs=tmp_path / "logs"):
        for loss, tokens in ranks:
            assert loss == pytest.approx(expected, rel=1e-6)
            assert tokens == int(samples.supervised.sum())


def train_and_score(rank: int, world_size: int, folder: str, spec: Spec, source: ModelSource, samples: str) -> torch.Tensor:
    """Trains, then the engine's logits [K, V] of one row."""
    ranks = dist.start()
    if rank == 0:
        make_run(Path(folder), spec, world_size)
    dist.barrier()
    job = make_job(RunDir(Path(folder)), spec, source, samples)
    engine = build_engine(job, ranks)
    Trainer(engine, job, restore(engine, job)).run()
    engine.eval()
    with torch.no_grad():
        logits = supervised_logits(engine.deepspeed, probe(samples)).float().clone()
    dist.barrier()
    dist.stop()
    return logits


def probe(samples: str) -> Any:
    return collate([SampleSet.open(samples).sample(1)])


def export_and_score(rank: int, world_size: int, folder: str, to: str, form: str, samples: str) -> tuple[torch.Tensor, dict[str, list[int]]]:
    """Exports in a process of its own; logits of the same row from the files alone, and the shapes in them."""
    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from ftcore import export

    export.main(RunDir(Path(folder)), Path(to), form)
    base = json.loads((Path(folder) / "prepared.json").read_text())["model"]["path"]
    if (Path(to) / "adapter_config.json").exists():
        model: torch.nn.Module = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), to)
        shapes = {name: list(value.shape) for name, value in load_file(Path(to) / "adapter_model.safetensors").items()}
    else:
        model = AutoModelForCausalLM.from_pretrained(to, dtype=torch.float32)
        shapes = {name: list(value.shape) for name, value in load_file(Path(to) / "model.safetensors").items()}
    batch = probe(samples)
    with torch.no_grad():
        logits = model.eval()(input_ids=batch.input_ids_BT, logits_to_keep=batch.keep_C).logits[0]
    return logits, shapes


def write_prepared(folder: Path, source: ModelSource, samples: str) -> None:
    counts = SampleSet.open(samples).counts
    train = PreparedSet(arrow=samples, samples=counts.rows, rows=counts.rows, tokens=counts.tokens, supervised_tokens=counts.supervised_tokens)
    (folder / "prepared.json").write_text(Prepared(train={"train": train}, eval={}, model=source).to_json())


@pytest.fixture(scope="module")
def adapter_shapes_of_stage_2(pool: RankPool, small: Small, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """Key -> shape in the adapter file of a ZeRO-2 run."""
    folder = tmp_path_factory.mktemp("stage_2")
    spec = make_spec(2, method="lora", updates=1)
    pool.run(train_and_score, 2, str(folder / "run"), spec, *small, logs=folder / "logs")
    write_prepared(folder / "run", *small)
    shapes: dict[str, list[int]] = pool.run(export_and_score, 1, str(folder / "run"), str(folder / "out"), "auto", small[1], logs=folder / "export")[0][1]
    return shapes


@pytest.mark.parametrize(("stage", "method", "form"), [(3, "full", "auto"), (0, "full", "hf"), (2, "lora", "auto"), (3, "lora", "auto"), (3, "lora", "merged")])
def test_export_gives_the_engines_logits(
    stage: int, method: str, form: str, pool: RankPool, small: Small, tmp_path: Path, adapter_shapes_of_stage_2: dict[str, list[int]]
) -> None:
    """G01: no tensor of an adapter is empty, and stage 3 writes the keys of stage 2."""
    source, samples = small
    spec = with_section(make_spec(stage, method=method, updates=4), "method", lora_dropout=0.0)
    run = tmp_path / "run"
    engine_logits = pool.run(train_and_score, 2, str(run), spec, source, samples, logs=tmp_path / "logs")[0]
    write_prepared(run, source, samples)
    logits, shapes = pool.run(export_and_score, 1, str(run), str(tmp_path / "out"), form, samples, logs=tmp_path / "export")[0]
    assert torch.allclose(logits, engine_logits, rtol=1e-5, atol=2e-5)
    assert all(min(shape) > 0 for shape in shapes.values())
    if form == "auto" and method == "lora":
        assert len(shapes) == 2 * 7 * 2  # layers x targets x (A, B)
        assert shapes == adapter_shapes_of_stage_2
    record = json.loads((tmp_path / "out" / "ftlaunch_export.json").read_text())
    assert sorted([*record["files"], "ftlaunch_export.json"]) == sorted(path.name for path in (tmp_path / "out").iterdir())
    assert not list(tmp_path.glob(".out.*"))
    assert record["form"] == {"auto": {"full": "hf", "lora": "adapter"}[method]}.get(form, form)


def test_export_refuses(pool: RankPool, small: Small, tmp_path: Path) -> None:
    """No checkpoint, a folder of the user's, a form the method can't have, another base."""
    from ftcore import export

    source, samples = small
    make_run(tmp_path / "run", make_spec(2), 1)
    write_prepared(tmp_path / "run", source, samples)
    with pytest.raises(CheckpointError, match="no whole checkpoint to export: none was saved"):
        export.main(RunDir(tmp_path / "run"), tmp_path / "out", "auto")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(SpecError, match="exists and is not an export"):
        export.main(RunDir(tmp_path / "run"), tmp_path / "mine", "auto")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"
    with pytest.raises(SpecError, match="method full has no adapter form"):
        export.main(RunDir(tmp_path / "run"), tmp_path / "out", "adapter")
    pool.run(train_and_score, 1, str(tmp_path / "run"), make_spec(2, updates=1), source, samples, logs=tmp_path / "logs")
    write_prepared(tmp_path / "run", dataclasses.replace(source, digest="other"), samples)
    with pytest.raises(CheckpointError, match="base model has changed"):
        export.main(RunDir(tmp_path / "run"), tmp_path / "out", "auto")


@pytest.fixture(scope="module")
def trained(pool: RankPool, small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with a checkpoint of a full run."""
    run = tmp_path_factory.mktemp("trained") / "run"
    pool.run(train_and_score, 1, str(run), make_spec(2, updates=1), *small, logs=run.parent / "logs")
    write_prepared(run, *small)
    return run


def test_exporting_again_keeps_what_is_the_users(trained: Path, tmp_path: Path) -> None:
    from ftcore import export

    beside = tmp_path / ".out.partial"
    beside.mkdir()
    (beside / "thesis.txt").write_text("precious")
    out = tmp_path / "deep" / "er" / "out"
    export.main(RunDir(trained), tmp_path / "out", "auto")
    export.main(RunDir(trained), out, "auto")
    first = (out / "ftlaunch_export.json").stat().st_ino
    export.main(RunDir(trained), out, "auto")
    assert (out / "ftlaunch_export.json").stat().st_ino != first
    (out / "notes.md").write_text("mine")
    with pytest.raises(SpecError, match=r"files that ftlaunch did not write: notes\.md"):
        export.main(RunDir(trained), out, "auto")
    assert (out / "notes.md").read_text() == "mine" and (beside / "thesis.txt").read_text() == "precious"
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_a_file_that_comes_late_is_kept(tmp_path: Path) -> None:
    """Looked at again at the very moment of replacing, and put back."""
    from ftcore import export_folder

    to, new = tmp_path / "out", tmp_path / "new"
    for folder in (to, new):
        folder.mkdir()
        (folder / "model.safetensors").write_text(folder.name)
        export_folder.write_record(folder, {})
    (to / "sub").mkdir()
    (to / "sub" / "notes.md").write_text("mine")
    with pytest.raises(SpecError, match=r"out is an export, .*: sub/notes\.md"):
        export_folder.replace(new, to, tmp_path / "old")
    assert (to / "sub" / "notes.md").read_text() == "mine" and (to / "model.safetensors").read_text() == "out"
    (to / "sub" / "notes.md").unlink()
    export_folder.replace(new, to, tmp_path / "old")
    assert (to / "model.safetensors").read_text() == "new"


@pytest.mark.parametrize("made", ["file", "link", "record without a list"])
def test_what_is_no_export(made: str, tmp_path: Path) -> None:
    from ftcore import export_folder

    (tmp_path / "empty").mkdir()
    export_folder.require_replaceable(tmp_path / "empty", named=tmp_path / "out")
    to = tmp_path / "out"
    if made == "file":
        to.write_text("mine")
    elif made == "link":
        to.symlink_to(tmp_path / "empty")
    else:
        to.mkdir()
        (to / "ftlaunch_export.json").write_text("{}")
    with pytest.raises(SpecError, match="exists and is not an export"):
        export_folder.require_replaceable(to, named=to)


def export_with_little_room(rank: int, world_size: int, folder: str, to: str) -> tuple[int, str]:
    """Exit status and text of the error when no file may grow over 30 kB."""
    from ftcore import export

    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
    try:
        export.main(RunDir(Path(folder)), Path(to), "auto")
    except CheckpointError as error:
        return error.exit_status, str(error)
    return 0, ""


def test_a_full_disk(trained: Path, pool: RankPool, tmp_path: Path) -> None:
    """The largest file a process may write stands in for the room on a disk: the same calls fail, with another number."""
    status, text = pool.run(export_with_little_room, 1, str(trained), str(tmp_path / "to" / "out"), logs=tmp_path / "logs")[0]
    assert status == 5 and "can't write the export" in text and str(tmp_path / "to" / "out") in text
    assert not list((tmp_path / "to").iterdir())


def test_other_errors_pass_and_those_of_the_system_do_not(tmp_path: Path) -> None:
    from ftcore import export_folder

    with pytest.raises(CheckpointError, match="No space left"), export_folder.disk_errors(tmp_path):
        raise RuntimeError("No space left on device (os error 28)")
    with pytest.raises(ValueError, match="ours"), export_folder.disk_errors(tmp_path):
        raise ValueError("ours")


STANDS = """
import os, time
rename = os.rename

def stand_before(source, target, **more):
    while str(target) == {named!r}:
        time.sleep(0.05)
    return rename(source, target, **more)

os.rename = stand_before
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_nothing_aside(signum: signal.Signals, trained: Path, tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "ftcore.export", str(trained), "--to", str(tmp_path / "out")]
    # It stands before its last step until the signal has come, however late that is sent.
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "sitecustomize.py").write_text(STANDS.format(named=str(tmp_path / "out")))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{root}:{tmp_path / 'planted'}"}
    with subprocess.Popen(command, cwd=root, env=environment, stderr=subprocess.DEVNULL) as process:
        while not list(tmp_path.glob(".out.*")) and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signum)
    assert process.returncode == -signum
    assert [path.name for path in tmp_path.iterdir()] == ["planted"]
