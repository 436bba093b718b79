"""Where the base model comes from: folders, packages, the built-in model, GGUF files; and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ftcore.data.digests import file_digest
from ftcore.data.prepared import ModelSource
from ftcore.source import resolve_model_source
from ftcore.spec.errors import SpecError
from ftcore.spec.sections import ModelSection
from tests.unit.base_models import SMOLLM2, TINY_LLAMA, base_model


def resolve(name: str, cache: Path) -> ModelSource:
    return resolve_model_source(ModelSection(model_name_or_path=name), cache)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelSource, Path]:
    cache = tmp_path_factory.mktemp("cache")
    return resolve(TINY_LLAMA, cache), cache


def refused(name: str, cache: Path) -> str:
    with pytest.raises(SpecError) as caught:
        resolve(name, cache)
    return str(caught.value)


def test_tiny_llama(tiny: tuple[ModelSource, Path]) -> None:
    source, cache = tiny
    assert Path(source.path).is_relative_to(cache)
    model: Any = AutoModelForCausalLM.from_pretrained(source.path)
    tokenizer = AutoTokenizer.from_pretrained(source.path)
    text = tokenizer.apply_chat_template([{"role": "user", "content": "añ\n👍"}], tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text, return_tensors="pt").input_ids
    assert tokenizer.decode(ids[0]) == text == "<|im_start|>user\nañ\n👍<|im_end|>\n<|im_start|>assistant\n"
    assert len(tokenizer) <= model.config.vocab_size
    assert tokenizer.eos_token == "<|im_end|>"
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    loss = model(ids, labels=ids).loss.detach()
    assert abs(float(loss) - torch.tensor(float(model.config.vocab_size)).log()) < 1.0


def test_tiny_llama_is_the_same_whatever_was_drawn_before(tiny: tuple[ModelSource, Path], tmp_path: Path) -> None:
    torch.manual_seed(123)
    state = torch.get_rng_state()
    again = resolve(TINY_LLAMA, tmp_path)
    assert again.digest == tiny[0].digest
    assert torch.equal(torch.get_rng_state(), state)


def test_folder_as_it_is(tiny: tuple[ModelSource, Path]) -> None:
    source, cache = tiny
    found = resolve(source.path, cache)
    assert (found.path, found.revision, found.digest, found.name) == (source.path, "", source.digest, source.path)
    relative = resolve(os.path.relpath(source.path), cache)
    assert Path(relative.path).is_absolute()
    assert relative.digest == source.digest


def test_digest_is_of_the_weights(tiny: tuple[ModelSource, Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny[0].path, folder)
    (folder / "README.md").write_text("x")
    assert resolve(str(folder), tmp_path).digest == tiny[0].digest
    weights = folder / "model.safetensors"
    payload = bytearray(weights.read_bytes())
    payload[-1] ^= 1
    weights.write_bytes(payload)
    assert resolve(str(folder), tmp_path).digest != tiny[0].digest


@pytest.mark.parametrize("name", ["config.json", "modeling_own.py"])
def test_digest_is_of_config_and_code_too(name: str, tiny: tuple[ModelSource, Path], tmp_path: Path) -> None:
    """The same weights compute something else with another rms_norm_eps."""
    folder = shutil.copytree(tiny[0].path, tmp_path / "model")
    with (folder / name).open("a") as file:
        file.write("\n")
    assert resolve(str(folder), tmp_path).digest != tiny[0].digest


def test_a_digest_is_not_fooled_by_a_time_set_back(tmp_path: Path) -> None:
    file, cache = tmp_path / "weights", tmp_path / "cache"
    file.write_bytes(b"abc")
    first, times = file_digest(file, cache), file.stat()
    file.write_bytes(b"abd")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file_digest(file, cache) != first


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 5)


def no_header(path: Path) -> None:
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1")


@pytest.mark.parametrize(
    ("name", "damage", "reason"),
    [
        ("model.safetensors", cut_off, r"model.safetensors is damaged: it has"),
        ("model.safetensors", no_header, "its header can't be read"),
        ("config.json", cut_off, "config.json is damaged"),
    ],
)
def test_damaged_files(name: str, damage: Any, reason: str, tiny: tuple[ModelSource, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(tiny[0].path, tmp_path / "model")
    damage(folder / name)
    assert reason in refused(str(folder), tmp_path)


@pytest.mark.parametrize(
    ("name", "damage"),
    [("model.safetensors", cut_off), ("model.safetensors", Path.unlink), ("config.json", Path.unlink), ("config.json", cut_off), ("tokenizer.json", cut_off)],
)
def test_a_damaged_conversion_is_made_again(name: str, damage: Any, tiny: tuple[ModelSource, Path], tmp_path: Path) -> None:
    made = Path(resolve(TINY_LLAMA, tmp_path).path)
    damage(made / name)
    assert resolve(TINY_LLAMA, tmp_path).digest == tiny[0].digest
    assert json.loads((made / "tokenizer.json").read_text())


def test_digest_is_remembered(tmp_path: Path) -> None:
    file, cache = tmp_path / "weights", tmp_path / "cache"
    file.write_bytes(b"abc")
    first = file_digest(file, cache)
    (memory,) = (cache / "digests").iterdir()
    memory.write_text(memory.read_text().replace(first, "remembered"))
    assert file_digest(file, cache) == "remembered"
    memory.write_text("{")
    assert file_digest(file, cache) == first
    file.write_bytes(b"abcd")
    assert file_digest(file, cache) != first


def test_sharded_weights(tiny: tuple[ModelSource, Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    AutoModelForCausalLM.from_pretrained(tiny[0].path).save_pretrained(folder, max_shard_size="1MB")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(tiny[0].path) / file, folder)
    assert resolve(str(folder), tmp_path).digest
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.unlink()
    assert f"lacks weight files that its index names: {shard.name}" in refused(str(folder), tmp_path)
    (folder / "model.safetensors.index.json").write_text("{}")
    assert "is no index of weight files" in refused(str(folder), tmp_path)


def test_folder_without_anything(tmp_path: Path) -> None:
    text = refused(str(tmp_path), tmp_path / "cache")
    assert all(words in text for words in ("has no config.json", "has no weights", "has no tokenizer"))
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "name its base model" in refused(str(tmp_path), tmp_path / "cache")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("builtin:gpt", "no model is built in under the name builtin:gpt"),
        ("./none", "no such folder or file: ./none"),
        ("/nowhere/model.gguf", "no such folder or file"),
        ("a/b/c", "no such folder or file"),
        ("", "is a file, but no .gguf file"),
        ("package:no_such_package/x.gguf", "the package 'no_such_package' is not installed"),
        ("package:no_such.package/x.gguf", "is not installed"),
        ("package:json/x.gguf", "the package json holds no 'x.gguf'"),
        ("package:json", "the package json holds no ''"),
        ("package:json/decoder.py", "is a file, but no .gguf file"),
    ],
)
def test_refused_names(name: str, reason: str, tmp_path: Path) -> None:
    if not name:
        (tmp_path / "model.bin").touch()
        name = str(tmp_path / "model.bin")
    assert reason in refused(name, tmp_path)


def test_gguf_becomes_a_folder() -> None:
    """SmolLM2's file: tied embeddings, the file's own template, ends and digit splitting; and it still talks."""
    source = base_model(SMOLLM2)
    folder = Path(source.path)
    config = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["tie_word_embeddings"]
    model: Any = AutoModelForCausalLM.from_pretrained(source.path)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    tokenizer = AutoTokenizer.from_pretrained(source.path)
    assert (tokenizer.eos_token, tokenizer.eos_token_id, tokenizer.bos_token_id, len(tokenizer)) == ("<|im_end|>", 2, 1, 49152)
    assert tokenizer.tokenize("x  5\n 12") == ["x", "ĠĠ", "5", "ĊĠ", "1", "2"]
    assert tokenizer("a").input_ids == tokenizer("a", add_special_tokens=False).input_ids
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        answer = model.generate(**ids, max_new_tokens=12, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
    assert int(answer[-1]) == model.generation_config.eos_token_id


def test_file_that_is_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF but not really")
    assert "can't read" in refused(str(tmp_path / "model.gguf"), tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()]


def test_gguf_package_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "gguf", raising=False)
    assert "pip install 'ftlaunch[gguf]'" in refused(str(tmp_path / "model.gguf"), tmp_path / "cache")
