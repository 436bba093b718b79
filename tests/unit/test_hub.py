"""Models of the hub: fetched once, pinned to a commit, and refused without a traceback. The server is on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.hub_server import COMMIT, serving

PROGRAM = """
import json, sys
from pathlib import Path
from ftcore.source import resolve_model_source, resolve_tokenizer_source
from ftcore.spec.errors import SpecError
from ftcore.spec.sections import ModelSection
for name, revision in json.loads(sys.argv[1]):
    try:
        resolve = resolve_tokenizer_source if revision == "tokenizer" else resolve_model_source
        source = resolve(ModelSection(model_name_or_path=name, revision=revision.replace("tokenizer", "main")), Path(sys.argv[2]))
        print(json.dumps({"path": source.path, "revision": source.revision}))
    except SpecError as error:
        print(json.dumps({"what": error.problems[0].what, "where": error.problems[0].where, "fix": error.problems[0].fix}))
"""
HUB = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_ETAG_TIMEOUT": "60", "HF_HUB_DOWNLOAD_TIMEOUT": "60"}
"""The server is a thread of this process, which a busy machine may let wait."""
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors": b"\x02\0\0\0\0\0\0\0{}",
    "pytorch_model.bin": b"the same weights",
    "consolidated.safetensors": b"once more",
    "onnx/config.json": b"{}",
    "modeling_own.py": b"raise SystemExit",
    "README.md": b"read me",
}


def resolve(models: list[tuple[str, str]], folder: Path, endpoint: str, **environment: str) -> list[dict[str, Any]]:
    """What a fresh process finds for each (name, revision)."""
    settings = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "hf"), **HUB, **environment}
    arguments = [sys.executable, "-c", PROGRAM, json.dumps(models), str(folder / "cache")]
    done = subprocess.run(arguments, env=settings, cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_fetched_once_and_pinned(tmp_path: Path) -> None:
    with serving(FILES) as server:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        (first,) = resolve([("org/tiny", "main")], tmp_path, endpoint)
    assert first["revision"] == COMMIT
    assert sorted(file.name for file in Path(first["path"]).iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    (offline,) = resolve([("org/tiny", "main")], tmp_path, endpoint, HF_HUB_OFFLINE="1")
    assert offline == first


def test_data_need_configuration_and_tokenizer_alone(tmp_path: Path) -> None:
    with serving(FILES) as server:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        (found,) = resolve([("org/tiny", "tokenizer")], tmp_path, endpoint)
        assert sorted(file.name for file in Path(found["path"]).iterdir()) == ["config.json", "tokenizer.json"]
        assert not [path for path in server.requested if "/resolve/" in path and "model." in path]
        # Without network the weights can't follow; with it they do.
        (refused,) = resolve([("org/tiny", "main")], tmp_path, endpoint, HF_HUB_OFFLINE="1")
        assert "1 file(s) are missing (model.safetensors)" in refused["what"]
        (whole,) = resolve([("org/tiny", "main")], tmp_path, endpoint)
    assert whole["path"] == found["path"] and (Path(whole["path"]) / "model.safetensors").exists()


def test_templates_beside_the_default_one_are_fetched(tmp_path: Path) -> None:
    folder = "additional_chat_templates"
    with serving({**FILES, "chat_template.jinja": b"{{ messages }}", f"{folder}/tool_use.jinja": b"{{ tools }}"}) as server:
        (found,) = resolve([("org/tiny", "main")], tmp_path, f"http://127.0.0.1:{server.server_port}")
    assert (Path(found["path"]) / folder / "tool_use.jinja").read_text() == "{{ tools }}"
    assert not (Path(found["path"]) / "onnx").exists()


def test_bin_weights_only_without_safetensors(tmp_path: Path) -> None:
    files = {name: data for name, data in FILES.items() if not name.endswith(".safetensors")}
    with serving(files) as server:
        (found,) = resolve([("org/tiny", "main")], tmp_path, f"http://127.0.0.1:{server.server_port}")
    assert (Path(found["path"]) / "pytorch_model.bin").read_bytes() == b"the same weights"


def test_refusals(tmp_path: Path) -> None:
    models = [("org/none", "main"), ("org/gated", "main"), ("org/tiny", "none"), ("org/bad--name", "main"), ("org/broken", "main")]
    with serving(FILES) as server:
        found = resolve(models, tmp_path, f"http://127.0.0.1:{server.server_port}")
    assert [answer["what"].split(":")[0] for answer in found] == [
        "the hub has no model org/none, or it is private",
        "the model org/gated asks for a licence to be accepted",
        "the model org/tiny has no revision 'none'",
        "'org/bad--name' is neither a folder nor a hub id",
        "no folder org/broken, and the hub model of that name could not be fetched",
    ]
    assert found[2]["where"] == "model.revision"
    assert all(answer["fix"] for answer in found)


@pytest.mark.parametrize("offline", ["0", "1"])
def test_no_network(offline: str, tmp_path: Path) -> None:
    (found,) = resolve([("org/tiny", "main")], tmp_path, "http://127.0.0.1:9", HF_HUB_OFFLINE=offline)
    assert found["what"].startswith("no folder org/tiny, and the hub model of that name could not be fetched: ")


ROWS_PROGRAM = """
import json, sys
from pathlib import Path
from ftcore.data.reading.digest import source_digest
from ftcore.data.reading.find import find_files
from ftcore.data.reading.reader import read_chunks
from ftcore.spec.data_sections import DataSet
from ftcore.spec.errors import DataError
for options in json.loads(sys.argv[1]):
    purpose = options.pop("purpose", "train")
    try:
        source = find_files(DataSet(path=options.pop("path", "org/rows"), **options), "data.train", purpose=purpose, cache_dir=Path(sys.argv[2]))
        rows = sum(chunk.count for chunk in read_chunks(source))
        digest = source_digest(source, lambda path: sys.exit("read a blob to know it"))
        found = {"files": [file.name for file in source.files], "rows": rows, "revision": source.revision, "digest": digest}
        print(json.dumps(found | {"datasets": "datasets" in sys.modules}))
    except DataError as error:
        print(json.dumps({"what": error.problems[0].what, "where": error.problems[0].where, "fix": error.problems[0].fix}))
