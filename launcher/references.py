"""What a spec points at outside itself: models, data files, files in packages. Nothing is imported, downloaded or parsed."""

from __future__ import annotations

import glob
import importlib.util
import itertools
import os
import re
from pathlib import Path, PurePosixPath

from ftcore.spec.data_paths import SUFFIXES, file_kind, path_kind
from ftcore.spec.errors import Problem
from ftcore.spec.names import CHAT_TEMPLATES, nearest

BUILTIN_MODELS = ("builtin:tiny-llama",)
BUILTIN_DATA = ("builtin:extraction/train", "builtin:extraction/eval")
MOST_NAMES = 5000
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+@=#-]{0,250}")
_PACKAGE = re.compile(r"package:([A-Za-z_]\w*)/(.+)")


def absolute(path: str) -> str:
    """The absolute form of a path that may start with `~`; the current folder is the base."""
    return os.path.abspath(os.path.expanduser(path))


def absolute_model(name: str) -> str:
    """`name` with a file or folder made absolute; hub ids and `builtin:`, `package:` references unchanged."""
    if name.startswith(("builtin:", "package:")) or not os.path.exists(os.path.expanduser(name)):
        return name
    return absolute(name)


def absolute_data(path: str) -> str:
    """`path`, or its pattern, made absolute; hub ids and `builtin:` references unchanged."""
    return absolute(path) if path_kind(path) in ("local", "glob") else path


def absolute_template(name: str) -> str:
    """A template's file made absolute; the name of one that ships with ftlaunch unchanged."""
    return absolute(name) if name and name not in CHAT_TEMPLATES else name


def check_model(name: str) -> Problem | None:
    """Why `name` can't be a model, or None. A hub id is judged by its shape only."""
    if name.startswith("builtin:"):
        return None if name in BUILTIN_MODELS else Problem(what=f"there is no {name}", fix=nearest(name, list(BUILTIN_MODELS)))
    if name.startswith("package:"):
        return _check_package(name)
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        return _check_folder(path)
    if os.path.exists(path):
        fix = "give a folder with config.json, a .gguf file or a hub id"
        # Reading a pipe or a device might never end.
        return None if name.endswith(".gguf") and os.path.isfile(path) else Problem(what=f"{name} is a file, but not a .gguf file", fix=fix)
    if name.startswith((".", "/", "~")) or name.endswith(".gguf"):
        return Problem(what=f"no such file or folder: {absolute(name)}", fix="relative paths start at the current folder; a hub id looks like `owner/name`")
    if not _HUB_ID.fullmatch(name) or ".." in name or "--" in name or name.endswith((".", "-", ".git")):
        return Problem(what=f"'{name}' is no file, no folder and no hub id", fix="a hub id looks like `owner/name`")
    return None


def check_revision(revision: str) -> Problem | None:
    """Why `revision` can't be a branch, a tag or a commit (git-check-ref-format), or None: the hub's cache has a file of that name."""
    if _REVISION.fullmatch(revision) and ".." not in revision and "//" not in revision and not revision.endswith((".", "/", ".lock")):
        return None
    return Problem(what=f"'{revision}' is no branch, tag or commit", fix="give its name, such as main, or the commit's 40 digits")


def check_data(path: str) -> Problem | None:
    """Why `path` can't be a data set, or None. A hub id is judged by its shape only."""
    kind = path_kind(path)
    if kind == "builtin":
        return None if path in BUILTIN_DATA else Problem(what=f"there is no {path}", fix=f"there are {' and '.join(BUILTIN_DATA)}")
    full = absolute(path)
    if kind == "glob":
        found = next(glob.iglob(full, recursive=True), None)
        return None if found else Problem(what=f"no file fits {full}", fix="relative patterns start at the current folder; ** goes through folders")
    if kind == "hub":
        return None
    if os.path.isdir(full):
        return _check_data_folder(full)
    if not os.path.exists(full):
        return Problem(what=f"no such file: {full}", fix="relative paths start at the current folder; a hub id looks like `owner/name`")
    if not os.path.isfile(full):
        return Problem(what=f"{full} is no regular file but a pipe, a socket or a device", fix="write the rows to a file: they are read more than once")
    return None


