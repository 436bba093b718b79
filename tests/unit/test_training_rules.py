"""Rules between keys of schedule, evaluation and profiling: each mistake with its place and its fix."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ftcore.spec.errors import Problem
from launcher.resolve import Options, check_spec
from launcher.rules import precision

BASE = """\
model: {model_name_or_path: builtin:tiny-llama}
data: {train: {path: builtin:extraction/train}, eval: {path: builtin:extraction/eval}}
cluster: {slots: 2}
"""


def problems_of(tmp_path: Path, text: str) -> list[Problem]:
    spec = tmp_path / "spec.yaml"
    spec.write_text(BASE + text + "\n", encoding="utf-8")
    return check_spec(Options(spec_path=spec))


@pytest.mark.parametrize(
    "text",
    [
        "schedule: {lr_scheduler_type: warmup_stable_decay}",
        "schedule: {lr_scheduler_type: warmup_stable_decay, warmup_steps: 10, decay_steps: 20, decay_type: 1-sqrt, min_lr_ratio: 0.1}\ntrain: {max_steps: 30}",
        "schedule: {lr_scheduler_type: cosine, min_lr_ratio: 0.1}",
        "checkpoint: {metric_for_best_model: loss}\nevaluation: {eval_steps: 5, early_stopping_patience: 3, early_stopping_threshold: 0.01}",
        "method: {type: qlora, storage_dtype: bfloat16, compute_dtype: float32}",
        "method: {type: qlora, storage_dtype: float32, compute_dtype: bfloat16}\ntrain: {precision: bf16_autocast}",
        "optimizer: {parameter_groups: [{pattern: '*lm_head*', keep_in_fp32: true}]}\ntrain: {precision: bf16_autocast}",
        "profiling: {updates: 2, start_update: 3, ranks: [0, 1], memory: true}",
        "evaluation: {early_stopping_patience: 0, early_stopping_threshold: 0.01}",
        "profiling: {updates: 0, start_update: 3, memory: true}",
    ],
)
def test_right(text: str, tmp_path: Path) -> None:
    assert problems_of(tmp_path, text) == []


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("schedule: {lr_scheduler_type: wsd}", "schedule.lr_scheduler_type", "did you mean `warmup_stable_decay`?"),
        ("schedule: {decay_ratio: 0.2}", "schedule.decay_ratio", "no effect with lr_scheduler_type linear remove it, or use lr_scheduler_type: warmup_stable"),
        ("schedule: {lr_scheduler_type: constant, min_lr_ratio: 0.2}", "schedule.min_lr_ratio", "linear or cosine or warmup_stable_decay"),
        ("schedule: {lr_scheduler_type: warmup_stable_decay, decay_ratio: 0.1, decay_steps: 4}", "schedule.decay_steps", "keep one of them"),
        ("schedule: {lr_scheduler_type: warmup_stable_decay, warmup_ratio: 0.5, decay_ratio: 0.6}", "schedule.decay_ratio", "give 0.5 or less"),
        ("schedule: {lr_scheduler_type: warmup_stable_decay, decay_steps: 9}\ntrain: {max_steps: 8}", "schedule.decay_steps", "decay_steps 8 or less"),
        ("schedule: {lr_scheduler_type: warmup_stable_decay, decay_type: exp}", "schedule.decay_type", "linear, cosine, 1-sqrt"),
        ("hardware: {accelerator: h10}", "hardware.accelerator", "no accelerator is called 'h10' did you mean h100"),
        ("hardware: {accelerator: '4090:lots'}", "hardware.accelerator", "'lots' is no memory in GiB write it as in 4090:48"),
        ("schedule: {min_lr: 1e-6}", "schedule.min_lr", "schedule.min_lr_ratio"),
        ("evaluation: {early_stopping_threshold: 0.1}", "evaluation.early_stopping_threshold", "no effect without early_stopping_patience"),
        ("evaluation: {eval_steps: 5, early_stopping_patience: 3}", "evaluation.early_stopping_patience", "add checkpoint.metric_for_best_model: loss"),
        ("checkpoint: {metric_for_best_model: loss}\nevaluation: {early_stopping_patience: 3}", "checkpoint.metric_for_best_model", "set evaluation"),
        ("method: {type: qlora, storage_dtype: float32}", "method.storage_dtype", "casts all floats to bfloat16 use method.storage_dtype: uint8 or bfloat16"),
        ("method: {type: qlora, storage_dtype: bf16}", "method.storage_dtype", "did you mean `bfloat16`?"),
        ("method: {type: qlora, compute_dtype: float16}", "method.compute_dtype", "without a loss scale"),
        ("method: {type: qlora, bits: 8, storage_dtype: uint8}", "method.storage_dtype", "of the 4-bit types"),
        ("method: {type: lora, compute_dtype: bfloat16}", "method.compute_dtype", "use method.type: qlora"),
        ("method: {type: qlora}\nbnb_4bit_quant_storage: uint8", "bnb_4bit_quant_storage", "did you mean `method.storage_dtype`?"),
        ("optimizer: {parameter_groups: [{pattern: a, keep_in_fp32: true}]}", "optimizer.parameter_groups", "use train.precision: bf16_autocast"),
        ("train: {precision: fp32}\noptimizer: {parameter_groups: [{pattern: a, keep_in_fp32: true}]}", "optimizer.parameter_groups", "everything is fp32"),
        ("optimizer: {parameter_groups: [{pattern: a, keep_in_fp32: false}]}", "optimizer.parameter_groups", "changes nothing"),
        ("method: {type: lora, target_modules: all}", "method.target_modules", "did you mean `all-linear`?"),
        ("profiling: {updates: 2, ranks: [0, 2]}", "profiling.ranks", "there is no rank 2 in a run of 2 ranks use ranks 0 to 1"),
        ("profiling: {updates: 2, ranks: 0}", "profiling.ranks", "a list expected, got number 0 write a list: [0, 1]"),
        ("optimizer: {parameter_groups: 3}", "optimizer.parameter_groups", "a list expected, got number 3 write a list"),
        ("method: {type: qlora, storage_dtype: null}", "method.storage_dtype", "write text, or leave the key out"),
        ("schedule: wsd", "schedule", "write `schedule.lr_scheduler_type: warmup_stable_decay`"),
        ("profiling: {updates: 2, ranks: []}", "profiling.ranks", "name at least one"),
        ("profiling: {start_update: 2}", "profiling.start_update", "no effect without profiling.updates"),
        ("profiling: {updates: 2, start_update: 9}\ntrain: {max_steps: 9}", "profiling.start_update", "start_update 8 or less"),
        ("profiling: {updates: 9}\ntrain: {max_steps: 4}", "profiling.updates", "give 2 or less, or an earlier start_update"),
        ("profiling: 3", "profiling", "write `profiling.updates: 3`"),
    ],
)
def test_mistake(text: str, where: str, words: str, tmp_path: Path) -> None:
    found = problems_of(tmp_path, text)
    hits = [problem for problem in found if words in f"{problem.what} {problem.fix}"]
    assert len(hits) == 1 and hits[0].fix, found
    assert not where or (hits[0].where == where and len(found) == 1 and hits[0].line in (4, 5)), found


@pytest.mark.parametrize(("gpus", "words"), [(0, "none that may be used"), (1, "pip install flash-attn, or use sdpa")])
def test_flash_attention_where_it_can_not_run(gpus: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "local_accelerators", lambda: gpus)
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    text = BASE.replace("builtin:tiny-llama}", "builtin:tiny-llama, attn_implementation: flash_attention_2}")
    spec = tmp_path / "spec.yaml"
    spec.write_text(text)
    [problem] = check_spec(Options(spec_path=spec))
    assert problem.where == "model.attn_implementation" and words in f"{problem.what} {problem.fix}"
    # What other hosts have is not known.
    spec.write_text(text.replace("slots: 2", "hosts: hosts"))
    (tmp_path / "hosts").write_text("a slots=1\n")
    monkeypatch.chdir(tmp_path)
    assert check_spec(Options(spec_path=spec)) == []


def test_fp16_is_no_way_out_where_it_can_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "method: {type: qlora, storage_dtype: float16}"
    for gpus in (0, 1):
        monkeypatch.setattr(precision, "local_accelerators", lambda gpus=gpus: gpus)
        [problem] = problems_of(tmp_path, text)
        assert ("fp16" in problem.fix) is bool(gpus), problem


def test_early_stopping_without_rows(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(BASE.replace(", eval: {path: builtin:extraction/eval}", "") + "evaluation: {early_stopping_patience: 3}\n")
    [problem] = check_spec(Options(spec_path=spec))
    assert problem.where == "evaluation.early_stopping_patience" and "no rows to evaluate on" in problem.what
