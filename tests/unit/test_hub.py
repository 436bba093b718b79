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
from ftcore.source import resolve_model_source
from ftcore.spec.errors import SpecError
from ftcore.spec.sections import ModelSection
for name, revision in json.loads(sys.argv[1]):
    try:
        source = resolve_model_source(ModelSection(model_name_or_path=name, revision=revision), Path(sys.argv[2]))
        print(json.dumps({"path": source.path, "revision": source.revision}))
    except SpecError as error:
        print(json.dumps({"what": error.problems[0].what, "where": error.problems[0].where, "fix": error.problems[0].fix}))
"""
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
    settings = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "hf"), "HF_HUB_DISABLE_XET": "1", **environment}
    arguments = [sys.executable, "-c", PROGRAM, json.dumps(models), str(folder / "cache")]
    done = subprocess.run(arguments, env=settings, cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, check=False, timeout=100)
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
