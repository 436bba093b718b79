"""`ftlaunch verify-loss` on real ranks: right splits agree, also resumed and with a spec that has dropout; a run with another order of samples is named."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from ftcore import dist, verify_ranks
from ftcore.data.prepared import ModelSource, Prepared, PreparedSet
from ftcore.spec.errors import CheckpointError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import Spec
from ftcore.spec.verification import Leg, Part, Split, VerificationDir, VerificationRequest
from ftcore.verify_loss import main
from ftcore.verify_ranks import train_part
from tests.ranks.jobs import make_run
from tests.ranks.pool import RankPool
from tests.ranks.specs import make_spec, with_section

UPDATES = 4


def train_leg(rank: int, world_size: int, folder: str, request: VerificationRequest, leg: Leg, prepared: Prepared) -> None:
    ranks = dist.start()
    for part in leg.parts:
        train_part(request, VerificationDir(Path(folder)), part, prepared, ranks)
    dist.barrier()
    dist.stop()


def lora_spec(stage: int, *, budget: int = 80) -> Spec:
    """With a dropout of 0.1, which the check has to turn off."""
    return make_spec(stage, budget=budget, updates=UPDATES, method="lora")


def make_split(name: str, world_size: int, stage: int, *, budget: int = 80, reordered: bool = False, then: tuple[int, int] = (0, 0)) -> Split:
    return Split(
        name=name,
        world_size=world_size,
        zero_stage=stage,
        micro_batch_tokens=budget,
        layout="packed",
        reordered=reordered,
        then_world_size=then[0],
        then_zero_stage=then[1],
    )


def test_splits_agree_and_another_order_is_named(pool: RankPool, small: tuple[ModelSource, str], tmp_path: Path) -> None:
    source, arrow = small
    splits = (
        make_split("w1-zero0", 1, 0),
        make_split("reordered", 1, 0, reordered=True),
        make_split("other-order", 1, 0),
        make_split("resumed", 1, 0, then=(2, 3)),
        make_split("w2-zero2", 2, 2, budget=40),
    )
    halves = {"resumed": UPDATES // 2}
    first = Leg(world_size=1, parts=tuple(Part(split=split.name, until=halves.get(split.name, UPDATES)) for split in splits[:4]))
    second = Leg(world_size=2, parts=(Part(split="w2-zero2", until=UPDATES), Part(split="resumed", until=UPDATES)))
    request = VerificationRequest(updates=UPDATES, precision="fp32", optimizer="adamw", splits=splits, legs=(first, second))
    paths = VerificationDir(tmp_path / "check")
    paths.path.mkdir()
    paths.request.write_text(request.to_json())
    prepared = Prepared(train={"train": PreparedSet(arrow=arrow, samples=41, rows=41, tokens=1, supervised_tokens=1)}, eval={}, model=source)
    for split in splits:
        make_run(paths.run(split.name).path, lora_spec(split.zero_stage, budget=split.micro_batch_tokens), split.world_size)
    make_run(paths.run("other-order").path, with_section(lora_spec(0), "train", seed=4), 1)
    pool.run(train_leg, 1, str(paths.path), request, first, prepared, logs=tmp_path / "logs1")
    make_run(paths.run("resumed").path, lora_spec(3), 2)
    pool.run(train_leg, 2, str(paths.path), request, second, prepared, logs=tmp_path / "logs2")
    main(RunDir(paths.path))
    result = json.loads(paths.result.read_text())
    assert result["failed"] == ["other-order"], paths.table.read_text()
    named = {each["name"]: each for each in result["verdicts"]}
    assert any("update 1 holds other samples" in fault for fault in named["other-order"]["faults"])
    assert 0.0 < result["floor"]["parameters"] < 1e-4 and 0.0 < named["w2-zero2"]["distance"]["parameters"] < 1e-4
    assert named["other-order"]["distance"]["parameters"] > 0.1
    # Only the reference's are needed to the end.
    assert [split.name for split in splits if paths.run(split.name).checkpoints.exists()] == ["w1-zero0"]
    assert dataclasses.asdict(request)["updates"] == result["updates"]


def refusal(rank: int, world_size: int, folder: str) -> str:
    try:
        verify_ranks.main(RunDir(Path(folder)))
    except CheckpointError as error:
        return str(error)
    finally:
        dist.stop()
    return ""


def test_another_number_of_ranks_is_refused(pool: RankPool, small: tuple[ModelSource, str], tmp_path: Path) -> None:
    source, arrow = small
    paths = VerificationDir(tmp_path)
    leg = Leg(world_size=2, parts=(Part(split="w2-zero1", until=UPDATES),))
    request = VerificationRequest(updates=UPDATES, precision="fp32", optimizer="adamw", splits=(make_split("w2-zero1", 2, 1),), legs=(leg,))
    paths.request.write_text(request.to_json())
    paths.preparation.path.mkdir()
    prepared = Prepared(train={"train": PreparedSet(arrow=arrow, samples=41, rows=41, tokens=1, supervised_tokens=1)}, eval={}, model=source)
    paths.preparation.prepared.write_text(prepared.to_json())
    [said] = pool.run(refusal, 1, str(tmp_path), logs=tmp_path / "logs")
    assert "1 ranks were started, the check says 2" in said
