from __future__ import annotations

import pytest

from ftcore.spec.errors import SpecError
from launcher.memory import this_machine
from launcher.memory.accelerators import GIB, NAMES, TABLE, by_model, find_accelerator, local_accelerator


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h100-80", "h100-80"),
        ("H100", "h100-80"),
        ("A100-40GB", "a100-40"),
        ("RTX 4090", "4090"),
        ("nvidia-l40s", "l40s"),
        ("h200", "h200"),
        (" b200 ", "b200"),
        ("cpu", "cpu"),
    ],
)
def test_names_as_users_type_them(text, name):
    assert find_accelerator(text).name == name


def test_another_memory():
    found = find_accelerator("4090:48")
    assert (found.name, found.memory_bytes) == ("4090:48", 48 * GIB)
    assert find_accelerator("h200:120 GiB").bf16_flops == TABLE["h200"].bf16_flops


@pytest.mark.parametrize("text", ["h10", "4099", "", "h100-80:", "h100-80:0", "h100-80:many", "4090:-1", "4090:0.5"])
def test_what_is_no_accelerator(text):
    with pytest.raises(SpecError) as caught:
        find_accelerator(text)
    assert caught.value.exit_status == 2
    assert caught.value.problems[0].fix


def test_the_nearest_name_is_told():
    with pytest.raises(SpecError) as caught:
        find_accelerator("h10-80", "--gpu")
    assert "did you mean h100-80" in caught.value.problems[0].fix
    assert all(name in caught.value.problems[0].fix for name in NAMES)


def test_a_driver_and_a_context_take_their_part():
    for accelerator in TABLE.values():
        assert 0.9 * accelerator.memory_bytes < accelerator.usable_bytes < accelerator.memory_bytes
    # torch.cuda.get_device_properties(0).total_memory of an H100 is 79.1 GiB, before its context.
    assert 78 * GIB < TABLE["h100-80"].usable_bytes < 79.1 * GIB


@pytest.mark.parametrize(
    ("model", "memory", "name"),
    [
        ("NVIDIA H100 80GB HBM3", 81559 * 2**20, "h100-80"),
        ("NVIDIA H100 PCIe", 81559 * 2**20, "h100-80-pcie"),
        ("NVIDIA H200", None, "h200"),
        ("NVIDIA A100-SXM4-40GB", None, "a100-40"),
        ("NVIDIA A100-SXM4-80GB", None, "a100-80"),
        ("NVIDIA A100-SXM", 40960 * 2**20, "a100-40"),
        ("Tesla V100-SXM2-16GB", None, "v100-16"),
        ("Tesla V100-SXM2", 16384 * 2**20, "v100-16"),
        ("NVIDIA GeForce RTX 4090", None, "4090"),
        ("NVIDIA L40S", None, "l40s"),
        ("NVIDIA L4", None, "l4"),
        ("NVIDIA A10G", None, "a10"),
        ("NVIDIA B200", None, "b200"),
    ],
)
def test_what_drivers_call_them(model, memory, name):
    found = by_model(model, memory)
    assert found is not None and found.name == name
    assert memory is None or found.memory_bytes == memory


def test_a_model_that_nobody_knows():
    assert by_model("NVIDIA Quadro K2000") is None


def test_the_cores_of_a_machine(tmp_path, monkeypatch):
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\ncpu MHz\t\t: 2000.0\nflags\t\t: fma avx2 avx512f avx512_bf16\n")
    monkeypatch.setattr(this_machine.os, "sched_getaffinity", lambda pid: {0, 1, 2})
    host = this_machine.host_accelerator(info)
    assert (host.fp32_flops, host.bf16_flops) == (3 * 2e9 * 32, 3 * 2e9 * 32 * 2)
    assert host.is_host and host.usable_bytes == host.memory_bytes > 0
    assert this_machine.host_accelerator(tmp_path / "missing").fp32_flops > 0


def test_without_a_gpu_a_machine_is_its_cores(monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    assert local_accelerator().name == "cpu"


def test_the_drivers_files_are_asked_first(tmp_path, monkeypatch):
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0" / "information").write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 1\n")
    assert this_machine._from_driver_files(tmp_path).name == "h100-80"
    monkeypatch.setattr(this_machine, "local_accelerators", lambda: 1)
    monkeypatch.setattr(this_machine, "_from_driver_files", lambda: None)
    facts = {"accelerators": [{"name": "NVIDIA A100-SXM4-80GB", "memory_total": 80 * GIB}]}
    monkeypatch.setattr("launcher.preflight.accelerators.accelerator_facts", lambda environment: facts)
    assert local_accelerator().memory_bytes == 80 * GIB
