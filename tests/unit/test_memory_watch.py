"""The memory watch on made readings and in a loop that trains: leaks of some KiB an update are found and named, and nothing else is."""

from __future__ import annotations

import gc
import itertools
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ftcore.diagnostics import memory_use
from ftcore.diagnostics.findings import Finding
from ftcore.diagnostics.memory_use import host_bytes, used_bytes
from ftcore.diagnostics.memory_watch import LEAST_BYTES_AN_UPDATE, WARMUP, WINDOW, WINDOWS, MemoryWatch, fit_window
from ftcore.diagnostics.tensor_census import Census, Kind, grown, take_census

EARLIEST = WARMUP + WINDOWS * WINDOW
KIB, MIB = 2**10, 2**20


def watch(readings: list[int], census: Callable[[], Census] = Census) -> list[Finding]:
    following = iter([0] * WARMUP + readings)
    watcher = MemoryWatch(lambda: next(following), census)
    found = [watcher.sample(update) for update in range(1, WARMUP + len(readings) + 1)]
    return [finding for finding in found if finding is not None]


def test_steady_growth_is_told_once() -> None:
    found = watch([10**9 + MIB * place for place in range(10 * WINDOW)])
    assert [finding.update for finding in found] == [EARLIEST]
    assert "memory grows by 1 MiB an update" in found[0].what
    assert [cause.name for cause in found[0].causes] == ["not_tensors"]
    assert "explain 0 of 20 MiB" in found[0].text()


def test_it_is_told_again_after_the_growth_had_ended() -> None:
    rise, rest = [MIB] * (3 * WINDOW), [0] * (2 * WINDOW)
    assert len(watch(list(itertools.accumulate(rise + rest + rise)))) == 2


@pytest.mark.parametrize("size", [64 * KIB, 64 * MIB])
def test_noise_steps_and_plateaus_are_no_leak(size: int) -> None:
    for seed in range(20):
        noise = random.Random(seed)
        level = [10**9 + noise.randrange(size) for _ in range(12 * WINDOW)]
        step = [value + (10 * size if place > 100 else 0) for place, value in enumerate(level)]
        filling = [10**9 + int(20 * size * (1 - 0.95**place)) for place in range(12 * WINDOW)]
        assert not watch(level)
        assert not watch(step)
        assert not watch(filling)


def test_growth_below_the_least_is_not_told() -> None:
    assert not watch([(LEAST_BYTES_AN_UPDATE - 1) * place for place in range(6 * WINDOW)])
    assert watch([(LEAST_BYTES_AN_UPDATE + 1) * place for place in range(6 * WINDOW)])


def test_tensors_that_explain_the_growth_are_suspected() -> None:
    kind, counts = Kind((4, 8), "float32", "cpu"), itertools.count(1)

    def census() -> Census:
        count = next(counts)
        return Census(Counter({kind: count}), Counter({kind: 15 * MIB * count}))

    (finding,) = watch([MIB * place for place in range(4 * WINDOW)], census)
    assert [(cause.name, cause.suspected) for cause in finding.causes] == [("tensors", True)]
    (finding,) = watch([4 * MIB * place for place in range(4 * WINDOW)], census)
    assert [(cause.name, cause.suspected) for cause in finding.causes] == [("not_tensors", True), ("tensors", False)]
    assert "1 x float32 [4, 8] on cpu, 15 MiB more" in finding.causes[1].what


def test_the_line_through_a_window() -> None:
    fit = fit_window([(2 * place, 100 + 14 * place) for place in range(WINDOW)])
    assert (fit.slope, fit.error, fit.growth) == pytest.approx((7.0, 0.0, 280.0))
    assert fit.is_steady


def test_a_census_counts_shared_storage_once_and_keeps_nothing() -> None:
    before = take_census()
    held = torch.zeros(300, 7)
    view = held[:100]
    sparse, unreal = torch.eye(3).to_sparse(), torch.empty(300, 7, device="meta")
    after = take_census()
    growth = grown(before, after)
    assert growth.total() == held.numel() * 4
    assert after.count[Kind((300, 7), "float32", "cpu")] == before.count[Kind((300, 7), "float32", "cpu")] + 1
    assert view.shape[0] + sparse.shape[0] + unreal.shape[0] == 403
    del held, view
    assert Kind((300, 7), "float32", "cpu") not in take_census().count