"""
ROW = b'{"prompt": "a", "completion": "b"}\n'
CARD = b"""---
configs:
- config_name: main
  default: true
  data_files:
  - split: train
    path: main/tr*.jsonl
  - split: test
    path: main/te*.jsonl
- config_name: socratic
  data_files: soc/*.csv
---
Text.
"""
CONFIGURED = {
    "README.md": CARD,
    "main/tr1.jsonl": ROW,
    "main/tr2.jsonl": ROW * 2,
    "main/te.jsonl": ROW * 3,
    "soc/x.csv": b"prompt,completion\n1,2\n",
    "../out.jsonl": ROW,
}
SHARDED = {"data/train-00000-of-00002.jsonl": ROW, "data/train-00001-of-00002.jsonl": ROW, "data/test-00000-of-00001.jsonl": ROW, ".hid/train.jsonl": ROW}


def rows_of(wanted: list[dict[str, str]], folder: Path, endpoint: str, **environment: str) -> list[dict[str, Any]]:
    """What a fresh process finds for each data set."""
    settings = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "hf"), **HUB, **environment}
    arguments = [sys.executable, "-c", ROWS_PROGRAM, json.dumps(wanted), str(folder / "cache")]
    done = subprocess.run(arguments, env=settings, cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_configurations_and_splits_of_data_sets(tmp_path: Path) -> None:
    wanted = [{}, {"purpose": "eval"}, {"name": "socratic"}, {"revision": COMMIT}]
    with serving({}, CONFIGURED) as server:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        found = rows_of(wanted, tmp_path, endpoint)
        asked = len([path for path in server.requested if path.endswith(".jsonl")])
        again = rows_of(wanted[:1], tmp_path, endpoint)
        assert len([path for path in server.requested if path.endswith(".jsonl")]) == asked  # fetched once
        refused = rows_of([{"name": "nope"}, {"split": "nope"}, {"revision": "none"}], tmp_path, endpoint)
    assert [(answer["files"], answer["rows"]) for answer in found] == [
        (["org/rows/main/tr1.jsonl", "org/rows/main/tr2.jsonl"], 3),
        (["org/rows/main/te.jsonl"], 3),
        (["org/rows/soc/x.csv"], 1),
        (["org/rows/main/tr1.jsonl", "org/rows/main/tr2.jsonl"], 3),
    ]
    assert {answer["revision"] for answer in found} == {COMMIT}
    assert len({answer["digest"] for answer in found}) == 3
    assert [(answer["where"], answer["fix"]) for answer in refused] == [
        ("data.train.name", "name one of: main, socratic"),
        ("data.train.split", "its splits are: train, test"),
        ("data.train.revision", "use a branch, tag or commit of the data set"),
    ]
    # What a commit holds is remembered: later starts ask no library, and need no network.
    assert [answer["datasets"] for answer in again] == [False]
    assert again[0] | {"datasets": True} == found[0]
    (card,) = (tmp_path / "hf").rglob(f"snapshots/{COMMIT}/README.md")
    card.unlink()
    with serving({}, CONFIGURED) as server:
        (pinned,) = rows_of([{"revision": COMMIT}], tmp_path, f"http://127.0.0.1:{server.server_port}")
    assert pinned["files"] == found[0]["files"]
    for offline in ("0", "1"):
        later = rows_of(wanted, tmp_path, "http://127.0.0.1:9", HF_HUB_OFFLINE=offline)
        assert [answer | {"datasets": True} for answer in later] == [answer | {"datasets": True} for answer in found]


def test_data_sets_in_the_hubs_cache_alone(tmp_path: Path) -> None:
    with serving({}, SHARDED) as server:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        (found,) = rows_of([{}], tmp_path, endpoint)
    assert (found["rows"], len(found["files"])) == (2, 2)
    (snapshot,) = (tmp_path / "hf").rglob(f"snapshots/{COMMIT}")
    for memory in (tmp_path / "cache" / "hub").iterdir():
        memory.write_text("not readable")
    (offline, no_split) = rows_of([{}, {"purpose": "eval"}], tmp_path, endpoint, HF_HUB_OFFLINE="1")
    assert offline == found
    assert no_split["fix"] == "name one of its splits: train"
    (snapshot / "data" / "train-00001-of-00002.jsonl").unlink()
    (part,) = rows_of([{}], tmp_path, endpoint, HF_HUB_OFFLINE="1")
    assert "only a part of org/rows: data/train-00001-of-00002.jsonl is missing" in part["what"]


def test_refused_data_sets(tmp_path: Path) -> None:
    names = ["org/none", "org/gated", "org/broken", "org/bad--name", "org/rows"]
    with serving({}, {"rows.py": b"raise SystemExit"}) as server:
        found = rows_of([{"path": name} for name in names], tmp_path, f"http://127.0.0.1:{server.server_port}")
    assert [answer["what"].split(":")[0] for answer in found] == [
        "the hub has no data set org/none, or it is private",
        "the data set org/gated asks for a licence to be accepted",
        "no folder org/broken, and the hub data set of that name could not be fetched",
        "'org/bad--name' is neither a folder nor a hub id",
        "the data set org/rows is made by code (rows.py), which is not run",
    ]
    assert found[1]["fix"].startswith("accept it at https://huggingface.co/datasets/org/gated")
    assert found[4]["fix"].endswith("data.train.revision: refs/convert/parquet")
    assert {answer["where"] for answer in found} == {"data.train"}
    with serving({}, {"README.md": b"Text.", "image.png": b"x"}) as server:
        found = rows_of([{}, {"revision": COMMIT}], tmp_path / "other", f"http://127.0.0.1:{server.server_port}")
    assert [answer["what"] for answer in found] == ["the data set org/rows has no data files; it holds README.md, image.png"] * 2
    (offline,) = rows_of([{"revision": "f" * 40}], tmp_path, "http://127.0.0.1:9", HF_HUB_OFFLINE="1")
    assert "could not be fetched" in offline["what"]
