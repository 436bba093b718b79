"""A digest of ftlaunch's own code, the same function on both sides. Standard library alone: hosts are sent this file."""

from __future__ import annotations

import hashlib
import os
from importlib.machinery import PathFinder

PACKAGES = ("launcher", "ftcore")


def find_root(import_root: str, paths: list[str]) -> str:
    """The folder that holds the packages: `import_root` when given, else where Python would import the launcher from; empty when nowhere."""
    if import_root:
        return import_root
    found = PathFinder.find_spec(PACKAGES[0], paths)
    folders = list(found.submodule_search_locations or ()) if found is not None else []
    return os.path.dirname(folders[0]) if folders else ""


def code_digest(root: str) -> str:
    """16 hex digits over the names and bytes of the packages' Python files below `root`; empty when a package has none there."""
    total = hashlib.sha256()
    for package in PACKAGES:
        files = sorted(_python_files(os.path.join(root, package)))
        if not files:
            return ""
        for path in files:
            with open(path, "rb") as file:
                content = hashlib.sha256(file.read()).hexdigest()
            total.update(f"{os.path.relpath(path, root)} {content}\n".encode())
    return total.hexdigest()[:16]


def _python_files(folder: str) -> list[str]:
    return [os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names if name.endswith(".py")]
