"""Keys of the section zero that go to DeepSpeed, what became of them in another stage, and a DeepSpeed JSON in the place of a spec."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from ftcore.spec.errors import SpecError
from ftcore.spec.resolved import ResolvedSpec
from launcher.commands.validate import command as validate
from launcher.ds_config import render_ds_config
from launcher.ds_json.keys import stages_of_zero_keys
from launcher.resolve import Options, Resolution, read_and_resolve
from launcher.resuming import resolve_again
from launcher.verify_loss_request import Check, find_ground
from tests.unit.test_ds_import import BASE, CASES, problems, resolve

VALUES: dict[str, Any] = dict.fromkeys(stages_of_zero_keys(), 1000) | {"overlap_comm": True, "zero_hpz_partition_size": 2}
QUANTISED = ("zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients")


def resolve_zero(tmp_path: Path, zero: dict[str, Any], *, slots: int = 2, hosts: str = "", **sections: Any) -> Resolution:
    cluster: dict[str, Any] = {"slots": slots}
    if hosts:
        (tmp_path / "hosts").write_text(hosts)
        cluster = {"hosts": str(tmp_path / "hosts")}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump({**BASE, **sections, "zero": zero, "cluster": cluster}))
    return read_and_resolve(Options(spec_path=tmp_path / "spec.yaml"))


@pytest.mark.parametrize("name", [name for name in stages_of_zero_keys() if name not in QUANTISED])
def test_a_key_reaches_deepspeed_in_its_stages_and_is_refused_in_others(tmp_path: Path, name: str) -> None:
    stages = stages_of_zero_keys()[name]
    for stage in (0, 1, 2, 3):
        zero = {"stage": stage, name: VALUES[name]}
        if stage in stages:
            config = json.loads(resolve_zero(tmp_path, zero, train={"precision": "fp32"}).ds_config)
            assert config["zero_optimization"][name] == VALUES[name]
        else:
            with pytest.raises(SpecError, match=f"{name} has no effect at ZeRO stage {stage}; it is for stage {stages[0]}"):
                resolve_zero(tmp_path, zero, train={"precision": "fp32"})


def test_null_is_the_presets(tmp_path: Path) -> None:
    given = resolve_zero(tmp_path, {"stage": 3, "stage3_max_live_parameters": None})
    assert json.loads(given.ds_config)["zero_optimization"]["stage3_max_live_parameters"] == 1_000_000_000


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_collectives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Refused without an accelerator; warned of where hosts may have some, since they are not exact."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    zero, method = {"stage": 3, name: True}, {"method": {"type": "lora"}}
    with pytest.raises(SpecError, match=f"{name} needs DeepSpeed's CUDA kernels"):
        resolve_zero(tmp_path, zero, **method)
    resolution = resolve_zero(tmp_path, zero, hosts="a slots=2\n", **method)
    (warning,) = (warning for warning in resolution.warnings if warning.startswith("zero."))
    assert f"zero.{name}: " in warning and "losses differ" in warning and f"{tmp_path / 'spec.yaml'}:" in warning
    assert json.loads(resolution.ds_config)["zero_optimization"][name] is True
    off = resolve_zero(tmp_path, {"stage": 3, name: False})
    assert off.warnings == () and json.loads(off.ds_config)["zero_optimization"][name] is False


@pytest.mark.parametrize(
    ("name", "method", "words"),
    [
        ("zero_quantized_nontrainable_weights", "full", "none are frozen"),
        ("zero_quantized_nontrainable_weights", "qlora", "those of qlora are quantised already"),
        ("zero_quantized_weights", "qlora", "can't be quantised again"),
    ],
)
def test_quantised_weights_of_a_method(tmp_path: Path, name: str, method: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        resolve_zero(tmp_path, {"stage": 3, name: True}, hosts="a slots=2\n", method={"type": method})


def test_groups_divide_the_ranks_and_lie_on_one_host(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"3 ranks don't divide into groups of 2[\s\S]*use a divisor of 3: 1, 3"):
        resolve_zero(tmp_path, {"stage": 3, "zero_hpz_partition_size": 2}, slots=3)
    with pytest.raises(SpecError, match=r"a group of 4 ranks would lie on two hosts: they have 2 and 6 ranks[\s\S]*every host: 1, 2"):
        resolve_zero(tmp_path, {"stage": 3, "zero_hpz_partition_size": 4}, hosts="a slots=2\nb slots=6\n")
    config = json.loads(resolve_zero(tmp_path, {"stage": 3, "zero_hpz_partition_size": 2}, hosts="a slots=2\nb slots=6\n").ds_config)
    assert config["zero_optimization"]["zero_hpz_partition_size"] == 2


def test_a_resume_needs_no_json_and_may_change_the_stage(tmp_path: Path) -> None:
    """What is for one stage is left out in another, and comes back with it."""
    resolution = resolve(tmp_path, (CASES / "numbers_of_a_cluster.json").read_text())
    (tmp_path / "ds.json").unlink()
    before = ResolvedSpec.from_json(resolution.resolved.to_json())
    assert render_ds_config(before) == resolution.ds_config
    after = resolve_again(before, Options(zero_stage=2), 2)
    assert after.spec.zero == replace(before.spec.zero, stage=2, coalesce_grad_reduction=True)
    assert not {"leaf_module", "stage3_param_persistence_threshold"} & set(json.loads(render_ds_config(after))["zero_optimization"])
    again = resolve_again(after, Options(zero_stage=3, sets=("cluster.slots=1",)), 3)
    zero = json.loads(render_ds_config(again))["zero_optimization"]
    assert zero["leaf_module"] and zero["stage3_param_persistence_threshold"] == 100_000
    kept = dataclasses.asdict(again.spec.optimizer)
    assert kept == dataclasses.asdict(before.spec.optimizer) and again.sources["optimizer.learning_rate"] == f"{tmp_path / 'ds.json'}:14"


def test_verify_loss_takes_the_json_along(tmp_path: Path) -> None:
    """Keys for stage 3 are no reason against the other stages."""
    resolution = resolve(tmp_path, (CASES / "numbers_of_a_cluster.json").read_text().replace('"enabled": true', '"enabled": false'))
    check = Check(options=Options(spec_path=tmp_path / "spec.yaml"), resolved=resolution.resolved, updates=4, scope="quick")
    assert find_ground(check).refused == {}


@pytest.mark.parametrize("name", ["nvme.json", "unread_blocks.json", "stage1_short.json"])
def test_a_deepspeed_json_is_no_spec(tmp_path: Path, name: str) -> None:
    path = CASES / name
    with pytest.raises(SpecError, match="this is a DeepSpeed JSON, not a spec") as raised:
        read_and_resolve(Options(spec_path=path))
    assert f"zero: {{config: {path}}}" in str(raised.value)


def test_what_a_run_resolved_is_no_spec(tmp_path: Path) -> None:
    path = tmp_path / "resolved.json"
    path.write_text(resolve(tmp_path, "{}").resolved.to_json())
    with pytest.raises(SpecError, match="this is what a run's spec was resolved to, not a spec") as raised:
        read_and_resolve(Options(spec_path=path))
    assert len(raised.value.problems) == 1 and f"the run's spec is {tmp_path / 'spec.yaml'}" in str(raised.value)


def test_validate_checks_a_deepspeed_json_by_itself(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CASES)
    validate.main(["unread_blocks.json"], standalone_mode=False)
    out, err = capsys.readouterr()
    assert out == "OK unread_blocks.json: a DeepSpeed JSON; a spec uses it with zero.config\n"
    assert err.startswith("warning: unread_blocks.json:7: zero_optimization.round_robin_gradients: ignored")
    with pytest.raises(SpecError, match=r"removed_and_risky.json:6: scheduler.type: OneCycle is not offered"):
        validate.main(["removed_and_risky.json"], standalone_mode=False)
    capsys.readouterr()
    validate.main(["stage1_short.json", "--json"], standalone_mode=False)
    (told,) = json.loads(capsys.readouterr().out)
    assert told["ok"] and len(told["warnings"]) == 1


def test_warnings_of_a_spec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resolve(tmp_path, CASES / "stage1_short.json")
    validate.main([str(tmp_path / "spec.yaml")], standalone_mode=False)
    assert "stage1_short.json:4: compile: ignored" in capsys.readouterr().err


def test_a_spec_is_not_taken_for_a_deepspeed_json(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text('{"bf16": true, "zero": {"stage": 2}}')
    with pytest.raises(SpecError, match=r"unknown key `bf16`"):
        read_and_resolve(Options(spec_path=path))
    path.write_text('{"bf16": true, # no\n}')
    with pytest.raises(SpecError, match="not valid JSON"):
        read_and_resolve(Options(spec_path=path))
    with pytest.raises((SpecError, click.ClickException)):
        validate.main([str(path)], standalone_mode=False)
    assert problems(tmp_path, "{}", model=3)
