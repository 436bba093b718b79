"""The text of a new spec: commented YAML that validates as it is. A pure function of the choices."""

from __future__ import annotations

from dataclasses import dataclass

from ftcore.spec.yaml_text import mapping, quoted
from launcher.init.data_files import DataFile
from launcher.init.machine import DEMO_MODEL

METHODS = {
    "full": "train every parameter",
    "lora": "train small matrices beside a frozen model",
    "qlora": "LoRA on a model held in 4 bits: least memory",
}
FORMATS = {
    "auto": "as the first rows look",
    "messages": "conversations with role and content",
    "sharegpt": "conversations with from and value",
    "alpaca": "instruction, input and output, through the chat template",
    "prompt_completion": "a prompt and what follows it, joined as they are",
    "text": "text that is learned whole",
    "tokenized": "input_ids and labels",
}
"""Format of a data set -> what its rows are."""
_LEARNING_RATES = {"full": "2e-5", "lora": "2e-4", "qlora": "2e-4"}
_HEAD = """\
# A run of ftlaunch. `ftlaunch validate` checks this file, `ftlaunch plan` says what it needs, `ftlaunch` starts it.
# Every key, its default and its unit: docs/spec.md, or `ftlaunch config-schema` for an editor.
"""
_BATCH = """\
batch:
  global_batch_size: 16       # samples in an update, over all ranks
  micro_batch_tokens: 4096    # most tokens that a rank computes at once; micro-steps follow from it
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a user decided, or was decided for them."""

    model: str
    train: DataFile
    evaluation: DataFile | None
    method: str
    hosts: str
    """A hostfile; empty: this machine."""
    precision: str
    """train.precision: bf16 or fp16 on accelerators, fp32 on the CPU."""


def render_spec(choices: Choices) -> str:
    """The file's text."""
    is_demo = choices.model == DEMO_MODEL
    precision = "fp32" if is_demo else choices.precision
    sections = [
        _HEAD,
        f"model:\n  # A hub id (owner/name), a folder, or a .gguf file.\n  model_name_or_path: {quoted(choices.model)}\n",
        _method(choices.method),
        _data(choices.train, choices.evaluation),
        _BATCH,
        f"optimizer:\n  learning_rate: {'3e-3' if is_demo else _LEARNING_RATES[choices.method]}\n",
        "schedule:\n  lr_scheduler_type: cosine   # linear, cosine, constant, ...\n  warmup_ratio: 0.03\n",
        "train:\n"
        + ("  max_steps: 30               # updates; or num_train_epochs\n" if is_demo else "  num_train_epochs: 1         # or max_steps, in updates\n")
        + f"  precision: {precision:<17}# {'bf16 on accelerators that have it' if precision == 'fp32' else 'fp32 on the CPU'}\n"
        + ("" if is_demo else "  gradient_checkpointing: full   # none is faster, and needs more memory\n"),
        "zero:\n  stage: 2                    # 3 shards the parameters as well, for models that don't fit otherwise\n",
        _cluster(choices.hosts),
        "checkpoint:\n  save_steps: 0               # updates between checkpoints; 0: one at the end\n",
    ]
    return "\n".join(sections)


def _method(method: str) -> str:
    rest = "" if method == "full" else "  r: 16\n  lora_alpha: 32              # the update is scaled by lora_alpha / r\n"
    others = "; ".join(f"{name}: {meaning}" for name, meaning in METHODS.items() if name != method)
    return f"method:\n  # {others}.\n  type: {method:<22}# {METHODS[method]}\n{rest}"


def _data(train: DataFile, evaluation: DataFile | None) -> str:
    held_out = "  # Held-out rows, for a loss that says whether the model learns more than its rows by heart:\n  # eval: {path: held_out.jsonl}\n"
    if evaluation is not None:
        held_out = "  eval:                       # held-out rows\n" + _data_set(evaluation)
    lengths = "  max_length: 1024            # tokens of the longest sample\n  overlong: drop              # or error, truncate_right, truncate_left, split\n"
    return f"data:\n  train:\n{_data_set(train)}{held_out}{lengths}"


def _data_set(file: DataFile) -> str:
    return f"    path: {quoted(file.path)}\n    format: {file.format:<18}# {FORMATS[file.format]}\n" + (
        f"    columns: {mapping(file.columns.items())}   # our name: the file's\n" if file.columns else ""
    )


def _cluster(hosts: str) -> str:
    if hosts:
        return f"cluster:\n  hosts: {quoted(hosts)}   # a hostfile: `HOST slots=N` lines\n"
    return "# For ranks on several machines:\n# cluster:\n#   hosts: hostfile           # lines of `HOST slots=N`\n"
