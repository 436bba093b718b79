"""What this machine computes on: its accelerators, or its own cores, found without torch."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ftcore.spec.host_memory import room_bytes
from launcher.memory.accelerators import Accelerator, by_model
from launcher.topology import local_accelerators

_CPU_INFO = Path("/proc/cpuinfo")
_DRIVER = Path("/proc/driver/nvidia/gpus")
FLOPS_A_CYCLE = 32
"""Of one core in float32: two fused multiply-adds of 8 numbers, or one of 16 (AVX2, AVX-512). An EPYC core at 2.6 GHz does 82 to 92 GFLOP/s in torch."""
BF16_GAIN = (("amx_bf16", 16.0), ("avx512_bf16", 2.0))
"""Instructions -> speed of bfloat16 products over float32 ones; without either bfloat16 is no faster."""
CORE_BANDWIDTH = 10e9
"""Bytes a second that one core moves to and from memory; an assumption."""


def find_local() -> Accelerator | None:
    """What a rank started here computes on: the GPU this process may use, or the host's cores where there is none; None for a GPU that is not known.

    Asks the driver's files first, which take no time, and nvidia-smi only where they are not there.
    """
    if not local_accelerators():
        return host_accelerator()
    found = _from_driver_files()
    if found is not None and found.name not in ("a100-80", "v100-32"):
        return found
    from launcher.preflight.accelerators import accelerator_facts

    usable = accelerator_facts(os.environ)["accelerators"]
    known = [by_model(str(each["name"]), each["memory_total"]) for each in usable]
    return min((each for each in known if each is not None), key=lambda each: each.memory_bytes, default=found)


def _from_driver_files(folder: Path = _DRIVER) -> Accelerator | None:
    try:
        models = {matched[1].strip() for path in folder.glob("*/information") if (matched := re.search(r"^Model:(.*)$", path.read_text(), re.MULTILINE))}
    except OSError:
        return None
    return by_model(models.pop()) if len(models) == 1 else None


def host_accelerator(cpu_info: Path = _CPU_INFO) -> Accelerator:
    """The cores of this machine as one accelerator, whose rates its ranks share: cores × MHz × 32, and the memory that is free.

    An estimate: `ftlaunch pilot` measures.
    """
    try:
        text = cpu_info.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    cores = len(os.sched_getaffinity(0))
    speeds = [float(each) for each in re.findall(r"^cpu MHz\s*:\s*([0-9.]+)", text, re.MULTILINE)] or [2000.0]
    flags = set(re.findall(r"\w+", (re.search(r"^flags\s*:(.*)$", text, re.MULTILINE) or [""])[0]))
    gain = next((gain for flag, gain in BF16_GAIN if flag in flags), 1.0)
    fp32 = cores * 1e6 * sum(speeds) / len(speeds) * FLOPS_A_CYCLE
    return Accelerator(
        name="cpu",
        memory_bytes=room_bytes() or 0,
        bf16_flops=fp32 * gain,
        fp16_flops=fp32,
        fp32_flops=fp32,
        memory_bandwidth=cores * CORE_BANDWIDTH,
        link_bandwidth=cores * CORE_BANDWIDTH / 4,
        host_bandwidth=cores * CORE_BANDWIDTH,
        family="cpu",
        source=f"{cores} cores of this machine at {sum(speeds) / len(speeds) / 1e3:.1f} GHz, its free memory: an estimate",
    )
