"""The mask of accelerators is kept to and never widened (case H09)."""

from __future__ import annotations

import pytest

from ftcore.spec.errors import ClusterError
from launcher.device_mask import device_mask, visible_entries
from launcher.topology import count_visible


@pytest.mark.parametrize(
    ("visible", "devices", "mask"),
    [
        (None, (), None),
        ("4,5", (), None),
        (None, (0, 2), "0,2"),
        ("4,5,6", (0, 2), "4,6"),
        ("7", (0,), "7"),
        ("GPU-a, MIG-b", (1,), "MIG-b"),
        ("3,-1,2", (0,), "3"),
    ],
)
def test_masks(visible: str | None, devices: tuple[int, ...], mask: str | None) -> None:  # H09
    assert device_mask(visible, devices) == mask


@pytest.mark.parametrize(
    ("visible", "devices", "told"),
    [
        ("4,5", (0, 2), "slot 2 is not among what CUDA_VISIBLE_DEVICES leaves"),
        ("", (0,), "no accelerator"),
        ("3,-1,2", (1,), "1 accelerators"),
        ("7", (1, 2), "slot 1, 2"),
    ],
)
def test_a_slot_outside_the_mask_is_refused(visible: str, devices: tuple[int, ...], told: str) -> None:
    with pytest.raises(ClusterError) as caught:
        device_mask(visible, devices)
    assert told in str(caught.value) and caught.value.problems[0].fix


@pytest.mark.parametrize("visible", ["", "0", "0,1", "1,-1,0", "GPU-x", "NoDevFiles", " 1 , 0 ", "0,,1"])
def test_as_many_as_topology_counts(visible: str) -> None:
    assert len(visible_entries(visible)) == count_visible(visible, 8)
