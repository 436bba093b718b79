"""Accelerators by name: memory, speed and links, from their makers' data sheets; and which one this machine has."""

from __future__ import annotations

import dataclasses
import difflib
import re
from dataclasses import dataclass

from ftcore.spec.errors import SpecError

GIB = 2**30
CONTEXT_BYTES = GIB // 2
"""What the driver's context of one process takes before its first tensor: 0.4 to 0.6 GiB with torch's kernels loaded."""
DRIVER_SHARE = 0.01
"""Of the memory that nvidia-smi shows, what torch does not see: an H100 shows 81,559 MiB, torch.cuda.get_device_properties 79.1 GiB."""
WHERE = "hardware.accelerator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device that a rank computes on. Rates are dense (without sparsity), of the data sheet, a second."""

    name: str
    """As users type it."""
    memory_bytes: int
    """All of it, as nvidia-smi shows it; for `cpu` the host's memory, which its ranks share."""
    bf16_flops: float
    """Matrix products in bfloat16 summed in float32."""
    fp16_flops: float
    fp32_flops: float
    """Without TF32, which torch leaves off unless asked."""
    memory_bandwidth: float
    """Bytes a second of its own memory."""
    link_bandwidth: float
    """Bytes a second to the other accelerators of a host, one way: NVLink, else PCIe."""
    host_bandwidth: float
    """Bytes a second to the host's memory, one way."""
    family: str
    """Architecture: decides the shares of these rates that training reaches (see launcher.memory.roofline)."""
    source: str
    """Where the numbers are from."""

    @property
    def is_host(self) -> bool:
        """Whether the ranks compute on the host itself, and share its memory."""
        return self.family == "cpu"

    @property
    def usable_bytes(self) -> int:
        """What tensors, NCCL and torch's allocator can have: all but the driver's part and the process's context; of a host, all."""
        return self.memory_bytes if self.is_host else int(self.memory_bytes * (1 - DRIVER_SHARE)) - CONTEXT_BYTES


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of the table, in units that data sheets use."""

    name: str
    memory_mib: int
    tflops: tuple[float, float, float]
    """bf16, fp16, fp32."""
    bandwidths: tuple[float, float, float]
    """Memory, link, host, in GB/s."""
    family: str
    source: str


_ROWS = (
    _Row("h100-80", 81559, (989.4, 989.4, 66.9), (3350, 450, 64), "hopper", "NVIDIA H100 data sheet, SXM5"),
    _Row("h100-80-pcie", 81559, (756, 756, 51.2), (2000, 64, 64), "hopper", "NVIDIA H100 data sheet, PCIe"),
    _Row("h100-94", 95830, (835, 835, 60), (3900, 300, 64), "hopper", "NVIDIA H100 data sheet, NVL"),
    _Row("h200", 143771, (989.4, 989.4, 66.9), (4800, 450, 64), "hopper", "NVIDIA H200 data sheet, SXM"),
    _Row("b200", 183359, (2250, 2250, 75), (8000, 900, 64), "blackwell", "NVIDIA DGX B200 data sheet, an eighth of it"),
    _Row("gb200", 189471, (2500, 2500, 80), (8000, 900, 450), "blackwell", "NVIDIA GB200 NVL72 data sheet, one of its GPUs; NVLink-C2C to the host"),
    _Row("a100-80", 81920, (312, 312, 19.5), (2039, 300, 32), "ampere", "NVIDIA A100 data sheet, SXM4 80 GB"),
    _Row("a100-80-pcie", 81920, (312, 312, 19.5), (1935, 32, 32), "ampere", "NVIDIA A100 data sheet, PCIe 80 GB"),
    _Row("a100-40", 40960, (312, 312, 19.5), (1555, 300, 32), "ampere", "NVIDIA A100 data sheet, SXM4 40 GB"),
    _Row("l40s", 46068, (362, 362, 91.6), (864, 32, 32), "ada", "NVIDIA L40S data sheet"),
    _Row("l4", 23034, (121, 121, 30.3), (300, 32, 32), "ada", "NVIDIA L4 data sheet"),
    _Row("a10", 23028, (125, 125, 31.2), (600, 32, 32), "ampere", "NVIDIA A10 data sheet"),
    _Row("a6000", 49140, (154.8, 154.8, 38.7), (768, 32, 32), "ampere", "NVIDIA RTX A6000 data sheet and GA102 white paper"),
    _Row("6000-ada", 49140, (364, 364, 91.1), (960, 32, 32), "ada", "NVIDIA RTX 6000 Ada data sheet"),
    _Row("5090", 32607, (209.5, 209.5, 104.8), (1792, 64, 64), "consumer", "NVIDIA RTX Blackwell white paper, sums in float32"),
    _Row("4090", 24564, (165.2, 165.2, 82.6), (1008, 32, 32), "consumer", "NVIDIA Ada white paper, sums in float32"),
    _Row("3090", 24576, (71, 71, 35.6), (936, 32, 32), "consumer", "NVIDIA GA102 white paper, sums in float32"),
    _Row("v100-32", 32768, (15.7, 125, 15.7), (900, 150, 16), "volta", "NVIDIA V100 data sheet, SXM2 (no tensor cores for bfloat16)"),
    _Row("v100-16", 16384, (15.7, 125, 15.7), (900, 150, 16), "volta", "NVIDIA V100 data sheet, SXM2 (no tensor cores for bfloat16)"),
    _Row("t4", 15360, (8.1, 65, 8.1), (320, 16, 16), "volta", "NVIDIA T4 data sheet (no tensor cores for bfloat16)"),
    _Row("mi300x", 196592, (1307.4, 1307.4, 163.4), (5300, 448, 64), "cdna", "AMD MI300X data sheet"),
)
_OTHER_NAMES = {
    "h100": "h100-80",
    "h100-pcie": "h100-80-pcie",
    "h100-nvl": "h100-94",
    "h200-141": "h200",
    "a100": "a100-80",
    "a100-pcie": "a100-80-pcie",
    "a40": "a6000",
    "a10g": "a10",
    "rtx6000-ada": "6000-ada",
    "v100": "v100-32",
}
_MODELS = (
    (r"GB200", "gb200"),
    (r"\bB200", "b200"),
    (r"H200", "h200"),
    (r"H100.*NVL", "h100-94"),
    (r"H100.*PCIe", "h100-80-pcie"),
    (r"H100", "h100-80"),
    (r"A100.*PCIE.*40|A100-PG|A100.*40", "a100-40"),
    (r"A100.*PCIe", "a100-80-pcie"),
    (r"A100", "a100-80"),
    (r"L40S", "l40s"),
    (r"\bL4\b", "l4"),
    (r"\bA10G?\b", "a10"),
    (r"RTX A6000|\bA40\b", "a6000"),
    (r"6000 Ada", "6000-ada"),
    (r"RTX 5090", "5090"),
    (r"RTX 4090", "4090"),
    (r"RTX 3090", "3090"),
    (r"V100.*16", "v100-16"),
    (r"V100", "v100-32"),
    (r"Tesla T4|\bT4\b", "t4"),
)
"""Part of the name that the driver gives -> name in the table; the first that matches."""


def _accelerator(row: _Row) -> Accelerator:
    bf16, fp16, fp32 = (1e12 * each for each in row.tflops)
    memory, link, host = (1e9 * each for each in row.bandwidths)
    return Accelerator(
        name=row.name,
        memory_bytes=row.memory_mib * 2**20,
        bf16_flops=bf16,
        fp16_flops=fp16,
        fp32_flops=fp32,
        memory_bandwidth=memory,
        link_bandwidth=link,
        host_bandwidth=host,
        family=row.family,
        source=row.source,
    )


TABLE = {row.name: _accelerator(row) for row in _ROWS}
"""Name -> accelerator, all but `cpu`."""
NAMES = (*TABLE, "cpu")


def find_accelerator(text: str, where: str = WHERE) -> Accelerator:
    """The accelerator that `text` names: a name of the table, `cpu` (this machine), or NAME:GiB, which has another memory.

    Raises SpecError, with the nearest names, for any other text.
    """
    name, colon, size = text.strip().lower().partition(":")
    key = re.sub(r"^(nvidia|geforce|tesla|rtx|amd)[-_ ]*", "", name.strip()).replace("_", "-").replace(" ", "-")
    key = re.sub(r"(?<=\d)(gb|gib)\b", "", key)
    found = _named(_OTHER_NAMES.get(key, key))
    if found is None:
        nearest = difflib.get_close_matches(key, [*NAMES, *_OTHER_NAMES], n=2)
        hint = f"did you mean {' or '.join(nearest)}? " if nearest else ""
        raise SpecError(f"no accelerator is called '{text}'", where=where, fix=f"{hint}there are {', '.join(NAMES)}, and NAME:GiB for one with other memory")
    if not colon:
        return found
    matched = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:gib|gb|g)?\s*", size)
    gib = float(matched[1]) if matched else 0.0
    if not 0 < gib < 2**20:
        raise SpecError(f"'{size}' is no memory in GiB", where=where, fix=f"write it as in {name}:48")
    sized = dataclasses.replace(found, name=f"{found.name}:{gib:g}", memory_bytes=int(gib * GIB), source=f"{found.source}, with the memory given")
    if sized.usable_bytes <= 0:
        taken = f"the driver's part and the process's context take {CONTEXT_BYTES / GIB:g} GiB and more of it"
        raise SpecError(f"{gib:g} GiB leave nothing for a run: {taken}", where=where, fix=f"write it as in {name}:48")
    return sized


def _named(key: str) -> Accelerator | None:
    if key == "cpu":
        from launcher.memory.this_machine import host_accelerator

        return host_accelerator()
    return TABLE.get(key)


def local_accelerator() -> Accelerator | None:
    """What a rank started on this machine computes on; None for a GPU that the table does not know (see `launcher.memory.this_machine`)."""
    from launcher.memory.this_machine import find_local

    return find_local()


def by_model(model: str, memory_bytes: int | None = None) -> Accelerator | None:
    """The accelerator whose driver calls it `model` (NVIDIA H100 80GB HBM3), with the memory that was found; None when the table has none such.

    A model with twice the memory of its namesake (A100 40 and 80 GB) is told apart by `memory_bytes`.
    """
    name = next((name for pattern, name in _MODELS if re.search(pattern, model, flags=re.IGNORECASE)), None)
    if name is None:
        return None
    if name == "a100-80" and memory_bytes is not None and memory_bytes < 50 * GIB:
        name = "a100-40"
    if name == "v100-32" and memory_bytes is not None and memory_bytes < 20 * GIB:
        name = "v100-16"
    found = TABLE[name]
    return found if memory_bytes is None else dataclasses.replace(found, memory_bytes=memory_bytes)
