"""Energy: RAPL's counters as sysfs shows them, that run over; what can't be read is not a number, and no run stops for it."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from ftcore.metrics.energy import GpuMeter, HostMeter, NoMeter, SharedMeter, meter_of


def add_zone(folder: Path, zone: str, name: str, microjoules: int) -> Path:
    """A zone as the kernel shows it; its counter."""
    path = folder / zone
    path.mkdir()
    (path / "name").write_text(f"{name}\n")
    (path / "max_energy_range_uj").write_text("1000000\n")
    (path / "energy_uj").write_text(f"{microjoules}\n")
    return path / "energy_uj"


def test_packages_and_memory_once_each(tmp_path: Path) -> None:
    names = {"intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "dram", "intel-rapl:1": "psys", "intel-rapl-mmio:0": "package-0"}
    counters = {zone: add_zone(tmp_path, zone, name, 100) for zone, name in names.items()}
    (tmp_path / "intel-rapl").mkdir()
    meter = HostMeter(tmp_path)
    assert meter.joules() == 0.0
    for counter in counters.values():
        counter.write_text("500100\n")
    assert meter.joules() == 1.0, "the package and its memory"
    counters["intel-rapl:0"].write_text("200\n")
    assert meter.joules() == pytest.approx(1.5001), "it ran over"
    counters["intel-rapl:0"].unlink()
    assert math.isnan(meter.joules())


def test_who_reads_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostMeter.__init__, "__defaults__", (tmp_path,))
    cpu = torch.device("cpu")
    assert isinstance(meter_of(cpu, 0), NoMeter) and math.isnan(NoMeter().joules()), "nothing there that counts"
    add_zone(tmp_path, "intel-rapl:0", "package-0", 7)
    assert isinstance(meter_of(cpu, 0), HostMeter)
    assert isinstance(meter_of(cpu, 1), SharedMeter) and SharedMeter().joules() == 0.0, "a host is counted once"
    assert isinstance(meter_of(torch.device("cuda", 0), 0), NoMeter), "there is no driver here"


class Driver(ModuleType):
    """A driver with one GPU, as pynvml shows it: millijoules since it was loaded."""

    class NVMLError(Exception):
        """What pynvml raises."""

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.millijoules, self.is_lost = 5_000, False

    def nvmlInit(self) -> None:  # noqa: N802  its name
        """Nothing to do."""

    def nvmlDeviceGetHandleByUUID(self, identity: str) -> str:  # noqa: N802  its name
        """The handle of the GPU that is there."""
        if identity != "GPU-12-34":
            raise self.NVMLError(identity)
        return identity

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:  # noqa: N802  its name
        """Of the GPU."""
        if self.is_lost:
            raise self.NVMLError(handle)
        return self.millijoules


def test_a_gpu_counts_since_its_driver_was_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    meters = GpuMeter("12-34"), GpuMeter("GPU-12-34")
    driver.millijoules = 7_500
    assert [meter.joules() for meter in meters] == [2.5, 2.5]
    driver.is_lost = True
    assert math.isnan(meters[0].joules())
    with pytest.raises(Driver.NVMLError):
        GpuMeter("MIG-5")
