"""Energy that the devices of a rank have used, where they count it: NVML's counter of a GPU, RAPL's of a host's processors."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Protocol

import torch

POWERCAP = Path("/sys/class/powercap")


class Meter(Protocol):
    """Counts on."""

    def joules(self) -> float:
        """Used since the meter was made; NaN once it can't be read."""


class NoMeter:
    """Of a device that doesn't tell."""

    def joules(self) -> float:
        """Not a number."""
        return math.nan


class SharedMeter:
    """Of a device that another rank reads."""

    def joules(self) -> float:
        """Nothing of its own."""
        return 0.0


class GpuMeter:
    """NVML's total energy of one GPU (nvmlDeviceGetTotalEnergyConsumption, millijoules since the driver was loaded; Volta and later)."""

    def __init__(self, identity: str) -> None:
        """`identity`: its UUID, as torch writes it. Raises whatever NVML does where it can't tell."""
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(identity if identity.startswith(("GPU-", "MIG-")) else f"GPU-{identity}")
        self._begin = pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)

    def joules(self) -> float:
        """Used since the meter was made."""
        try:
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) - self._begin) / 1e3
        except self._nvml.NVMLError:
            return math.nan


class HostMeter:
    """RAPL's counters of a host: its processor packages, and their memory where it is counted apart. They run over, so they are read often."""

    def __init__(self, folder: Path = POWERCAP) -> None:
        """Raises OSError where there is none that this user may read."""
        self._zones = [_Zone(path) for path in sorted(folder.glob("*-rapl:*")) if _counts(path)]
        if not self._zones:
            raise FileNotFoundError(f"{folder} has no counters")

    def joules(self) -> float:
        """Used since the meter was made."""
        try:
            return sum(zone.microjoules() for zone in self._zones) / 1e6
        except (OSError, ValueError):
            return math.nan


class _Zone:
    """One counter, which begins anew at its end."""

    def __init__(self, path: Path) -> None:
        self._path = path / "energy_uj"
        self._range = int((path / "max_energy_range_uj").read_text())
        self._last, self._sum = int(self._path.read_text()), 0

    def microjoules(self) -> int:
        now = int(self._path.read_text())
        self._sum += now - self._last if now >= self._last else now - self._last + self._range
        self._last = now
        return self._sum


def _counts(zone: Path) -> bool:
    """Whether a zone is a package or its memory: cores are inside of a package, and `psys` holds all of it again."""
    name = ""
    with contextlib.suppress(OSError):
        name = (zone / "name").read_text().strip()
    return name.startswith("package") or name == "dram"


def meter_of(device: torch.device, local_rank: int) -> Meter:
    """What this rank reads: its GPU, or for the first rank of a host the host's processors, so that each is counted once. Never fails."""
    try:
        if device.type == "cuda":
            # NCCL gives each rank a GPU of its own.
            return GpuMeter(str(torch.cuda.get_device_properties(device).uuid))
        return HostMeter() if local_rank == 0 else SharedMeter()
    except Exception:  # noqa: BLE001  no driver, no counter, no permission: a run needs none of them
        return NoMeter()