def print_reads() -> None:
    """Prints by how much a read grows for 20 MB of small blocks, and by how much once they are freed."""
    gc.disable()
    before = host_bytes()
    held = [torch.ones(1000) for _ in range(5000)]
    grew = host_bytes() - before
    held.clear()
    sys.stdout.write(json.dumps([grew, host_bytes() - before]) + "\n")


def test_a_read_tells_of_small_blocks_and_not_of_freed_ones() -> None:
    grew, left = in_a_fresh_process("print_reads()")
    assert 0.9 * 20 * MIB < grew < 1.3 * 20 * MIB
    assert abs(left) < 0.2 * grew


def test_a_c_library_without_mallinfo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_use, "anonymous_bytes", lambda: 10**12)
    assert 0 < host_bytes() < 10**12
    monkeypatch.setattr(memory_use, "_mallinfo", None)
    assert host_bytes() == 10**12


def make_step() -> Callable[[int], torch.Tensor]:
    """One update of a small Llama on rows of changing lengths; returns its loss."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def update(number: int) -> torch.Tensor:
        ids = torch.randint(97, (4, 20 + number % 13))
        loss: torch.Tensor = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return update


def train(step: Callable[[int], torch.Tensor], updates: int, leak: Callable[[int], object]) -> list[Finding]:
    watcher, kept, found = MemoryWatch(), [], []
    for update in range(1, updates + 1):
        loss = step(update)
        kept.append(leak(update))
        found.append(watcher.sample(update))
        del loss
    return [finding for finding in found if finding is not None]


LEAKS: dict[str, Callable[[int], object]] = {
    "16": lambda _: torch.ones(16, 256),
    "320": lambda _: torch.ones(320, 256),
    "numbers": lambda update: [float(update + place) for place in range(5000)],
    "none": lambda _: None,
}


def report(leak: str, updates: int) -> None:
    """Prints what was found in a loop with that leak, as JSON; runs in a process of its own, whose heap no other test has used."""
    found = train(make_step(), updates, LEAKS[leak])
    sys.stdout.write(json.dumps([{"what": finding.what, "text": finding.text(), "first": finding.causes[0].name} for finding in found]) + "\n")


def found_in_a_fresh_process(leak: str, updates: int) -> list[dict[str, str]]:
    found: list[dict[str, str]] = in_a_fresh_process(f"report({leak!r}, {updates})")
    return found


def in_a_fresh_process(call: str) -> Any:
    """What a function of this file prints, from JSON."""
    code = f"from tests.unit import test_memory_watch; test_memory_watch.{call}"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=240, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("kib", [16, 320])
def test_a_loop_that_leaks_a_tensor_each_update(kib: int) -> None:
    (finding,) = found_in_a_fresh_process(str(kib), EARLIEST + 2 * WINDOW)
    assert f"{WINDOW} x float32 [{kib}, 256] on cpu" in finding["text"]
    assert "host memory grows by" in finding["what"]


def test_a_loop_that_leaks_numbers() -> None:
    (finding,) = found_in_a_fresh_process("numbers", EARLIEST + 2 * WINDOW)
    assert finding["first"] == "not_tensors"
    assert "look for lists and caches" in finding["text"]


def test_a_loop_without_a_leak_stays_silent() -> None:
    assert not found_in_a_fresh_process("none", 150)


def test_a_sample_costs_less_than_a_millisecond_of_a_fragmented_heap_too() -> None:
    """Time of this thread, since a busy machine takes the processor away for whole slices of milliseconds; of the quickest round."""
    held = [torch.ones(size % 977 + 1) for size in range(20_000)]
    for kept in (held, held[::2]):  # the second leaves 10,000 free blocks for malloc to walk
        held = kept
        watcher = MemoryWatch(census=Census)
        for update in range(WARMUP):
            watcher.sample(update)
        rounds = []
        for first in range(WARMUP, WARMUP + 500, 100):
            started = time.thread_time()
            for update in range(first, first + 100):
                watcher.sample(update)
            rounds.append(time.thread_time() - started)
        assert min(rounds) / 100 < 1e-3


def test_used_bytes_is_the_hosts_where_there_is_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_use, "host_bytes", lambda: 4711)
    if not torch.cuda.is_available():
        assert used_bytes() == 4711
