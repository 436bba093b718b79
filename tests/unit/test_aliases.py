"""Configurations as users of other tools write them: each key and value is answered with what stands for it here."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ftcore.spec.aliases import ALIASES
from ftcore.spec.names import SECTIONS, advise, advise_value, known_keys
from ftcore.spec.value_aliases import VALUE_ALIASES
from launcher.resolve import Options, check_spec
from launcher.schema_check import SPEC_SCHEMA, load_schema

LLAMA_FACTORY = """
model_name_or_path: org/base
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
additional_target: lm_head
quantization_bit: 4
quantization_method: bnb
deepspeed: ds_z3_config.json
dataset: mine
dataset_dir: data
template: llama3
cutoff_len: 2048
max_samples: 1000
overwrite_cache: true
preprocessing_num_workers: 16
dataloader_num_workers: 4
output_dir: saves/a
plot_loss: true
overwrite_output_dir: true
save_only_model: false
report_to: none
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
lr_scheduler_type: cosine
bf16: true
pure_bf16: false
ddp_timeout: 180000000
resume_from_checkpoint: null
val_size: 0.1
per_device_eval_batch_size: 1
eval_strategy: steps
flash_attn: fa2
enable_liger_kernel: true
upcast_layernorm: true
neat_packing: true
train_on_prompt: false
"""
AXOLOTL = """
base_model: org/base
model_type: LlamaForCausalLM
load_in_8bit: false
load_in_4bit: true
strict: false
datasets: [{path: mine, type: alpaca}]
dataset_prepared_path: prepared
val_set_size: 0.05
adapter: qlora
lora_model_dir: a
sequence_len: 4096
sample_packing: true
eval_sample_packing: false
pad_to_sequence_len: true
lora_r: 32
lora_target_linear: true
peft_use_dora: true
wandb_project: a
micro_batch_size: 2
num_epochs: 4
lr_scheduler: cosine
cosine_min_lr_ratio: 0.1
train_on_inputs: false
group_by_length: false
tf32: false
early_stopping_patience: 3
xformers_attention: true
flash_attention: true
warmup_steps: 10
evals_per_epoch: 4
saves_per_epoch: 1
eval_batch_size: 2
fsdp_config: {}
special_tokens: {pad_token: x}
unfrozen_parameters: [lm_head]
gradient_checkpointing_kwargs: {use_reentrant: false}
"""
HUGGING_FACE = """
max_seq_length: 1024
dataset_text_field: text
assistant_only_loss: true
optim: paged_adamw_8bit
optim_args: a=1
adam_beta2: 0.95
lr_scheduler_kwargs: {min_lr: 1e-6}
fp16: true
bf16_full_eval: true
load_best_model_at_end: true
metric_for_best_model: eval_loss
greater_is_better: false
dataloader_pin_memory: true
remove_unused_columns: false
ddp_find_unused_parameters: false
torch_compile: true
push_to_hub: false
logging_dir: logs
average_tokens_across_devices: true
auto_find_batch_size: true
use_peft: true
use_bnb_nested_quant: true
bnb_4bit_compute_dtype: bfloat16
bnb_4bit_quant_storage: uint8
lora_modules_to_save: [lm_head]
"""
MS_SWIFT = """
train_type: lora
model_type: qwen
torch_dtype: bfloat16
val_dataset: b
split_dataset_ratio: 0.01
attn_impl: flash_attn
truncation_strategy: delete
quant_method: bnb
quant_bits: 4
freeze_parameters: [visual]
trainable_parameters: [head]
merge_lora: true
lazy_tokenize: true
freeze_vit: true
model_kwargs: {}
resume_only_model: false
use_liger_kernel: true
"""


@pytest.mark.parametrize("text", [LLAMA_FACTORY, AXOLOTL, HUGGING_FACE, MS_SWIFT], ids=["LLaMA-Factory", "axolotl", "Hugging Face", "ms-swift"])
def test_every_key_of_another_tool_is_answered(text: str, tmp_path: Path) -> None:
    keys = list(yaml.safe_load(text))
    homes = {key for keys in known_keys().values() for key in keys}
    assert not [key for key in keys if key not in ALIASES and key not in homes and key not in SECTIONS]
    spec = tmp_path / "spec.yaml"
    spec.write_text(text)
    fixes = {problem.where: problem.fix for problem in check_spec(Options(spec_path=spec))}
    assert not {key: fixes.get(key) for key in keys if not fixes.get(key) or fixes[key].startswith("valid here")}


def test_both_precisions_are_each_refused(tmp_path: Path) -> None:
    """B14: before anything is loaded, and with what to write instead."""
    spec = tmp_path / "spec.yaml"
    spec.write_text("model: {model_name_or_path: gpt2}\ndata: {train: {path: builtin:extraction/train}}\nfp16: true\nbf16: true\n")
    fixes = {problem.where: problem.fix for problem in check_spec(Options(spec_path=spec))}
    assert fixes == {"fp16": "did you mean `train.precision`? (`precision: fp16`)", "bf16": "did you mean `train.precision`? (`precision: bf16`)"}


def test_values_point_at_values() -> None:
    properties = load_schema(SPEC_SCHEMA)["properties"]
    for key, values in VALUE_ALIASES.items():
        *sections, name = key.split(".")
        inner = properties
        for section in sections:
            inner = inner[section]["properties"]
        choices = inner[name]["enum"]
        for value, meant in values.items():
            assert meant.split(" ")[0] in choices and value not in choices and value == value.lower(), (key, value)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("optimizer.type", "adamw_torch_fused", "did you mean `adamw`?"),
        ("optimizer.type", "paged_adamw_8bit", "`adamw_8bit`? (its state is not paged"),
        ("schedule.lr_scheduler_type", "WSD", "`warmup_stable_decay`"),
        ("schedule.lr_scheduler_type", "cosine_with_min_lr", "`cosine`? (with schedule.min_lr_ratio)"),
        ("train.precision", "bfloat16", "`bf16`"),
        ("model.dtype", "bf16", "`bfloat16`"),
        ("method.type", "dora", "`lora`? (with method.use_dora: true)"),
        ("zero.offload_param", "true", "`cpu`"),
    ],
)
def test_value_of_another_tool(key: str, value: str, words: str) -> None:
    assert words in advise_value(key, value)


@pytest.mark.parametrize(
    ("text", "where", "fix"),
    [
        ("method: {type: LoRA}", "method.type", "did you mean `lora`?"),
        ("method: {type: QLORA}", "method.type", "did you mean `qlora`?"),
        ("train: {precision: BF16}", "train.precision", "did you mean `bf16`?"),
        ("zero: true", "zero", "write keys below `zero:`, or remove it"),
        ("hub_token: 1", "hub_token", "put HF_TOKEN into the environment"),
    ],
)
def test_capitals_and_booleans(text: str, where: str, fix: str, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"model: {{model_name_or_path: gpt2}}\ndata: {{train: {{path: 'builtin:extraction/train'}}}}\n{text}\n")
    (problem,) = check_spec(Options(spec_path=spec))
    assert problem.where == where and fix in problem.fix


def test_a_boolean_in_place_of_a_device(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text("model: {model_name_or_path: gpt2}\ndata: {train: {path: builtin:extraction/train}}\nzero: {offload_optimizer: true}\n")
    [problem] = check_spec(Options(spec_path=spec))
    assert problem.fix == "did you mean `cpu`?"


def test_an_alias_in_its_own_section() -> None:
    assert "`zero.stage`" in advise("", "stage") and "fine-tuning" in advise("", "stage")
    assert "`method.storage_dtype`" in advise("method", "bnb_4bit_quant_storage")
