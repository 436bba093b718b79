"""Data files in a folder, and which format their first rows have. Nothing is read beyond those."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SUFFIXES = (".jsonl", ".json")
FOLDERS = ("", "data")
MOST_FILES = 40
_MOST_BYTES = 4 * 2**20
_MOST_ROWS = 20
_HELD_OUT = ("eval", "valid", "val", "test", "dev", "heldout", "held_out")
_PAIRS = (("prompt", "completion"), ("instruction", "output"), ("instruction", "response"), ("prompt", "response"), ("question", "answer"), ("input", "output"))
"""Names that other tools give to a prompt and its answer."""
_CONVERT = 'convert it to rows {"messages": [{"role": ..., "content": ...}]} or {"prompt": ..., "completion": ...}'


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file and what its first rows are."""

    path: str
    format: str = ""
    """messages or prompt_completion; empty: neither."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Field of the format -> the file's own name for it, where they differ."""
    needs: str = ""
    """What must be done before it can be trained on; empty: nothing."""

    @property
    def is_held_out(self) -> bool:
        """Whether its name says that it is for evaluation."""
        words = Path(self.path).stem.lower().replace("-", "_").split("_")
        return any(word in _HELD_OUT for word in words)

    def described(self) -> str:
        """For a list of choices."""
        if self.needs:
            return f"{self.path} (not yet usable: {self.needs})"
        renamed = "".join(f", {name} is `{own}`" for name, own in self.columns.items())
        return f"{self.path} ({self.format}{renamed})"


def find_data(root: Path) -> list[DataFile]:
    """The data files in `root` and `root/data`, by name; files of JSON that hold no rows (a config.json) are left out."""
    found: list[DataFile] = []
    for folder in FOLDERS:
        try:
            paths = sorted(path for path in (root / folder).iterdir() if path.suffix in SUFFIXES and path.is_file())
        except OSError:
            continue
        looked = [look_at(path, str(Path(folder, path.name))) for path in paths[:MOST_FILES]]
        found += [each for each in looked if not each.needs or each.path.endswith(".jsonl")]
    return found


def look_at(path: Path, name: str) -> DataFile:
    """What the first rows of a file are; `name` is how it is called in the spec."""
    try:
        with path.open("rb") as file:
            rows = list(_rows(file.read(_MOST_BYTES), path.suffix == ".json"))
    except OSError as error:
        return DataFile(path=name, needs=f"it can't be read: {error.strerror}")
    except ValueError:
        return DataFile(path=name, needs="its first rows are not JSON objects in UTF-8; `ftlaunch` names each wrong row when it prepares the data")
    if not rows:
        return DataFile(path=name, needs="it has no rows")
    shared = set.intersection(*(set(row) for row in rows))
    return _judge(name, rows, shared)


def _judge(name: str, rows: list[dict[str, Any]], shared: set[str]) -> DataFile:
    first = rows[0]
    lists = [key for key in ("messages", "conversation", "conversations", "chat", "dialog") if key in shared and _is_talk(first[key])]
    if lists:
        return DataFile(path=name, format="messages", columns={} if lists[0] == "messages" else {"messages": lists[0]})
    for prompt, completion in _PAIRS:
        if prompt not in shared or completion not in shared:
            continue
        if prompt == "instruction" and any(row.get("input") for row in rows):
            needs = f'rows have instruction and input (Alpaca): join them into one text, {{"prompt": ..., "completion": {completion}}}'
            return DataFile(path=name, needs=needs)
        renamed = {field: own for field, own in (("prompt", prompt), ("completion", completion)) if field != own}
        return DataFile(path=name, format="prompt_completion", columns=renamed)
    talks = first.get("conversations")
    if isinstance(talks, list) and talks and isinstance(talks[0], dict) and "from" in talks[0]:
        return DataFile(path=name, needs=f"rows are ShareGPT's (from, value): {_CONVERT}")
    if "text" in shared:
        return DataFile(path=name, needs=f"rows have one text, and only answers are learned: {_CONVERT}")
    return DataFile(path=name, needs=f"rows have {', '.join(sorted(first)[:6]) or 'no keys'}: {_CONVERT}")


def _is_talk(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(message, dict) and "role" in message for message in value)


def _rows(payload: bytes, may_be_array: bool) -> Iterator[dict[str, Any]]:
    """The first rows. Raises ValueError when one is no object, no JSON or no UTF-8."""
    cut = len(payload) == _MOST_BYTES
    # A character that the limit cut is no mistake of the file's.
    text = payload.decode("utf-8-sig", errors="ignore" if cut else "strict")
    if may_be_array and text.lstrip()[:1] == "[":
        yield from _array(text, cut)
        return
    lines = text.split("\n")
    for line in [line for line in (lines[:-1] if cut else lines) if line.strip()][:_MOST_ROWS]:
        yield _object(json.loads(line))


def _array(text: str, cut: bool) -> Iterator[dict[str, Any]]:
    decoder, at = json.JSONDecoder(), text.index("[") + 1
    for count in range(_MOST_ROWS):
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if text[at : at + 1] == "]" or (cut and count and at >= len(text)):
            return
        try:
            value, at = decoder.raw_decode(text, at)
        except ValueError:
            if cut and count:
                return
            raise
        yield _object(value)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise json.JSONDecodeError("no object", "", 0)
    return value
