"""The counter of live storages, on sums known by hand."""

from __future__ import annotations

import gc

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ftcore.exact_memory_tracker import StorageTracker

KB = 40_000
"""Bytes of [100, 100] in fp32."""


def test_each_storage_counts_once_until_it_is_freed() -> None:
    tracker = StorageTracker()
    with tracker:
        tensor = torch.zeros(100, 100)
        views = [tensor.view(-1), tensor[3:], tensor.t()]
        assert tracker.total == KB
        other = tensor + 1
        assert tracker.total == 2 * KB and tracker.peak == 2 * KB
        del tensor
        assert tracker.total == 2 * KB, "its views hold it"
        del views, other
        gc.collect()
        assert tracker.total == 0 and tracker.peak == 2 * KB
        tracker.restart_peak()
        assert tracker.peak == 0


def test_a_graph_holds_what_it_saved() -> None:
    tracker = StorageTracker()
    with tracker:
        tensor = torch.zeros(100, 100, requires_grad=True)
        result = (tensor * 2).exp()
        assert tracker.total == 2 * KB, "the product is gone, the power is saved"
        assert tracker.peak == 3 * KB and tracker.peak_operator == "aten.exp.default"
        result.sum().backward()
        assert tensor.grad is not None
        del result
        assert tracker.total == 2 * KB


def test_labels_of_what_was_there_and_what_came() -> None:
    before = torch.zeros(100, 100)
    tracker = StorageTracker()
    with tracker:
        tracker.sweep(lambda tensor: "before")
        assert tracker.bytes_of(before, "before") == KB
        start = tracker.total
        with tracker.labelled("new"):
            new = before * 2
        assert (tracker.bytes["new"], tracker.bytes_of(new, "new"), tracker.bytes_of(new, "before")) == (KB, KB, 0)
        assert tracker.mark([new, new.view(-1), before], "mine", keep=("before",)) == KB
        assert tracker.bytes["new"] == 0
        tracker.relabel("mine", "yours")
        assert tracker.bytes["yours"] == KB and tracker.total == start + KB
        new.untyped_storage().resize_(0)
        new.view(-1)
        assert tracker.bytes["yours"] == 0


def test_fake_tensors_count_and_meta_tensors_do_not() -> None:
    tracker = StorageTracker()
    with tracker:
        meta = torch.zeros(100, 100, device="meta")
        assert tracker.total == 0 and tracker.mark([meta], "meta") == 0
    with FakeTensorMode(), tracker:
        fake = torch.zeros(100, 100, requires_grad=True)
        fake.exp().sum().backward()
        assert tracker.total == 2 * KB
