from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ftcore.spec.errors import DoesNotFitError, SpecError
from ftcore.spec.resolved import Host, ResolvedSpec
from launcher.memory import launch_fit
from launcher.memory.accelerators import GIB, find_accelerator
from launcher.memory.capacity import Capacity, capacity_of, planned_elsewhere
from launcher.memory.fit import require_fit, shortages
from launcher.memory.launch_fit import check_launch
from launcher.memory.ledger import build_ledger
from launcher.submission.submitting import How, require_room_there
from tests.unit.planned_runs import LLAMA_8B, llama, run


def with_zero(resolved: ResolvedSpec, **zero: object) -> ResolvedSpec:
    changed = dataclasses.replace(resolved.spec.zero, coalesce_grad_reduction=False, **zero)
    return dataclasses.replace(resolved, spec=dataclasses.replace(resolved.spec, zero=changed))


def here(tmp_path: Path, **hardware: object) -> ResolvedSpec:
    """A run of an 8B model whose config.json lies in a folder, on two slots of this machine."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    resolved = run(ranks=2, **hardware)
    model = dataclasses.replace(resolved.spec.model, model_name_or_path=str(tmp_path))
    return dataclasses.replace(resolved, spec=dataclasses.replace(resolved.spec, model=model), hosts=(Host(name="localhost", slots=2),))


def room(gpu: str = "h100-80", *, host: float | None = None, disk: float | None = None) -> Capacity:
    accelerator = find_accelerator(gpu)
    return Capacity(
        accelerator=accelerator,
        device_bytes=accelerator.usable_bytes,
        device_origin="--gpu",
        host_bytes={"host0": None if host is None else int(host * GIB)},
        disk_bytes=None if disk is None else int(disk * GIB),
    )


def test_too_much_for_a_device_is_told_with_both_numbers_and_what_takes_most():
    resolved, shape = run(budget=16384), llama()
    ledger, capacity = build_ledger(resolved, shape), room()
    (short,) = shortages(resolved, ledger, capacity)
    assert short.is_error and short.over_bytes == ledger.device_peak_bytes - capacity.device_bytes > 0
    assert "GiB over, activations" in short.what and "78.4 GiB" in short.what
    with pytest.raises(DoesNotFitError) as caught:
        require_fit(resolved, ledger, capacity, advice="--zero 3 fits")
    assert caught.value.exit_status == 7
    assert "--zero 3 fits; --force" in caught.value.problems[0].fix


def test_a_margin_only_warns():
    resolved, shape = run(), llama(layers=8)
    ledger = build_ledger(resolved, shape)
    gib = ledger.device_peak_bytes * 1.03 / GIB
    accelerator = dataclasses.replace(find_accelerator("4090"), memory_bytes=int(gib * GIB))
    capacity = dataclasses.replace(room(), accelerator=accelerator, device_bytes=int(gib * GIB))
    assert "less than hardware.margin 10%" in require_fit(resolved, ledger, capacity)[0]
    assert require_fit(resolved, ledger, room()) == []


def test_offload_of_15b_parameters_on_a_host_of_256_gb():  # J05
    shape = llama(layers=36, hidden=5120, intermediate=20480)
    assert 1.4e10 < shape.parameters < 1.7e10
    resolved = with_zero(run(ranks=1, nodes=1), stage=2, offload_optimizer="cpu")
    ledger = build_ledger(resolved, shape)
    assert ledger.host_bytes["host0"] > 256e9 > 12 * shape.parameters
    (short,) = [each for each in shortages(resolved, ledger, room("b200", host=256e9 / GIB)) if each.place == "host"]
    assert short.is_error and "of main memory for 1 rank" in short.what and "optimizer" in short.what
    # What is held at that moment is named, and the weights' files were let go before.
    assert short.needed_bytes == ledger.host_bytes["host0"] and "load" not in short.items
    with pytest.raises(DoesNotFitError, match="main memory"):
        require_fit(resolved, ledger, room("b200", host=256e9 / GIB))


def test_each_rank_that_reads_the_whole_model_is_warned_of_first():  # J03
    resolved = run(ranks=2, stage=2, method="lora")
    shape = llama()
    ledger = build_ledger(resolved, shape)
    load = ledger.host_bytes["host0"]
    assert load > 2 * 2 * shape.parameters
    # 95 % of the host's memory, as in the report.
    warned = require_fit(resolved, ledger, room(host=load / 0.95 / GIB))
    assert len(warned) == 1 and "95% of it" in warned[0] and "load" in warned[0]
    assert require_fit(resolved, ledger, room(host=load / 0.85 / GIB)) == []
    # Read once and partitioned, the same host is warned of no more.
    once = build_ledger(run(ranks=2, stage=3, method="lora"), shape)
    assert once.host_bytes["host0"] < 0.6 * load


def test_checkpoints_need_their_disk():
    resolved, shape = run(), llama(layers=8)
    ledger = build_ledger(resolved, shape)
    (short,) = shortages(resolved, ledger, room(disk=1))
    assert short.place == "disk" and "checkpoint" in short.what and "save_total_limit" in short.fix
    with pytest.raises(DoesNotFitError) as caught:
        require_fit(resolved, ledger, room(disk=1), advice="--zero 0 fits")
    assert caught.value.problems[0].fix == f"{short.fix}; --force launches it all the same"
    assert shortages(resolved, ledger, room(disk=ledger.disk_bytes / GIB + 1)) == []


def test_what_is_not_known_is_not_judged():
    unknown = Capacity(accelerator=None, device_bytes=None, device_origin="not known", host_bytes={"host0": None}, disk_bytes=None)
    assert shortages(run(ranks=1), build_ledger(run(ranks=1), llama()), unknown) == []


def test_ranks_on_a_cpu_share_the_host(tmp_path, monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    resolved = here(tmp_path, host_memory=64 * GIB)
    capacity = capacity_of(resolved)
    assert capacity.is_shared and capacity.device_bytes == 32 * GIB
    found = shortages(resolved, build_ledger(resolved, llama(), on_cpu=True), capacity)
    assert {each.place for each in found} == {"device", "host"}
    assert "a rank's share of this host" in found[0].what or "a rank's share of this host" in found[1].what


def test_who_says_what_there_is(tmp_path):
    resolved = here(tmp_path, accelerator="h100-80", memory=60 * GIB)
    assert capacity_of(resolved).device_bytes < 60 * GIB
    assert capacity_of(resolved, gpu="a100-40").accelerator.name == "a100-40"
    assert capacity_of(resolved, gpu="4090:48").accelerator.memory_bytes == 48 * GIB
    # A host that is planned for another machine says nothing of that one's memory.
    assert capacity_of(resolved).host_bytes == {"localhost": None}
    assert capacity_of(resolved, folder=tmp_path / "runs" / "a").disk_bytes > 0
    with pytest.raises(SpecError, match="no accelerator is called"):
        capacity_of(here(tmp_path, accelerator="h10"))


def test_what_hosts_said():
    resolved = run(ranks=8, nodes=2)
    gpus = [{"name": "NVIDIA H100 80GB HBM3", "memory_total": 81559 * 2**20}]
    facts = {"host0": {"accelerators": gpus, "installed": 1, "memory_available": 900 * GIB}, "host1": {"accelerators": gpus, "installed": 1}}
    capacity = capacity_of(resolved, facts=facts)
    assert capacity.accelerator.name == "h100-80" and capacity.host_bytes == {"host0": 900 * GIB, "host1": None}
    assert capacity_of(resolved, facts={"host0": facts["host0"]}).device_bytes is None
    odd = {name: {"accelerators": [{"name": "NVIDIA Quadro K2000", "memory_total": None}], "installed": 1} for name in facts}
    assert capacity_of(resolved, facts=odd).accelerator is None
    bare = {name: {"accelerators": [], "installed": 0, "memory_available": 16 * GIB} for name in facts}
    on_cpu = capacity_of(resolved, facts=bare)
    assert on_cpu.is_shared and on_cpu.device_bytes == 2 * GIB


def test_machines_of_a_queue_are_known_by_the_spec_alone(tmp_path):
    assert planned_elsewhere(here(tmp_path)).device_bytes is None
    said = planned_elsewhere(here(tmp_path, accelerator="4090", host_memory=64 * GIB))
    assert said.accelerator.name == "4090" and said.host_bytes == {"localhost": 64 * GIB}
    assert check_launch(here(tmp_path), elsewhere=True) == []
    with pytest.raises(DoesNotFitError):
        check_launch(here(tmp_path, accelerator="4090"), elsewhere=True)


def test_a_launch_is_refused_with_what_fits_unless_forced(tmp_path):
    resolved = here(tmp_path, accelerator="h100-80:60")
    with pytest.raises(DoesNotFitError) as caught:
        check_launch(resolved)
    assert "fits (ZeRO-" in caught.value.problems[0].fix and "--set" in caught.value.problems[0].fix
    assert check_launch(resolved, refuses=False)[0].startswith("it does not fit: a rank takes")
    with pytest.raises(DoesNotFitError) as caught:
        check_launch(here(tmp_path, accelerator="4090", host_memory=8 * GIB))
    assert "nothing that `ftlaunch plan --recommend` weighs fits" in caught.value.problems[0].fix


def test_a_run_that_goes_on_is_told_what_a_resume_may_change(tmp_path):
    with pytest.raises(DoesNotFitError) as caught:
        check_launch(here(tmp_path, accelerator="h100-80:60"), goes_on=True)
    assert "gradient_checkpointing" not in caught.value.problems[0].fix and "offload" not in caught.value.problems[0].fix


def test_a_submission_is_refused_unless_forced(tmp_path, capsys):
    resolved, how = here(tmp_path, accelerator="4090"), How(on_cpu=False, chain=1, env_file=None, exports=True)
    with pytest.raises(DoesNotFitError):
        require_room_there(resolved, how)
    require_room_there(resolved, dataclasses.replace(how, force=True))
    assert "it does not fit: a rank takes" in capsys.readouterr().err


def test_an_odd_model_never_stands_in_the_way(tmp_path, monkeypatch):
    resolved = here(tmp_path, accelerator="h100-80")
    (tmp_path / "config.json").write_text('{"model_type": "something_new", "hidden_size": "wide"}')
    assert "was not checked" in check_launch(resolved)[0]
    (tmp_path / "config.json").write_text("{")
    assert "was not checked" in check_launch(resolved)[0]
    hub = run(accelerator="h100-80")
    assert "is not on this machine yet" in check_launch(hub)[0]

    def broken(*given: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(launch_fit, "shape_at_hand", broken)
    assert check_launch(resolved) == ["whether it fits in memory was not checked: ZeroDivisionError: a bug"]


def test_the_command_ends_with_status_7_and_leaves_nothing(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(LLAMA_8B))
    (tmp_path / "train.jsonl").write_text('{"messages": []}\n')
    sets = (f"model.model_name_or_path={model}", f"data.train.path={tmp_path}/train.jsonl", "data.eval=null", "hardware.accelerator=4090")
    program = str(Path(sys.executable).with_name("ftlaunch"))
    for verb in ((), ("pilot",)):
        ended = subprocess.run([program, *verb, *sets], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        assert (ended.returncode, (tmp_path / "runs").exists()) == (7, False), ended.stderr
        assert "device memory: a rank takes" in ended.stderr and "--force launches it all the same" in ended.stderr
        assert "Traceback" not in ended.stderr
