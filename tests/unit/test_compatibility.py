"""The table of combinations: what it refuses, what it proposes in its place, what it warns of, and its page."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from launcher.combinations.combination import AXES, AXIS, Combination, combination_of
from launcher.combinations.docs import render_compatibility_docs
from launcher.combinations.table import PLANES, REFUSED, UNTESTED, WORKS, can_be_said, cells
from launcher.combinations.verdict import alternatives, judge, verdict
from launcher.resolve import Options, derived_coalescing, read_and_resolve
from tests.ranks.specs import make_spec, with_section

BASE = "model: {model_name_or_path: builtin:tiny-llama}\ndata: {train: {path: builtin:extraction/train}}\n"
SWEPT = ("method", "adapters", "base", "stage", "offload_optimizer", "offload_param", "precision", "optimizer", "coalesces")


def every_combination() -> list[Combination]:
    """All of the axes that refusals are about but two, which are looked at by themselves."""
    found = []
    for values in product(*(AXIS[axis].values for axis in SWEPT)):
        named = dict(zip(SWEPT, values, strict=True))
        if can_be_said(named):
            found.append(Combination(**named))  # type: ignore[arg-type]
    return found


def test_every_refusal_has_a_way_out_that_is_not_refused() -> None:
    """Each proposal of each refusal of a combination, one key or more changed, passes the table; none is left without one."""
    others = [Combination(attention="flash_attention_2"), Combination(collectives="zero++", stage=2), Combination(attention="flash_attention_2", stage=3)]
    refused = 0
    for combination in [*every_combination()[::17], *others]:
        for entry in REFUSED:
            if entry.matches(combination.values()):
                refused += 1
                ways = alternatives(entry, combination)
                assert ways, (entry, combination)
                for way in ways:
                    assert set(way) & set(entry.when) and all(combination.values()[axis] != value for axis, value in way.items())
                    assert judge(Combination(**(combination.values() | way))).word != "refused", (combination, way)  # type: ignore[arg-type]
    assert refused > 1000


def test_every_cell_that_works_can_be_reached_and_every_entry_is_in_a_table() -> None:
    for entry in (*REFUSED, *UNTESTED):
        assert any(set(entry.when) <= set(plane) for plane in PLANES), entry
        assert set(entry.when) <= set(AXIS) and all(set(values) <= set(AXIS[axis].values) for axis, values in entry.when.items())
    assert set(AXIS) == {axis for plane in PLANES for axis in plane}
    assert {cell.word for plane in PLANES for cell in cells(plane)} == {"works", "refused", "untested"}


def test_the_choice_nobody_made_is_never_refused() -> None:
    def derived(stage: int, offload_optimizer: str) -> bool:
        zero = with_section(make_spec(stage), "zero", offload_optimizer=offload_optimizer).zero
        return derived_coalescing(zero, make_spec(0, method="lora").method)

    entries = [entry for entry in REFUSED if True in entry.when.get("coalesces", ())]
    assert entries
    for entry in entries:
        stages, devices = (entry.when.get(axis, AXIS[axis].values) for axis in ("stage", "offload_optimizer"))
        assert not any(derived(stage, device) for stage, device in product(stages, devices)), entry


@pytest.mark.parametrize(
    ("values", "fix"),
    [
        ({"stage": 0, "precision": "bf16"}, "use zero.stage: 1, 2 or 3, or train.precision: fp32 or bf16_autocast"),
        ({"stage": 2, "offload_param": "cpu"}, "use zero.offload_param: none, or zero.stage: 3"),
        (
            {"method": "lora", "adapters": "several", "offload_optimizer": "cpu", "stage": 2},
            "use zero.offload_optimizer: none, or one adapter, or zero.stage: 1",
        ),
        ({"method": "dora", "base": "nf4", "stage": 3}, "use LoRA without use_dora, or method.type: lora, or zero.stage: 0, 1 or 2"),
        ({"method": "lora", "base": "int8", "stage": 3, "offload_param": "cpu"}, "use method.type: lora or method.bits: 4"),
        ({"stage": 0, "precision": "bf16", "offload_param": "cpu"}, "use zero.stage: 3"),
        ({"stage": 0, "precision": "bf16", "optimizer": "adafactor"}, "use train.precision: fp32 or bf16_autocast"),
        # The type of the products becomes the precision's own; each way out of stage 0 leads into another refusal.
        (
            {"stage": 0, "precision": "bf16", "optimizer": "adafactor", "method": "lora", "base": "nf4", "compute": "float32"},
            "use train.precision: fp32 or bf16_autocast",
        ),
        (
            {"stage": 0, "precision": "bf16", "optimizer": "adafactor", "method": "lora", "base": "nf4", "storage": "bfloat16"},
            "use zero.stage: 1 with optimizer.type: adamw",
        ),
        ({"optimizer": "adafactor", "stage": 2, "precision": "bf16"}, "use optimizer.type: adamw, sgd, adamw_8bit or muon"),
        (
            {"method": "lora", "base": "nf4", "storage": "float32", "precision": "bf16"},
            "use method.storage_dtype: uint8 or bfloat16, or train.precision: fp32 or bf16_autocast",
        ),
    ],
)
def test_the_nearest_ways_out(values: dict[str, object], fix: str) -> None:
    """G08 and its kin: what is proposed follows from the whole table, so that the second mistake is not the first one's advice."""
    assert judge(Combination(**values)).problems[0].fix == fix  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("method: {type: lora, use_rslora: true}", {"method": "rslora"}),
        ("method: {type: qlora, use_rslora: true, use_dora: true}\nzero: {stage: 2}", {"method": "dora", "base": "nf4"}),
        ("method: {type: qlora, bits: 8, adapters: {a: {}, b: {}}}", {"method": "lora", "base": "int8", "adapters": "several"}),
        ("method: {type: lora, adapters: {a: {}}}", {"method": "lora"}),
        (
            "method: {type: qlora, storage_dtype: bfloat16, compute_dtype: float32}",
            {"method": "lora", "base": "nf4", "storage": "bfloat16", "compute": "float32"},
        ),
        ("method: {type: qlora, compute_dtype: bfloat16}", {"method": "lora", "base": "nf4"}),
        ("train: {gradient_checkpointing: sqrt}\nbatch: {layout: padded}", {"recomputes": True, "layout": "padded"}),
        ("zero: {stage: 3, offload_param: cpu}", {"stage": 3, "offload_param": "cpu", "coalesces": False}),
        ("zero: {stage: 3, zero_hpz_partition_size: 1}", {"stage": 3, "coalesces": False}),
        ("zero: {stage: 3, zero_hpz_partition_size: 2}\ncluster: {slots: 2}", {"stage": 3, "collectives": "zero++"}),
    ],
)
def test_where_a_spec_lies(text: str, expected: dict[str, object], tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(BASE + text + "\n")
    found = combination_of(read_and_resolve(Options(spec_path=spec)).resolved.spec).values()
    plain = Combination(stage=2, precision="bf16", coalesces=True).values()
    if "stage" in expected:
        plain |= {"coalesces": False}
    assert found == plain | expected


def test_the_word_on_a_spec() -> None:
    assert verdict(make_spec(2)).line.startswith("works: ")
    nvme = with_section(make_spec(3), "zero", offload_param="nvme")
    assert (
        verdict(nvme).word == "untested" and "async_io does not build" in verdict(nvme).warnings[0] and verdict(nvme).line.startswith("untested: offload_param")
    )
    assert verdict(with_section(make_spec(0), "train", precision="fp16")).line.startswith("refused: ZeRO stage 0 with fp16")
    assert WORKS == "works" and [axis.name for axis in AXES] == list(Combination().values())


def test_docs_are_fresh() -> None:
    page = Path(__file__).parents[2] / "docs" / "compatibility.md"
    assert page.read_text(encoding="utf-8") == render_compatibility_docs(), "run: python -m launcher.combinations.docs > docs/compatibility.md"
