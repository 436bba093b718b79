"""What MFU counts: operations by hand and as the planner counts them, peaks by what drivers call their devices, and a file that never stops a run."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path

import pytest

from ftcore.spec.model_work import AttentionWork, ModelWork, load_model_work
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import MethodSection
from launcher.memory import this_machine
from launcher.memory.config_file import find_config
from launcher.memory.lengths import DataLengths
from launcher.memory.model_flops import model_work, write_model_work
from launcher.memory.shape import ModelShape, read_shape
from launcher.memory.work import cut_update, work_of
from tests.unit.local_launch import resolved_for

H100 = [{"name": "a", "accelerators": ["NVIDIA H100 80GB HBM3"] * 8}]
LENGTHS = DataLengths(samples=8, tokens=800.0, supervised_tokens=200.0, squares=80_000.0, longest=100, histogram={}, origin="", is_assumed=False)


def decided() -> ResolvedSpec:
    """A resolved spec, whose type of weights is decided as resolving does."""
    resolved = resolved_for()
    return replace(resolved, spec=replace(resolved.spec, model=replace(resolved.spec.model, dtype="bfloat16")))


def with_method(**method: object) -> ResolvedSpec:
    resolved = decided()
    spec = resolved.spec
    return replace(resolved, spec=replace(spec, method=MethodSection(**method), batch=replace(spec.batch, global_batch_size=8)))  # type: ignore[arg-type]


def tiny() -> ModelShape:
    return read_shape(find_config(resolved_for().spec.model))


def test_full_by_hand() -> None:
    shape = tiny()
    work = model_work(with_method(type="full"), shape, H100)
    assert shape.tied is False and work.token_flops == 6.0 * sum(each.total for each in shape.tensors if each.kind in ("attention", "mlp"))
    assert work.supervised_token_flops == 6.0 * shape.vocab * shape.hidden
    assert work.attention == (AttentionWork(square_flops=6.0 * shape.layers * shape.heads * shape.head_dim),)
    assert (work.peak_flops, work.accelerator, work.on_cpu) == (989.4e12, "h100-80", False)


@pytest.mark.parametrize("method", [{"type": "full"}, {"type": "lora", "r": 8}, {"type": "qlora", "r": 8}])
def test_as_the_planner_counts(method: dict[str, object]) -> None:
    """6M + A and 4M + A + 6N: launcher.memory.work, for samples of one length."""
    resolved, shape = with_method(**method), tiny()
    work = model_work(resolved, shape, [])
    trained = shape.parameters
    if method["type"] != "full":
        from launcher.memory.layout import model_layout

        trained = model_layout(resolved.spec, shape).trained
    tokens = cut_update(resolved.spec, resolved.world_size, LENGTHS).tokens
    attended = work.attention_flops([100] * 8)
    found = work.flops(tokens=800, supervised_tokens=200, attention_flops=attended)
    assert tokens == 800 and found == pytest.approx(resolved.world_size * work_of(resolved, shape, LENGTHS, trained).model_flops)


def test_what_an_adapter_adds() -> None:
    shape = tiny()
    one, two = (model_work(with_method(type="lora", r=8, adapters=adapters), shape, []) for adapters in ({}, {"a": _adapter(), "b": _adapter()}))
    assert two.token_flops == 2 * one.token_flops and two.attention[0].square_flops == 2 * one.attention[0].square_flops, "each adapter has passes of its own"
    saved = model_work(with_method(type="lora", r=8, modules_to_save=("lm_head", "embed_tokens")), shape, [])
    assert saved.supervised_token_flops == one.supervised_token_flops * 6 / 4 and saved.token_flops == one.token_flops
    dora = model_work(with_method(type="lora", r=8, use_dora=True), shape, [])
    assert dora.token_flops == one.token_flops, "a vector is no product"


def _adapter() -> object:
    from ftcore.spec.model_sections import AdapterSection

    return AdapterSection()


def test_windows_and_experts() -> None:
    shape = tiny()
    windowed = model_work(with_method(type="full"), dataclasses.replace(shape, window=4, windowed=(0,)), [])
    assert [each.window for each in windowed.attention] == [0, 4]
    # Pairs of tokens of a sample of 6 that sees 4: 1 + 2 + 3 + 4 + 4 + 4, less half of each token's own.
    local = replace(windowed, attention=windowed.attention[1:])
    assert local.attention_flops([6]) == local.attention[0].square_flops * 4 * (2 * 6 - 4) and local.attention_flops([3]) == local.attention[0].square_flops * 9


@pytest.mark.parametrize(
    ("named", "hosts", "accelerator", "on_cpu"),
    [
        ("", [{"name": "a", "accelerators": []}], "", False),
        ("cpu", [{"name": "a", "accelerators": []}], "cpu", True),
        ("h100", [{"name": "a", "accelerators": []}], "", False),
        ("h100", [{"name": "a", "accelerators": ["NVIDIA L4"]}], "l4", False),
        ("", [*H100, {"name": "b", "accelerators": ["NVIDIA A100-SXM4-80GB"]}], "a100-80", False),
        ("", [{"name": "a", "accelerators": ["An accelerator of tomorrow"]}], "", False),
        ("b200", [{"name": "a", "accelerators": ["An accelerator of tomorrow"]}], "b200", False),
        ("cpu", [{"name": "a", "accelerators": ["An accelerator of tomorrow"]}], "", False),
    ],
)
def test_whose_peak(named: str, hosts: list[dict[str, object]], accelerator: str, on_cpu: bool) -> None:
    """The device itself, by the name its driver gives; a plan for other machines says nothing of this one."""
    resolved = with_method(type="full")
    spec = replace(resolved.spec, hardware=replace(resolved.spec.hardware, accelerator=named))
    work = model_work(replace(resolved, spec=spec), tiny(), hosts)
    assert (work.accelerator, work.on_cpu, work.peak_flops is None) == (accelerator, on_cpu, accelerator == "")


def test_the_ranks_of_a_host_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = this_machine.host_accelerator()
    monkeypatch.setattr(this_machine, "host_accelerator", lambda: cores)  # a clock changes from one look to the next
    resolved = with_method(type="full")
    spec = replace(resolved.spec, hardware=replace(resolved.spec.hardware, accelerator="cpu"))
    two, one = (model_work(replace(resolved, spec=spec, hosts=(replace(resolved.hosts[0], slots=slots),)), tiny(), []) for slots in (2, 1))
    assert two.peak_flops and one.peak_flops and two.peak_flops == pytest.approx(one.peak_flops / 2)


def prepared(run_dir: RunDir, config: dict[str, object]) -> None:
    model = run_dir.path / "base"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(config))
    run_dir.prepared.write_text(json.dumps({"model": {"path": str(model)}}))
    run_dir.environment.write_text(json.dumps({"hosts": H100}))


def test_a_launch_writes_it(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    prepared(run_dir, find_config(resolved_for().spec.model))
    write_model_work(run_dir, decided())
    assert load_model_work(run_dir.work) == model_work(decided(), tiny(), H100)


def test_a_model_that_is_not_known_leaves_none_behind(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    prepared(run_dir, {"model_type": "of tomorrow"})
    run_dir.work.write_text("of an earlier launch")
    for _ in range(2):
        write_model_work(run_dir, decided())
        assert not run_dir.work.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2}', '{"version": 1}', '{"version": 1, "token_flops": "x"}', "[" * 100_000])
def test_a_damaged_file_is_no_mfu(tmp_path: Path, text: str) -> None:
    (tmp_path / "work.json").write_text(text)
    assert load_model_work(tmp_path / "work.json") is None and load_model_work(tmp_path / "none") is None


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    attention = (AttentionWork(square_flops=1.0, window=3),)
    rest = {"peak_flops": None, "on_cpu": False, "accelerator": "", "formula": "x"}
    work = ModelWork(token_flops=1.0, supervised_token_flops=2.0, attention=attention, **rest)
    (tmp_path / "work.json").write_text(work.to_json())
    assert load_model_work(tmp_path / "work.json") == work
