"""The keys of a spec, and what a user who wrote another name most likely meant."""

from __future__ import annotations

import dataclasses
import difflib

from ftcore.spec import cluster, sections

SECTIONS: dict[str, type] = {
    "model": sections.ModelSection,
    "method": sections.MethodSection,
    "data": sections.DataSection,
    "batch": sections.BatchSection,
    "optimizer": sections.OptimizerSection,
    "schedule": sections.ScheduleSection,
    "train": sections.TrainSection,
    "zero": sections.ZeroSection,
    "cluster": cluster.ClusterSection,
    "checkpoint": sections.CheckpointSection,
    "evaluation": sections.EvaluationSection,
    "logging": sections.LoggingSection,
}

COLUMNS = {"messages": ("messages", "tools"), "prompt_completion": ("prompt", "completion", "weight", "tools")}
"""Data format -> its fields, which data.*.columns may rename."""

SHORTHANDS = {
    "model": "model_name_or_path",
    "method": "type",
    "data": "train.path",
    "data.train": "path",
    "data.eval": "path",
    "optimizer": "type",
    "schedule": "lr_scheduler_type",
    "zero": "stage",
    "cluster": "hosts",
}
"""Section -> the key meant by one who wrote a plain value in its place."""

_MICRO_STEPS = "the number of micro-steps follows from batch.micro_batch_tokens (most tokens a rank computes at once)"
GROUPS, ADAPTERS, SCHEDULER = "optimizer.parameter_groups", "method.adapters", "cluster.scheduler"
REPEATED = (GROUPS, ADAPTERS)
"""Sections that repeat keys of others: nothing outside them is ever meant for them."""
_QUANTISED = "use method.type: qlora, with method.bits 4 or 8 and method.quant_type"

