"""Memory that runs out for real, in each of the ways it does on a host: one error, with the numbers seen and what helps."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ftcore.out_of_memory import asked_for, describe_out_of_memory
from ftcore.process import as_ft_error
from ftcore.spec.errors import TrainingError
from ftcore.spec.host_memory import cgroup_limit

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 8 * 2**30
PROGRAM = """
import resource, sys
{imports}
from ftcore.process import run_dir_argument, run_main
resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))
def main(run_dir):
    {body}
run_main(main, run_dir_argument(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("imports", "body", "asked"),
    [
        ("import torch", "torch.empty(40 * 2**30, dtype=torch.uint8)", "40.00 GiB asked for; "),
        ("import numpy", "numpy.zeros(50 * 2**30, dtype=numpy.uint8)", "50.00 GiB asked for; "),
        ("", "bytearray(60 * 2**30)", ""),
        ("import mmap", "mmap.mmap(-1, 70 * 2**30)", ""),
    ],
)
def test_each_way_is_the_same_error(imports: str, body: str, asked: str, tmp_path: Path) -> None:
    program = PROGRAM.format(imports=imports, body=body, limit=LIMIT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RANK": "1"}
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 6, done.stderr
    told = json.loads((tmp_path / "logs/attempt_1/rank_1.error.json").read_text())
    [problem] = told["problems"]
    assert problem["what"].startswith(f"out of memory: {asked}this process holds ")
    assert "the limit on its address space is 8.00 GiB" in problem["what"] and "are free on the host" in problem["what"]
    assert "micro_batch_tokens" in problem["fix"] and "raise the limit (ulimit -v)" in problem["fix"]
    # Where it was met helps to find what took the memory.
    assert told["kind"] == "TrainingError" and "in main" in told["traceback"]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 1.10 GiB is free."),
        RuntimeError("CUDA error: out of memory\nException raised from malloc (most recent call first):\nframe #0"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_an_accelerators_own_words_are_kept(error: RuntimeError) -> None:
    known = as_ft_error(error)
    assert isinstance(known, TrainingError) and known.problems[0].what.startswith("out of memory on the accelerator: CUDA")
    assert "frame #0" not in str(known) and "offload_optimizer" in known.problems[0].fix


def test_other_words_of_a_host() -> None:
    for error in (
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 1073741824 bytes."),
        RuntimeError("std::bad_alloc"),
        RuntimeError("unable to mmap 1073741824 bytes from file </x>: Cannot allocate memory (12)"),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
        MemoryError(),
    ):
        known = describe_out_of_memory(error)
        assert known is not None and known.problems[0].where == "memory" and str(error)[:40] in str(known)
    for error in (ValueError("x"), OSError(errno.EIO, "x"), RuntimeError("mat1 and mat2 shapes cannot be multiplied"), KeyboardInterrupt()):
        assert describe_out_of_memory(error) is None


def test_sizes_in_messages() -> None:
    told = {
        "you tried to allocate 1073741824 bytes. Error code 12": "1.00 GiB",
        "Tried to allocate 20.00 MiB. GPU": "20.0 MiB",
        "Unable to allocate 7.45 GiB for an array": "7.45 GiB",
        "std::bad_alloc": "",
    }
    assert {text: asked_for(text) for text in told} == told


def test_the_lowest_limit_of_the_control_groups(tmp_path: Path) -> None:
    root, own = tmp_path / "cgroup", tmp_path / "own"
    (root / "job/step").mkdir(parents=True)
    own.write_text("0::/job/step\n")
    assert cgroup_limit(root, own) is None
    for group, limit in (("", "max"), ("job", str(2**30)), ("job/step", str(2**31))):
        (root / group / "memory.max").write_text(limit + "\n")
    assert cgroup_limit(root, own) == 2**30
    # Version 1, where no limit is a number.
    (root / "memory/job").mkdir(parents=True)
    (root / "memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    (root / "memory/job/memory.limit_in_bytes").write_text("4096\n")
    own.write_text("5:cpu,cpuacct:/x\n4:memory:/job\n0::/\n")
    assert cgroup_limit(root, own) == 4096
    assert cgroup_limit(root, tmp_path / "missing") is None


def test_a_real_control_group_or_none() -> None:
    limit = cgroup_limit(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))
    assert limit is None or limit > resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
