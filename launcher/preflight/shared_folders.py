"""Whether the hosts see the same folders as this machine: a file that one writes must be seen by the others, in both directions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.preflight.finding import Finding, error

TITLES = {"run": "the run folder's place", "cache": "the cache"}
_SHARE = {
    "run": "put the run on a disk that all hosts share, at the same path (--output); each rank reads the run's files and writes its part of a checkpoint there",
    "cache": "set FTLAUNCH_CACHE to a folder that all hosts share, at the same path; data is prepared once, on the first host, and read by all",
}


def nearest_folder(path: Path) -> Path:
    """`path`, or the folder above it that exists: what a new folder will be made in."""
    return next((each for each in (path, *path.parents) if each.is_dir()), Path("/"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFiles:
    """This machine's files for one exchange."""

    paths: Mapping[str, str]
    """Folder's name -> file; only those that could be written."""
    greeting: str
    problems: tuple[Finding, ...]

    def order(self, own: str) -> dict[str, Any]:
        """What a host is told; `own` ends the names of its files."""
        return {"do": "folders", "files": dict(self.paths), "greeting": self.greeting, "own": own}


@contextlib.contextmanager
def probe_files(folders: Mapping[str, Path], token: str) -> Iterator[ProbeFiles]:
    """Writes a file into each folder, and removes it afterwards, with those of the hosts that are seen from here."""
    paths, problems = {}, []
    for name, folder in folders.items():
        path = folder / f".ftlaunch-probe-{token}-{name}"
        try:
            path.write_text(token, encoding="utf-8")
            paths[name] = str(path)
        except OSError as failure:
            what = f"this machine can't write to {folder} ({TITLES[name]}): {failure.strerror}"
            problems.append(error("", "shared", what, "allow this user to write there, or choose another place"))
    try:
        yield ProbeFiles(paths=paths, greeting=token, problems=tuple(problems))
    finally:
        for text in paths.values():
            for path in (Path(text), *Path(text).parent.glob(f"{Path(text).name}.*")):
                with contextlib.suppress(OSError):
                    path.unlink()


def is_seen_here(files: ProbeFiles, name: str, own: str) -> bool:
    """Whether a host's own file has arrived on this machine."""
    try:
        return Path(f"{files.paths[name]}.{own}").read_text(encoding="utf-8") == f"{files.greeting} {own}"
    except (OSError, UnicodeDecodeError):
        return False


def shared_findings(host: str, answer: Mapping[str, Any] | None, files: ProbeFiles, own: str) -> Iterator[tuple[str, Finding]]:
    """Folder's name and finding for each folder that `host` does not share with this machine."""
    for name, path in files.paths.items():
        folder, title = Path(path).parent, TITLES[name]
        found = (answer or {}).get("folders", {}).get(name)
        if found is None:
            yield name, error(host, "shared", f"{host}: {folder} ({title}) did not answer in time", f"see to the mount on {host}: its file system hangs")
        elif not found["seen"]:
            what = f"{host}: {folder} ({title}) is not the same folder as here: a file that this machine wrote is not seen there"
            yield name, error(host, "shared", what, _SHARE[name])
        elif found["error"]:
            fix = "allow this user to write there (the same numeric user id on all hosts, no read-only mount)"
            yield name, error(host, "shared", f"{host} can't write to {folder} ({title}): {found['error']}", fix)
        elif not is_seen_here(files, name, own):
            what = f"{host}: what it writes to {folder} ({title}) is not seen here: it has a copy or an overlay of it"
            yield name, error(host, "shared", what, _SHARE[name])
