"""What the sets of a spec are called in reports."""

from __future__ import annotations

from ftcore.spec.sections import DataSection


def set_names(data: DataSection) -> dict[str, str]:
    """Key of a set -> its name: its own, or the key where a training set and a held-out one share a name."""
    own = {key: key.removeprefix("data.").removeprefix("train_sets.").removeprefix("eval_sets.") for key in data.all_sets}
    return {key: name if list(own.values()).count(name) == 1 else key for key, name in own.items()}