ALIASES: dict[str, str] = {
    # model
    "model_name": "model.model_name_or_path",
    "model_path": "model.model_name_or_path",
    "base_model": "model.model_name_or_path",
    "pretrained_model_name_or_path": "model.model_name_or_path",
    "model_id": "model.model_name_or_path",
    "torch_dtype": "model.dtype",
    "flash_attn": "model.attn_implementation",
    "flash_attention": "model.attn_implementation",
    "use_flash_attention_2": "model.attn_implementation",
    "tokenizer": "=the tokenizer is the model's own",
    "tokenizer_name_or_path": "=the tokenizer is the model's own",
    "quantization": f"={_QUANTISED}",
    "load_in_4bit": f"={_QUANTISED}",
    "load_in_8bit": f"={_QUANTISED}",
    "bnb_4bit_quant_type": "method.quant_type",
    "bnb_4bit_use_double_quant": "method.double_quant",
    "quantization_bit": "method.bits",
    "load_in_bits": "method.bits",
    # method
    "lora": "=use the section method, with type: lora",
    "peft": "=use the section method, with type: lora",
    "qlora": f"={_QUANTISED}",
    "finetuning_type": "method.type",
    "adapter": "method.type",
    "peft_type": "method.type",
    "use_lora": "method.type",
    "use_peft": "method.type",
    "lora_r": "method.r",
    "lora_rank": "method.r",
    "rank": "method.r",
    "alpha": "method.lora_alpha",
    "dropout": "method.lora_dropout",
    "lora_target": "method.target_modules",
    "lora_target_modules": "method.target_modules",
    "lora_target_linear": "method.target_modules",
    "lora_modules_to_save": "method.modules_to_save",
    "rslora": "method.use_rslora",
    "dora": "method.use_dora",
    "resume_from_adapter": "method.adapter_name_or_path",
    "lora_model_dir": "method.adapter_name_or_path",
    "adapter_path": "method.adapter_name_or_path",
    # data
    "dataset": "data.train.path",
    "datasets": "data.train.path",
    "dataset_path": "data.train.path",
    "train_file": "data.train.path",
    "train_path": "data.train.path",
    "validation": "data.eval",
    "validation_file": "data.eval.path",
    "eval_dataset": "data.eval.path",
    "val_size": "=give the held-out rows as data.eval.path: a file of their own",
    "test_size": "=give the held-out rows as data.eval.path: a file of their own",
    "cutoff_len": "data.max_length",
    "max_seq_length": "data.max_length",
    "max_seq_len": "data.max_length",
    "sequence_len": "data.max_length",
    "seq_len": "data.max_length",
    "model_max_length": "data.max_length",
    "truncation": "data.overlong",
    "packing": "batch.layout (`packed`, the default: without padding, and samples never see each other; or `padded`)",
    "sample_packing": "batch.layout (`packed`, the default: without padding, and samples never see each other; or `padded`)",
    "group_by_length": "=samples are packed without padding, so their lengths need no grouping",
    "template": "=the chat template is the tokenizer's own",
    "chat_template": "=the chat template is the tokenizer's own",
    "train_on_inputs": "=only the answers are trained on",
    "assistant_only_loss": "=only the answers are trained on, always",
    # batch
    "batch_size": "batch.global_batch_size (samples in an update, over all ranks)",
    "train_batch_size": "batch.global_batch_size (samples in an update, over all ranks)",
    "per_device_train_batch_size": f"=use batch.global_batch_size (samples in an update, over all ranks); {_MICRO_STEPS}",
    "per_device_eval_batch_size": "=evaluation uses batch.micro_batch_tokens, and its loss depends on no batch size",
    "micro_batch_size": f"=use batch.global_batch_size (samples in an update, over all ranks); {_MICRO_STEPS}",
    "train_micro_batch_size_per_gpu": f"=use batch.global_batch_size (samples in an update, over all ranks); {_MICRO_STEPS}",
    "gradient_accumulation_steps": f"=remove it: {_MICRO_STEPS}",
    "max_tokens": "batch.micro_batch_tokens",
    "tokens_per_batch": "batch.tokens_per_update",
    # optimizer and schedule
    "lr": "optimizer.learning_rate",
    "optim": "optimizer.type",
    "optimizer.name": "optimizer.type",
    "optimizer.optimizer": "optimizer.type",
    "wd": "optimizer.weight_decay",
    "betas": "=use optimizer.adam_beta1 and optimizer.adam_beta2",
    "beta1": "optimizer.adam_beta1",
    "beta2": "optimizer.adam_beta2",
    "eps": "optimizer.adam_epsilon",
    "epsilon": "optimizer.adam_epsilon",
    "param_groups": "optimizer.parameter_groups",
    "gradient_clipping": "optimizer.max_grad_norm",
    "clip_grad": "optimizer.max_grad_norm",
    "grad_clip": "optimizer.max_grad_norm",
    "scheduler": "schedule.lr_scheduler_type",
    "schedule.type": "schedule.lr_scheduler_type",
    "schedule.name": "schedule.lr_scheduler_type",
    "lr_scheduler": "schedule.lr_scheduler_type",
    "warmup": "schedule.warmup_ratio or schedule.warmup_steps",
    # train
    "epochs": "train.num_train_epochs",
    "num_epochs": "train.num_train_epochs",
    "n_epochs": "train.num_train_epochs",
    "steps": "train.max_steps",
    "max_updates": "train.max_steps",
    "total_steps": "train.max_steps",
    "random_seed": "train.seed",
    "data_seed": "train.seed",
    "activation_checkpointing": "train.gradient_checkpointing",
    "bf16": "train.precision (`precision: bf16`)",
    "fp32": "train.precision (`precision: fp32`)",
    "mixed_precision": "train.precision",
    "fp16": "train.precision (`precision: fp16`)",
    "tf32": "train.precision",
    # zero and cluster
    "deepspeed": "=use zero.stage (and zero.offload_*); DeepSpeed's own keys go to zero.overrides",
    "ds_config": "=use zero.stage (and zero.offload_*); DeepSpeed's own keys go to zero.overrides",
    "deepspeed_config": "=use zero.stage (and zero.offload_*); DeepSpeed's own keys go to zero.overrides",
    "zero_stage": "zero.stage",
    "zero_optimization": "=use zero.stage; DeepSpeed's own keys go to zero.overrides.zero_optimization",
    "fsdp": "=sharding is DeepSpeed ZeRO's: use zero.stage",
    "cpu_offload": "zero.offload_optimizer",
    "hostfile": "cluster.hosts",
    "nodes": "cluster.hosts (a hostfile), or cluster.scheduler.nodes for a batch job",
    "num_nodes": "cluster.hosts (a hostfile), or cluster.scheduler.nodes for a batch job",
    "nnodes": "cluster.hosts (a hostfile), or cluster.scheduler.nodes for a batch job",
    "num_gpus": "cluster.slots",
    "nproc_per_node": "cluster.slots",
    "world_size": "cluster.slots (ranks on this machine) or cluster.hosts (a hostfile)",
    "srun": "=inside a Slurm job srun is taken by itself, and outside of one there is none: leave cluster.launcher out, or use ssh",
    "slurm": "=use the section cluster.scheduler, and `ftlaunch submit`",
    "sbatch": "=use the section cluster.scheduler, and `ftlaunch submit`",
    "torchrun": "=ftlaunch starts the ranks itself; cluster.launcher says how other hosts are reached",
    "openmpi": "=MPI's launchers are not used; cluster.launcher is ssh, pdsh or deepspeed",
    "master_address": "cluster.master_addr",
    "main_process_ip": "cluster.master_addr",
    "main_process_port": "cluster.master_port",
    "rdzv_endpoint": "=use cluster.master_addr and cluster.master_port",
    "ssh_port": "=write `port=N` behind the host's slots in the hostfile",
    "nccl_socket_ifname": "cluster.interface",
    "gloo_socket_ifname": "cluster.interface",
    "env": "cluster.environment",
    "env_vars": "cluster.environment",
    "ddp_timeout": "cluster.stall_timeout",
    "nccl_timeout": "cluster.stall_timeout",
    "walltime": "cluster.scheduler.time",
    "time_limit": "cluster.scheduler.time",
    "queue": "cluster.scheduler.partition",
    "requeue": "cluster.scheduler.max_requeues",
    # checkpoint, evaluation, logging
    "save_strategy": "checkpoint.save_steps (updates between checkpoints; 0: at the end)",
    "save_interval": "checkpoint.save_steps",
    "load_best_model_at_end": "checkpoint.metric_for_best_model (`ftlaunch export RUN --best` takes the best one)",
    "compute_metrics": "evaluation.metrics",
    "output_dir": "=the run folder is an option of the command line: -o RUN",
    "resume_from_checkpoint": "=resuming is an option of the command line: --resume RUN",
    "eval_strategy": "evaluation.eval_steps (updates between evaluations; 0: at the end)",
    "evaluation_strategy": "evaluation.eval_steps (updates between evaluations; 0: at the end)",
    "do_eval": "data.eval",
    "logging_strategy": "logging.logging_steps",
    "log_interval": "logging.logging_steps",
    "report_to": "=numbers go to metrics.jsonl in the run folder",
}
"""Another tool's name for a thing -> the key here, or after `=` an explanation. Names with a section count only there."""


