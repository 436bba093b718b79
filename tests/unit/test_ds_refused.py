"""What of a DeepSpeed JSON is refused: what DeepSpeed accepts silently, meets late, or has removed; and files that can't be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launcher.ds_json.relaxed import MOST_BYTES, without_comments
from tests.unit.test_ds_import import CASES, problems, resolve

ZERO = '{"zero_optimization": {"stage": %d, %s}}'

SILENT_OR_LATE: list[tuple[str, str, str]] = [
    # Accepted silently by DeepSpeed.
    ('{"zero_optimisation": {"stage": 2}}', "zero_optimisation", "did you mean `zero_optimization`?"),
    ('{"zero_optimization": {"aio": {"block_size": 9}}}', "zero_optimization.aio", "move it out of zero_optimization, to the top"),
    ('{"overlap_comm": true}', "overlap_comm", "move it into zero_optimization"),
    ('{"fp8": {"enabled": true}}', "fp8", "remove it: DeepSpeed reads no such key"),
    ('{"activation_checkpointing": {"partition": true}}', "activation_checkpointing.partition", "did you mean `partition_activations`?"),
    ('{"flops_profiler": {"enable": true}}', "flops_profiler.enable", "did you mean `enabled`?"),
    ('{"aio": {"blocksize": 1}}', "aio.blocksize", "did you mean `block_size`?"),
    ('{"data_types": {"grad_dtype": "fp32"}}', "data_types.grad_dtype", "did you mean `grad_accum_dtype`?"),
    ('{"checkpoint": {"load_universe": true}}', "checkpoint.load_universe", "did you mean `load_universal`?"),
    ('{"optimizer": {"type": "Muon", "params": {"ns_step": 5}}}', "optimizer.params.ns_step", "did you mean `ns_steps`?"),
    ('{"bf16": {"enabled": true}, "bfloat16": {"enabled": false}}', "bfloat16", "another name of `bf16`"),
    ('{"zero_optimization": true}', "zero_optimization", "a section (keys below it) expected, got boolean true"),
    ('{"gradient_accumulation_steps": 1.5}', "gradient_accumulation_steps", "a whole number expected"),
    ('{"train_micro_batch_size_per_gpu": 0.5}', "train_micro_batch_size_per_gpu", "a whole number expected"),
    ('{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 4}', "train_batch_size", "nearest that are: 24 and 36"),
    ('{"train_batch_size": 3, "train_micro_batch_size_per_gpu": 4}', "train_batch_size", "the nearest that are: 4"),
    ('{"optimizer": {"params": {"betas": [0.9, "0.95"]}}}', "optimizer.params.betas[1]", "write 0.95, without quotes"),
    ('{"gradient_clipping": -1}', "gradient_clipping", "at least 0"),
    (ZERO % (2, '"offload_param": {"device": "cpu"}'), "zero.offload_param", "needs stage 3"),
    (ZERO % (2, '"offload_optimizer": {"device": "cpu", "super_offload": true}'), "zero_optimization.offload_optimizer.super_offload", "compiled Adam"),
    (ZERO % (2, '"offload_optimizer": {"device": "nvme", "nvme_path": "/x"}'), "zero.offload_optimizer", "nvme"),
    (ZERO % (3, '"zero_hpz_partition_size": 0'), "zero_optimization.zero_hpz_partition_size", "at least 1"),
    (ZERO % (3, '"zero_hpz_partition_size": 4'), "zero.zero_hpz_partition_size", "2 ranks don't divide into groups of 4"),
    ('{"bf16": {"enabled": true}, "torch_autocast": {"enabled": true}}', "torch_autocast.enabled", "are both enabled"),
    ('{"torch_autocast": {"enabled": true, "dtype": "float16"}}', "torch_autocast.dtype", "autocast to float16 is not offered"),
    ('{"bf16": {"bf16_master_weights_and_grads": true}}', "bf16.bf16_master_weights_and_grads", "master weights are always fp32"),
    ('{"sequence_parallel_size": 2}', "sequence_parallel_size", "sequences are not split"),
    ('{"zero_optimization": {"stage": 1, "stage": 2}}', "zero_optimization.stage", "given twice, on lines 1 and 1"),
    # Met late, or in riddles.
    ('{"gradient_clipping": null}', "gradient_clipping", "a number expected, got null"),
    ('{"gradient_clipping": "1.0"}', "gradient_clipping", "write 1.0, without quotes"),
    ('{"steps_per_print": 0}', "steps_per_print", "at least 1"),
    ('{"train_micro_batch_size_per_gpu": "2"}', "train_micro_batch_size_per_gpu", "write 2, without quotes"),
    ('{"gradient_accumulation_steps": "2"}', "gradient_accumulation_steps", "write 2, without quotes"),
    ('{"wall_clock_breakdown": "false"}', "wall_clock_breakdown", "write true or false, without quotes"),
    ('{"bf16": true}', "bf16", "a section (keys below it) expected"),
    (ZERO % (3, '"offload_param": {"device": "nvme"}'), "zero.nvme_path", "needs a folder"),
    ('{"tensor_parallel": {"autotp_size": 2}}', "tensor_parallel", "models are not split over ranks"),
    (ZERO % (2, '"zenflow": {"topk_ratio": 0.1}'), "zero_optimization.zenflow", "ZenFlow"),
    ('{"prescale_gradients": true}', "prescale_gradients", "scale of the gradients"),
    ('{"gradient_predivide_factor": 2}', "gradient_predivide_factor", "scale of the gradients"),
    ('{"gradient_allreduce_op": "sum"}', "gradient_allreduce_op", "scale of the gradients"),
    (ZERO % (3, '"zero_quantized_weights": true'), "zero.zero_quantized_weights", "CUDA kernels"),
    # Removed, or another training.
    ('{"optimizer": {"type": "OneBitAdam"}}', "optimizer.type", "DeepSpeed has removed the 1-bit optimizers"),
    ('{"optimizer": {"type": "Lamb", "params": {"max_coeff": 0.3}}}', "optimizer.type", "Lamb is not offered"),
    ('{"optimizer": {"type": "Adam", "params": {"adam_w_mode": false}}}', "optimizer.params.adam_w_mode", "only AdamW"),
    ('{"optimizer": {"params": {"betas": [0.9]}}}', "optimizer.params.betas", "two numbers expected, got 1"),
    ('{"optimizer": {"params": {"max_grad_norm": 1.0}}}', "optimizer.params.max_grad_norm", "use gradient_clipping"),
    ('{"optimizer": {"type": "Muon", "params": {"muon_lr": 0.02}}}', "optimizer.params.muon_lr", "one learning rate is for all parameters"),
    ('{"optimizer": {"type": "Muon", "params": {"ns_steps": 6}}}', "optimizer.params.ns_steps", "five Newton-Schulz steps"),
    ('{"scheduler": {"type": "OneCycle"}}', "scheduler.type", "use one of WarmupLR, WarmupDecayLR, WarmupCosineLR"),
    ('{"scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 1e-6}}}', "scheduler.params.warmup_min_lr", "rises from 0"),
    ('{"scheduler": {"type": "WarmupLR", "params": {"cos_min_ratio": 0.1}}}', "scheduler.params.cos_min_ratio", "WarmupLR has no cos_min_ratio"),
    ('{"fp16": {"loss_scale": 128}}', "fp16.loss_scale", "a fixed loss scale"),
    ('{"fp16": {"enabled": true}, "bf16": {"enabled": true}}', "fp16.enabled", "bf16 and fp16 are both enabled"),  # B14
    ('{"curriculum_learning": {"enabled": true}}', "curriculum_learning", "removed"),
    ('{"data_efficiency": {"enabled": true}}', "data_efficiency", "data is prepared and ordered by ftlaunch"),
    ('{"elasticity": {"enabled": true}}', "elasticity", "goes on with other hosts"),
    ('{"amp": {"enabled": true}}', "amp", "use train.precision"),
    (ZERO % (3, '"prefetch_bucket_size": 1, "stage3_prefetch_bucket_size": 2'), "zero_optimization.prefetch_bucket_size", "another name"),
    ('{"communication_data_type": "fp16"}', "communication_data_type", "one of fp32, bf16 expected"),
]


@pytest.mark.parametrize(("text", "where", "words"), SILENT_OR_LATE)
def test_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, where: str, words: str) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    found = problems(tmp_path, text)
    hits = [problem for problem in found if problem.where == where and words in f"{problem.what} {problem.fix}"]
    assert len(hits) == 1, found
    assert (hits[0].file, hits[0].line) in ((str(tmp_path / "ds.json"), 1), (str(tmp_path / "spec.yaml"), None)) or where == "zero.nvme_path", hits


def test_a_wrong_item_of_a_list_is_one_mistake(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, '{"optimizer": {"params": {"betas": [0.9, "0.95"]}}}')
    assert problem.where == "optimizer.params.betas[1]"


def test_all_that_is_risky_is_told_at_once(tmp_path: Path) -> None:
    found = problems(tmp_path, CASES / "removed_and_risky.json")
    lines = {problem.line for problem in found if problem.file == str(CASES / "removed_and_risky.json")}
    assert lines >= set(range(3, 14)), found


def test_two_folders_on_nvme(tmp_path: Path) -> None:
    block = '{"device": "nvme", "nvme_path": "%s"}'
    found = problems(tmp_path, ZERO % (3, f'"offload_param": {block % "/a"}, "offload_optimizer": {block % "/b"}'))
    assert any(problem.where == "zero_optimization.offload_optimizer.nvme_path" and "a second folder beside /a" in problem.what for problem in found)


def test_a_key_that_goes_to_deepspeed_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    (found,) = problems(tmp_path, f'{{"flops_profiler": {{"enabled": true,\n"output_file": "{tmp_path}/thesis.txt"}}}}')
    assert (found.where, found.file, found.line) == ("flops_profiler.output_file", str(tmp_path / "ds.json"), 2) and "would write over it" in found.what


def test_precision_that_the_json_rules_out(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, '{"bf16": {"enabled": false}}', train={"precision": "bf16"})
    assert found.where == "bf16.enabled" and "false contradicts train.precision: bf16" in found.what
    assert resolve(tmp_path, '{"bf16": {"enabled": false}, "fp16": {"enabled": "auto"}}').resolved.spec.train.precision == "fp32"
    assert resolve(tmp_path, '{"bf16": {"enabled": "auto"}, "fp16": {"enabled": false}}').resolved.spec.train.precision == "bf16"


@pytest.mark.parametrize(
    ("content", "words", "line"),
    [
        ("{zero_optimization: {stage: 2}}", "Hjson without quotes is not", 1),
        ('{"steps_per_print": 1,,}', "not valid JSON", 1),
        ("", "the file is empty", 1),
        ("[1]", "sections (a mapping) expected", 1),
        ("\n" + "[" * 5000, "nested too deeply", None),
        ("{\n\n/* never closed", "not valid JSON", 3),
    ],
)
def test_files_that_are_no_json(tmp_path: Path, content: str, words: str, line: int | None) -> None:
    found = problems(tmp_path, content)
    assert words in f"{found[0].what} {found[0].fix}" and (found[0].line == line or found[0].where == "zero.config"), found


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    assert "there is no such file" in problems(tmp_path, tmp_path / "missing.json")[0].what
    (missing,) = problems(tmp_path, tmp_path / "missing.json")
    assert missing.where == "zero.config" and missing.file == str(tmp_path / "spec.yaml") and "missing.json" in missing.what
    assert "it is a folder" in problems(tmp_path, tmp_path)[0].what
    assert "no regular file" in problems(tmp_path, Path("/dev/null"))[0].what
    assert "File name too long" in problems(tmp_path, Path("/" + "x" * 5000))[0].what
    large = tmp_path / "large.json"
    large.write_text('{"steps_per_print": 1}' + " " * MOST_BYTES)
    assert "more than 1 MiB" in problems(tmp_path, large)[0].what
    latin = tmp_path / "latin.json"
    latin.write_bytes(b'{"log_level": "\xe9"}')
    assert "not UTF-8" in problems(tmp_path, latin)[0].what


@pytest.mark.parametrize("bad", [{"config": 3}, {"config": "a\0b"}, {"config": ""}])
def test_no_file_is_looked_for(tmp_path: Path, bad: dict[str, Any]) -> None:
    """What is wrong with zero.config itself is the schema's to say; empty means none."""
    if bad["config"] == "":
        assert resolve(tmp_path, "{}", zero=bad).warnings == ()
    else:
        assert problems(tmp_path, "{}", zero=bad)


def test_a_wrong_section_of_the_spec_stays_the_only_mistake(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, CASES / "numbers_of_a_cluster.json", optimizer=3)
    assert found.where == "optimizer"


def test_comments_and_commas_become_blanks() -> None:
    text = '{"a": "// no # comment, }", // one, ]\n /* two\n , */ "b": [1, 2, # three\n ],\n "c": "\\"#\\"",\n}'
    blank = without_comments(text.encode()).decode()
    assert len(blank) == len(text) and blank.count("\n") == text.count("\n")
    assert " ".join(blank.split()) == '{"a": "// no # comment, }", "b": [1, 2 ], "c": "\\"#\\"" }'
