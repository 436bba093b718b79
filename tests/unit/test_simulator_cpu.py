"""The simulator against our own runs on CPU cores, as benchmarks/cpu_points.csv holds them: from one rank to two."""

from __future__ import annotations

from benchmarks.cpu_points import errors, recorded


def test_two_ranks_are_foretold_from_one():
    found = errors(recorded())
    assert found and all(abs(error) <= 0.15 for error in found.values()), found
