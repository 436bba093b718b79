"""Configurations and splits that a data set's README names, resolved by the library `datasets`, whose rules they are."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from ftcore.spec.errors import DataError

Splits = dict[str, list[str]]
"""Split -> paths of its files inside the data set's folder."""


def has_configurations(readme: Path) -> bool:
    """Whether the head of a README.md (between two lines of ---) has the key `configs`."""
    try:
        text = readme.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    if not text.startswith("---"):
        return False
    try:
        head = yaml.safe_load(text.removeprefix("---").partition("\n---")[0])
    except yaml.YAMLError:
        return False
    return isinstance(head, dict) and bool(head.get("configs"))


def resolved_splits(folder: Path, shown: str, name: str, where: str) -> Splits:
    """The files of each split of the configuration `name` ("": the default one, or the only one) of a folder laid out like a data set of the hub.

    The files may be empty: only their names are looked at. Raises DataError naming the configurations that there are.
    """
    import datasets  # type: ignore[import-untyped]

    real = folder.resolve()
    try:
        configurations = datasets.get_dataset_config_names(str(real))
        name = name or datasets.get_dataset_default_config_name(str(real)) or ""
        if name not in configurations:
            what = f"{shown} has no configuration {name!r}" if name else f"{shown} has several configurations and no default"
            raise DataError(what, where=f"{where}.name", fix=f"name one of: {', '.join(configurations)}")
        with TemporaryDirectory(prefix="ftlaunch-") as aside:
            builder = datasets.load_dataset_builder(str(real), name=name, cache_dir=aside)
            found: Any = builder.config.data_files or {}
    except (ValueError, OSError, RuntimeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"the files of {shown} can't be told from its README and names: {reason}", where=where, fix="name its files with a pattern") from error
    return {str(split): [Path(file).relative_to(real).as_posix() for file in files] for split, files in found.items()}
