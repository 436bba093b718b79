"""Data sets of the hub that are streamed: which files, at which commit, and what identifies their bytes; none is downloaded."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from ftcore.data.reading.folders import check_one_kind
from ftcore.data.reading.hub_files import hub_names
from ftcore.data.reading.remote import remote_path
from ftcore.data.reading.rows import DataFile, Source
from ftcore.hub import Wanted, fetching
from ftcore.spec.data_paths import file_kind
from ftcore.spec.errors import DataError
from ftcore.spec.sections import TrainingSet


def hub_files(dataset: TrainingSet, where: str, cache_dir: Path) -> tuple[Source, list[str]]:
    """The files of a data set of the hub, as they are read from there, and the id of each one's content.

    Raises DataError when there is no such data set, revision, configuration or split, it is not public, or the hub can't be reached.
    """
    from huggingface_hub.hf_api import RepoFile

    names, commit = hub_names(dataset, where, purpose="train", cache_dir=cache_dir)
    wanted = Wanted(kind="data set", name=dataset.path, revision=commit, where=where, revision_where=f"{where}.revision", error=DataError)
    with fetching(wanted):
        found = _paths_info(dataset.path, names, commit)
    infos = {info.path: info for info in found if isinstance(info, RepoFile)}
    missing = [name for name in names if name not in infos]
    if missing:
        raise DataError(f"the hub says nothing of {', '.join(missing[:3])} of {dataset.path}", where=where, fix="try again, or name another revision")
    files, blobs = [], []
    for name in names:
        info = infos[name]
        kind, compression = file_kind(name) or ("jsonl", "")
        path = remote_path(dataset.path, commit, name)
        files.append(DataFile(path=path, name=f"{dataset.path}/{name}", kind=kind, compression=compression, size=info.size))
        blobs.append(info.lfs.sha256 if info.lfs is not None else info.blob_id)
    check_one_kind(files, dataset.path, where)
    return Source(files=tuple(files), revision=commit), blobs


def _paths_info(repository: str, names: list[str], commit: str) -> list[Any]:
    """What the hub says of these files. Raises OSError, or what the hub's library raises for a refusal."""
    from huggingface_hub import HfApi, errors

    try:
        return list(HfApi().get_paths_info(repository, names, revision=commit, repo_type="dataset"))
    except errors.HfHubHTTPError:
        raise
    except Exception as error:  # without an answer it is what the library's HTTP client raises, and that is another one in each of its versions
        raise OSError(f"{type(error).__name__}: {error}") from error


def remote_digest(source: Source, blobs: list[str]) -> str:
    """sha256 over what is in the files, by the ids of their contents."""
    digest = hashlib.sha256()
    for file, blob in zip(source.files, blobs, strict=True):
        digest.update(f"{file.kind} blob {blob}\n".encode())
    return digest.hexdigest()
