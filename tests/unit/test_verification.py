"""The comparison of `ftlaunch verify-loss`: what passes, and that each kind of difference fails and is named."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from ftcore.spec.errors import CheckpointError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.verification import LeftOut, Leg, Part, Split, VerificationDir, VerificationRequest, load_verification
from ftcore.verification.parameters import ParameterGap, read_gap
from ftcore.verification.records import UpdateRecord, read_records
from ftcore.verification.table import as_data, render
from ftcore.verification.tolerance import Distance, least_tolerance, tolerance
from ftcore.verification.verdict import Verdict, judge, relative

GAP = ParameterGap(overall=1e-7, largest=2e-7, name="model.norm.weight", moved=0.5)
REFERENCE = [
    UpdateRecord(update=1, loss=0.9166667, grad_norm=2.0, stepped=True, samples=(0, 1, 2, 3)),
    UpdateRecord(update=2, loss=0.75, grad_norm=1.5, stepped=True, samples=(4, 5, 6, 7)),
]


def verdict(other: list[UpdateRecord], gap: ParameterGap = GAP, *, floor: list[UpdateRecord] | None = None, precision: str = "fp32") -> Verdict:
    records = {"w1-zero0": REFERENCE, "w1-zero0-reordered": floor or REFERENCE, "w2-zero2": other}
    gaps = {"w1-zero0-reordered": GAP, "w2-zero2": gap}
    return judge(records, gaps, precision=precision, optimizer="adamw")


def changed(**values: object) -> list[UpdateRecord]:
    """The reference with other values in its first update."""
    return [dataclasses.replace(REFERENCE[0], **values), REFERENCE[1]]  # type: ignore[arg-type]


def test_the_same_passes() -> None:
    found = verdict(changed(loss=0.9166667 * (1 + 9e-6), grad_norm=2.0 * (1 - 9e-5)))
    assert found.failed == () and found.tolerance == Distance(loss=1e-5, grad_norm=1e-4, parameters=math.sqrt(2.0**-23))


def test_a_mean_of_the_ranks_means_fails() -> None:
    """One rank has one token of loss 1.75, the other two of 0.5: (1.75 + 0.5) / 2 instead of 2.75 / 3."""
    found = verdict(changed(loss=1.125))
    assert found.failed == ("w2-zero2",)
    [fault] = found.splits[1].faults
    assert fault == "the loss of update 1 is 1.125, the reference's 0.9166667: 0.23 apart, 1e-05 is tolerated"


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "bf16_autocast"])
def test_a_mean_of_means_fails_in_every_precision_whatever_the_floor(precision: str) -> None:
    assert "w2-zero2" in verdict(changed(loss=1.125), floor=changed(loss=1.0), precision=precision).failed


DIFFERENCES: list[tuple[list[UpdateRecord], ParameterGap, str]] = [
    (changed(samples=(0, 1, 2, 9)), GAP, "update 1 holds other samples: 1 that the reference has not (9), 1 of its own missing (3)"),
    (changed(samples=(0, 0, 1, 2, 3)), GAP, "update 1 holds other samples: 5 ids, the reference has 4"),
    (changed(samples=()), GAP, "4 of its own missing (0, 1, 2, 3)"),
    (changed(stepped=False), GAP, "update 1 took no step, unlike the reference's"),
    (changed(grad_norm=4.0), GAP, "the gradient norm of update 1 is 4, the reference's 2: 1 apart"),
    (changed(loss=None), GAP, "the loss of update 1 is none"),
    (changed(loss=math.nan), GAP, "the loss of update 1 is nan"),
    (
        REFERENCE,
        dataclasses.replace(GAP, overall=0.01),
        "the parameters lie 0.01 of the training's move apart, 0.00035 is tolerated; most in model.norm.weight",
    ),
    (REFERENCE, dataclasses.replace(GAP, overall=math.nan), "the parameters lie nan"),
]


@pytest.mark.parametrize(("records", "gap", "fault"), DIFFERENCES)
def test_each_difference_is_named(records: list[UpdateRecord], gap: ParameterGap, fault: str) -> None:
    found = verdict(records, gap)
    assert found.failed == ("w2-zero2",)
    assert any(fault in each for each in found.splits[1].faults), found.splits[1].faults


def test_a_floor_that_is_no_noise_fails_itself() -> None:
    """Regrouping the samples must not change the sums: where it does, the tolerance stays bounded and the reordered reference is named."""
    found = verdict(REFERENCE, floor=changed(grad_norm=3.0))
    assert found.failed == ("w1-zero0-reordered",) and found.tolerance.grad_norm == pytest.approx(1e-3)


def test_tolerances() -> None:
    least = least_tolerance("bf16", "adamw")
    assert least == Distance(loss=2.0**-11, grad_norm=2.0**-7, parameters=math.sqrt(2.0**-7))
    assert least_tolerance("fp32", "sgd").parameters == 16 * 2.0**-23
    none, some, wild = (Distance(loss=each, grad_norm=each, parameters=each) for each in (0.0, 2e-4, math.inf))
    assert tolerance(none, least) == least and tolerance(wild, least) == least
    assert tolerance(some, least) == Distance(loss=2e-3, grad_norm=2.0**-7, parameters=math.sqrt(2.0**-7))
    assert tolerance(Distance(loss=1.0, grad_norm=1.0, parameters=1.0), least) == Distance(loss=10 * 2.0**-11, grad_norm=10 * 2.0**-7, parameters=0.5)


def test_relative() -> None:
    assert relative(None, None) == relative(0.0, 0.0) == 0.0
    assert relative(1.0, 0.0) == relative(None, 1.0) == relative(math.nan, 1.0) == relative(1.0, math.inf) == math.inf
    assert relative(1.1, 1.0) == pytest.approx(0.1)


def write_records(run_dir: RunDir, records: list[UpdateRecord]) -> None:
    """As two ranks write them down."""
    (run_dir.path / "metrics").mkdir(parents=True)
    lines = [{"update": each.update, "loss": each.loss, "grad_norm": str(each.grad_norm), "stepped": each.stepped} for each in records]
    run_dir.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for rank in (0, 1):
        mine = [{"update": each.update, "samples": [list(each.samples[rank::2])]} for each in records]
        run_dir.rank_metrics(rank).write_text("".join(json.dumps(line) + "\n" for line in mine))


def test_records_are_read_back_from_all_ranks(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    write_records(run_dir, REFERENCE)
    assert read_records(run_dir, 2) == REFERENCE
    with pytest.raises(CheckpointError, match="updates 1 to 3 were to be trained, written down are 1, 2"):
        read_records(run_dir, 3)
    run_dir.metrics.unlink()
    with pytest.raises(CheckpointError, match="can't read what a split wrote down"):
        read_records(run_dir, 2)


def request() -> VerificationRequest:
    shared = {"zero_stage": 0, "micro_batch_tokens": 64, "layout": "packed"}
    splits = (
        Split(name="w1-zero0", world_size=1, **shared),  # type: ignore[arg-type]
        Split(name="w1-zero0-reordered", world_size=1, reordered=True, **shared),  # type: ignore[arg-type]
        Split(name="w2-zero2", world_size=1, then_world_size=2, then_zero_stage=2, **shared),  # type: ignore[arg-type]
    )
    legs = (Leg(world_size=1, parts=(Part(split="w1-zero0", until=2),)),)
    left_out = (LeftOut(name="ZeRO stage 3 on 1 ranks", reason="no"),)
    return VerificationRequest(updates=2, precision="fp32", optimizer="adamw", splits=splits, legs=legs, left_out=left_out, notes=("dropout is 0",))


def test_the_request_is_read_back(tmp_path: Path) -> None:
    path = VerificationDir(tmp_path).request
    path.write_text(request().to_json())
    assert load_verification(path) == request() and request().split("w2-zero2").then_world_size == 2
    spoils: list[Callable[[str], str]] = [lambda text: text[:40], lambda text: text.replace('"version": 1', '"version": 2'), lambda text: "[]"]
    for spoil in spoils:
        path.write_text(spoil(request().to_json()))
        with pytest.raises(CheckpointError, match="not a check of losses"):
            load_verification(path)


def test_gaps_are_read_back(tmp_path: Path) -> None:
    wild = dataclasses.replace(GAP, overall=math.inf)
    (tmp_path / "gap.json").write_text(wild.to_json())
    assert read_gap(tmp_path / "gap.json") == wild
    with pytest.raises(CheckpointError, match="can't read a split's gap"):
        read_gap(tmp_path / "none.json")


def test_the_table_and_the_data() -> None:
    records = {"w1-zero0": REFERENCE, "w1-zero0-reordered": REFERENCE, "w2-zero2": changed(loss=1.125)}
    gaps = {"w1-zero0-reordered": GAP, "w2-zero2": dataclasses.replace(GAP, overall=math.inf)}
    found = judge(records, gaps, precision="fp32", optimizer="adamw")
    text, data = render(request(), records, found), as_data(request(), records, found)
    rows = text.splitlines()
    assert rows[1].endswith("reference") and rows[2].endswith("ok") and rows[3].endswith("FAIL") and "1 -> 2" in rows[3] and "0 -> 2" in rows[3]
    assert "left out: ZeRO stage 3 on 1 ranks: no\nnote: dropout is 0\n" in text
    assert "FAIL: w2-zero2\n  w2-zero2: the loss of update 1 is 1.125" in text
    assert data["passed"] is False and data["failed"] == ["w2-zero2"] and data["verdicts"][1]["distance"]["parameters"] == "inf"
    json.dumps(data, allow_nan=False)
    passed = judge({**records, "w2-zero2": REFERENCE}, dict.fromkeys(gaps, GAP), precision="fp32", optimizer="adamw")
    assert "PASS: 3 runs of the same 2 updates agree" in render(request(), records, passed)
