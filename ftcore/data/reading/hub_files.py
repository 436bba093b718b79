"""Data sets of the Hugging Face hub: their files, in the hub's own cache, at one commit."""

from __future__ import annotations

import glob
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ftcore.data.reading.folders import check_one_kind, data_file, is_data
from ftcore.data.reading.readme import Splits, has_configurations, resolved_splits
from ftcore.data.reading.rows import Source
from ftcore.data.reading.splits import Purpose, chosen
from ftcore.hub import Wanted, fetching
from ftcore.spec.data_sections import DataSet
from ftcore.spec.errors import DataError
from ftcore.spec.events import emit
from ftcore.spec.run_dir import write_atomic

COMMIT = re.compile(r"[0-9a-f]{40}")
OF_MANY = re.compile(r"(?P<stem>.*-)(?P<index>[0-9]{5})-of-(?P<count>[0-9]{5})(?P<suffix>.*)")
README = "README.md"


def hub_source(dataset: DataSet, where: str, *, purpose: Purpose, cache_dir: Path) -> Source:
    """The files of a split of a data set of the hub, downloaded if need be. Without network the hub's cache is used.

    Raises DataError when there is no such data set, revision, configuration or split, it is not public, or neither network nor cache have it.
    """
    hub = _Repository(dataset, where, cache_dir)
    splits = hub.splits()
    split = chosen(splits, dataset.split, purpose=purpose, of=f"the data set {dataset.path}", where=where)
    names = splits[split]
    hub.fetch(names)
    files = [data_file(hub.folder / name, f"{dataset.path}/{name}") for name in names]
    check_one_kind(files, dataset.path, where)
    return Source(files=tuple(files), revision=hub.folder.name)


def hub_names(dataset: DataSet, where: str, *, purpose: Purpose, cache_dir: Path) -> tuple[list[str], str]:
    """The paths of a split's files in a data set of the hub, and the commit; none is downloaded. Raises DataError as `hub_source`."""
    hub = _Repository(dataset, where, cache_dir)
    splits = hub.splits()
    return splits[chosen(splits, dataset.split, purpose=purpose, of=f"the data set {dataset.path}", where=where)], hub.folder.name


class _Repository:
    """One data set at one commit; what was found out about a commit is kept, since it can't change."""

    def __init__(self, dataset: DataSet, where: str, cache_dir: Path) -> None:
        self.dataset, self.where = dataset, where
        self.revision = dataset.revision or "main"
        self.wanted = Wanted(kind="data set", name=dataset.path, revision=self.revision, where=where, revision_where=f"{where}.revision", error=DataError)
        self._known = cache_dir / "hub"
        self.folder = self._opened()

    def splits(self) -> Splits:
        """Split -> paths of its files in the data set."""
        names, is_whole = self._names()
        data = [name for name in names if is_data(name.rpartition("/")[2]) and not _is_hidden(name)]
        if not data:
            raise self._no_data(names)
        if not is_whole:
            self._check_shards(data)
            return self._resolved(data)
        if README in names:
            self.fetch([README])  # another program may have fetched the rows alone
        key = hashlib.sha256(f"{self.dataset.path}\n{self.folder.name}\n{self.dataset.name}".encode()).hexdigest()[:32]
        return _remembered(self._known / f"splits-{key}.json", lambda: self._resolved(data))

    def fetch(self, names: Sequence[str]) -> None:
        """Downloads what is not there yet."""
        missing = [name for name in names if not (self.folder / name).exists()]
        if missing:
            emit("progress", stage="prepare", done=0, total=0, text=f"fetching {len(missing)} files of {self.dataset.path}")
            self._snapshot(self.folder.name, [glob.escape(name) for name in missing])

    def _opened(self) -> Path:
        if COMMIT.fullmatch(self.revision):
            from huggingface_hub import errors, snapshot_download

            try:
                return Path(snapshot_download(self.dataset.path, repo_type="dataset", revision=self.revision, local_files_only=True))
            except (errors.LocalEntryNotFoundError, errors.HFValidationError):
                pass  # asked of the hub below
        return self._snapshot(self.revision, [README])

    def _snapshot(self, revision: str, patterns: Sequence[str]) -> Path:
        from huggingface_hub import snapshot_download

        with fetching(self.wanted):
            return Path(snapshot_download(self.dataset.path, repo_type="dataset", revision=revision, allow_patterns=list(patterns)))

    def _names(self) -> tuple[list[str], bool]:
        """(paths of all its files, whether the hub said so); without network, those that are in the cache."""
        from huggingface_hub import list_repo_files

        key = hashlib.sha256(f"{self.dataset.path}\n{self.folder.name}".encode()).hexdigest()[:32]
        try:
            listed = _remembered(
                self._known / f"files-{key}.json",
                lambda: {"files": sorted(list_repo_files(self.dataset.path, repo_type="dataset", revision=self.folder.name))},
            )
            return listed["files"], True
        except Exception:  # noqa: BLE001 - no network raises what the library's HTTP client raises, and that client is another one in each of its versions
            emit("note", text=f"the hub can't be asked which files {self.dataset.path} has: those in its cache are taken")
            return sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file()), False

    def _resolved(self, data: Sequence[str]) -> Splits:
        # Only names are looked at: empty files stand for those that aren't downloaded.
        with TemporaryDirectory(prefix="ftlaunch-") as aside:
            folder = Path(aside)
            for name in data:
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            readme = self.folder / README
            if has_configurations(readme):
                (folder / README).write_bytes(readme.read_bytes())
            return resolved_splits(folder, f"the data set {self.dataset.path}", self.dataset.name, self.where)

    def _check_shards(self, names: Sequence[str]) -> None:
        missing = []
        for name in names:
            if found := OF_MANY.fullmatch(name):
                others = (f"{found['stem']}{index:05}-of-{found['count']}{found['suffix']}" for index in range(int(found["count"])))
                missing += [other for other in others if other not in names]
        if missing:
            what = f"the hub's cache has only a part of {self.dataset.path}: {', '.join(sorted(set(missing))[:3])} is missing, and the hub can't be reached"
            raise DataError(what, where=self.where, fix="run once with network, or fetch it whole: hf download --repo-type dataset NAME")

    def _no_data(self, names: Sequence[str]) -> DataError:
        script = f"{self.dataset.path.rpartition('/')[2]}.py"
        if script in names:
            what = f"the data set {self.dataset.path} is made by code ({script}), which is not run"
            return DataError(what, where=self.where, fix=f"take the hub's own conversion: {self.where}.revision: refs/convert/parquet")
        what = f"the data set {self.dataset.path} has no data files; it holds {', '.join(names[:10]) or 'nothing'}"
        return DataError(what, where=self.where, fix="name one with JSON, CSV, parquet or Arrow files")


def _is_hidden(name: str) -> bool:
    # An absolute path or one with .. would leave the folder of the data set.
    return name.startswith("/") or any(part.startswith((".", "__")) for part in name.split("/"))


def _remembered(path: Path, find: Callable[[], dict[str, list[str]]]) -> dict[str, list[str]]:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(known, dict):
            return known
    except (OSError, ValueError):
        pass  # nothing remembered, or not readable
    found = find()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(found) + "\n")
    return found
