"""Work spread over processes: in order, with its errors, and nothing left of it whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ftcore.data.workers import processes_for, results, usable_cores
from ftcore.spec.errors import DataError, SpecError

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Work:
    """Doubles numbers; some it can't."""

    fails: str = ""

    def __call__(self) -> Callable[[int], tuple[int, int]]:
        if self.fails == "start":
            raise SpecError("no tokenizer", where="model.model_name_or_path")
        return self.double

    def double(self, number: int) -> tuple[int, int]:
        if self.fails == "import":
            import torch

            assert torch
        if number == 7 and self.fails == "error":
            raise DataError("row 7 is none", fix="mend it")
        if number == 7 and self.fails == "bug":
            raise ZeroDivisionError("by nothing")
        if number == 7 and self.fails == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 7 and self.fails == "exit":
            os._exit(3)
        if self.fails == "slow":
            time.sleep(600)
        return 2 * number, os.getpid()


def test_results_come_in_order_from_other_processes() -> None:
    made = list(results(Work(), iter(range(40)), 2))
    assert [number for number, _ in made] == list(range(0, 80, 2))
    pids = {pid for _, pid in made}
    assert len(pids) == 2 and os.getpid() not in pids
    assert not any(map(is_alive, pids))


def test_a_hidden_module_is_not_found() -> None:
    with pytest.raises(ImportError, match="torch"):
        list(results(Work("import"), iter(range(2)), 2, ("torch",)))


def test_few_chunks_need_few_processes() -> None:
    made = list(results(Work(), iter(range(2)), 16))
    assert [number for number, _ in made] == [0, 2] and len({pid for _, pid in made}) == 2


def test_one_process_is_this_one() -> None:
    assert {pid for _, pid in results(Work(), iter(range(3)), 1)} == {os.getpid()}


@pytest.mark.parametrize(
    ("fails", "kind", "words"),
    [
        ("start", SpecError, "no tokenizer"),
        ("error", DataError, "row 7 is none\n    fix: mend it"),
        ("bug", ZeroDivisionError, "by nothing"),
        ("killed", DataError, "a process that prepares rows was ended by SIGKILL: the kernel does that when memory runs out"),
        ("exit", DataError, "a process that prepares rows ended by itself with status 3"),
    ],
)
def test_what_goes_wrong_in_a_process_is_told(fails: str, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind) as caught:
        list(results(Work(fails), iter(range(20)), 2))
    assert words in str(caught.value)
    assert ("double" in "".join(getattr(caught.value, "__notes__", []))) == (fails == "bug")


def test_a_process_that_is_gone_before_its_next_chunk() -> None:
    """The chunk can't be handed over any more: told like a death in the middle of one."""
    numbers = iter(range(1000))

    def chunks() -> Iterator[int]:
        for number in numbers:
            time.sleep(0.02 if number > 8 else 0)
            yield number

    with pytest.raises(DataError, match="ended by itself with status 3"):
        list(results(Work("exit"), chunks(), 2))


def test_chunks_that_can_not_be_read() -> None:
    def chunks() -> Iterator[int]:
        yield 1
        raise DataError("the file is cut")

    with pytest.raises(DataError, match="the file is cut"):
        list(results(Work(), chunks(), 2))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_one_that_started_it(signum: signal.Signals) -> None:
    """Ctrl-C, a stop and a kill, in the middle of chunks that take ten minutes."""
    code = (
        "import signal\nfrom tests.unit.test_workers import Work\nfrom ftcore.data.workers import results\n"
        "made = results(Work('slow'), iter(range(9)), 2)\nnext(made)"
    )
    program = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE)
    children = wait_for(lambda: found if len(found := children_of(program.pid)) == 2 else None)
    os.kill(program.pid, signum)
    assert program.wait(60) != 0
    assert program.stderr is not None
    program.stderr.close()
    wait_for(lambda: not any(map(is_alive, children)) or None)


def test_processes_only_where_they_pay() -> None:
    assert [processes_for(size, 64) for size in (1, 31_999_999, 32_000_000, 10**12)] == [1, 1, 2, 16]
    assert processes_for(10**12, 2) == 2
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))


def children_of(pid: int) -> list[int]:
    """Workers among the children of a process, once they run their program."""
    found = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [each for each in found if b"ftcore.data.worker" in Path(f"/proc/{each}/cmdline").read_bytes()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (found := condition()) is not None:
            return found
        time.sleep(0.02)
    raise AssertionError("it never came true")