def _check_data_folder(folder: str) -> Problem | None:
    """A folder has to hold a file of a kind that is read, also further down; the first few thousand names are looked at."""
    names = (name for _, _, files in os.walk(folder) for name in files)
    if any(file_kind(name) for name in itertools.islice(names, MOST_NAMES)):
        return None
    return Problem(what=f"{folder} holds no data file", fix=f"name a folder with files that end in {', '.join(SUFFIXES)}")


def check_template(name: str) -> Problem | None:
    """Why `name` can't be a chat template, or None."""
    if name in CHAT_TEMPLATES or os.path.isfile(absolute(name)):
        return None
    if os.sep in name or name.endswith((".jinja", ".jinja2", ".j2", ".txt")):
        return Problem(what=f"no such file: {absolute(name)}", fix="relative paths start at the current folder")
    return Problem(what=f"there is no template {name}", fix=f"{nearest(name, list(CHAT_TEMPLATES))}, or give a .jinja file")


def check_adapter(path: str) -> Problem | None:
    """Why `path` can't be an adapter to start from, or None."""
    full = absolute(path)
    if not os.path.isdir(full):
        return Problem(what=f"no such folder: {full}", fix="name the folder of an adapter, such as an export of an earlier run")
    if not os.path.exists(os.path.join(full, "adapter_config.json")):
        wrote = "name the folder that PEFT's save_pretrained or `ftlaunch export --format adapter` wrote"
        return Problem(what=f"{full} has no adapter_config.json", fix=_several_adapters(full) or wrote)
    return None


def is_class(name: str) -> bool:
    """Whether an installed package has a module of its own with this class (`transformers.models.llama.modeling_llama.LlamaMLP`); nothing is imported."""
    package, *modules, last = name.split(".")
    if not all(part.isidentifier() for part in (package, *modules, last)):
        return False
    for folder in package_folders(package) or ():
        for file in (folder.joinpath(*modules).with_suffix(".py") if modules else folder / "__init__.py", folder.joinpath(*modules, "__init__.py")):
            if file.is_file() and re.search(rf"^class {last}\b", file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE):
                return True
    return False


def package_folders(package: str) -> list[Path] | None:
    """Where the files of an installed package lie, found without importing it; none for a module that is no folder. None when it is not installed."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:
        # A module that was not imported from a file, such as __main__.
        spec = None
    return None if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]


def check_nvme(path: str) -> Problem | None:
    """Why `path` can't be the NVMe folder, or None; whether it exists is each host's own affair."""
    return Problem(what=f"{absolute(path)} is a file", fix="name a folder") if os.path.isfile(absolute(path)) else None


def _check_folder(path: str) -> Problem | None:
    if os.path.exists(os.path.join(path, "config.json")):
        return None
    if os.path.exists(os.path.join(path, "adapter_config.json")):
        return Problem(what=f"{path} holds an adapter, not a model", fix="name the base model; or merge the adapter into it first")
    return Problem(what=f"{path} has no config.json", fix=_several_adapters(path) or "name the folder that save_pretrained wrote")


def _several_adapters(path: str) -> str:
    """What to name in place of a folder that holds one adapter a folder; empty for any other."""
    inner = sorted(entry.path for entry in os.scandir(path) if os.path.exists(os.path.join(entry.path, "adapter_config.json")))
    return f"it holds several adapters: name one of {', '.join(inner)}" if inner else ""


def _check_package(name: str) -> Problem | None:
    """Finds the file of `package:NAME/FILE` without importing the package."""
    match = _PACKAGE.fullmatch(name)
    if match is None or ".." in PurePosixPath(match[2]).parts or match[2].startswith("/"):
        return Problem(what=f"'{name}' does not name a file in a package", fix="write `package:NAME/FILE`, with NAME as in `import NAME`")
    package, file = match.groups()
    folders = package_folders(package)
    if folders is None:
        return Problem(what=f"the Python package {package} is not installed", fix=f"pip install --no-deps {package.replace('_', '-')}")
    if not any((folder / file).is_file() for folder in folders):
        return Problem(what=f"the Python package {package} has no file {file}", fix=f"look in {folders[0]}" if folders else "name a package that is a folder")
    return None