def known_keys() -> dict[str, list[str]]:
    """Section (`data.train`, `data.eval` and a group of parameters too) -> its keys in order."""
    keys = {name: [field.name for field in dataclasses.fields(kind)] for name, kind in SECTIONS.items()}
    data_set = [field.name for field in dataclasses.fields(sections.DataSet)]
    group = [field.name for field in dataclasses.fields(sections.ParameterGroup)]
    adapter = [field.name for field in dataclasses.fields(sections.AdapterSection)]
    scheduler = [field.name for field in dataclasses.fields(cluster.SchedulerSection)]
    return {**keys, "data.train": data_set, "data.eval": data_set, GROUPS: group, ADAPTERS: adapter, SCHEDULER: scheduler}


def advise(section: str, key: str) -> str:
    """What to write in place of the unknown `key` of `section` ("" for the top): an alias, another section's key, or the nearest name."""
    known = known_keys()
    for nested, meant in (("data.eval_sets.", "data.eval"), (f"{GROUPS}.", GROUPS), (f"{ADAPTERS}.", ADAPTERS)):
        if section.startswith(nested):
            section = meant
    if section and section not in known:
        section = "".join(difflib.get_close_matches(section, list(known), n=1))
        siblings = known.get(section, [])
    else:
        siblings = known.get(section, list(SECTIONS))
    name = key.lower().replace("-", "_")
    alias = ALIASES.get(f"{section}.{name}") or ALIASES.get(name)
    leaf = alias.split(" ")[0].rpartition(".")[2] if alias else ""
    if section in REPEATED and leaf in siblings:
        return _did_you_mean(leaf)
    if alias and name not in siblings:
        return _alias_text(alias)
    homes = [f"{home}.{name}" for home in known if name in known[home] and home not in REPEATED] + [name for _ in range(name in SECTIONS)]
    if homes:
        return _did_you_mean(*homes)
    near = difflib.get_close_matches(name, siblings, n=1)
    if near:
        return _did_you_mean(f"{section}.{near[0]}" if section else near[0])
    return _nearest_anywhere(name, known) or f"valid here: {', '.join(siblings or SECTIONS)}"


def nearest(name: str, choices: list[str]) -> str:
    """ "did you mean ...?" for the nearest of `choices`, or the list of them."""
    near = difflib.get_close_matches(name, choices, n=1)
    return _did_you_mean(near[0]) if near else f"valid here: {', '.join(choices)}"


def _nearest_anywhere(name: str, known: dict[str, list[str]]) -> str:
    full = {field: f"{section}.{field}" for section, fields in known.items() for field in fields if section not in REPEATED}
    near = difflib.get_close_matches(name, [*full, *SECTIONS, *ALIASES], n=1, cutoff=0.7)
    if not near:
        return ""
    if near[0] in ALIASES:
        return _alias_text(ALIASES[near[0]])
    return _did_you_mean(full.get(near[0], near[0]))


def _alias_text(alias: str) -> str:
    if alias.startswith("="):
        return alias[1:]
    name, _, note = alias.partition(" ")
    return f"did you mean `{name}`? {note}".rstrip()


def _did_you_mean(*names: str) -> str:
    return "did you mean " + " or ".join(f"`{name}`" for name in names) + "?"
