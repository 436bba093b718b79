"""docs/deepspeed-json.md from the schema: `python -m launcher.ds_json.docs > docs/deepspeed-json.md`; a test fails when the file is stale."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from launcher.ds_json.keys import DS_SCHEMA
from launcher.ds_json.training import OPTIMIZERS, SCHEDULES
from launcher.schema_check import Schema, load_schema

HEAD = """# A DeepSpeed JSON you already have

Written by `python -m launcher.ds_json.docs > docs/deepspeed-json.md`; change launcher/ds_json/docs.py or launcher/schema/ds_config.schema.json instead.

```yaml
# ftlaunch.yaml
model: {model_name_or_path: Qwen/Qwen3-0.6B}
data: {train: {path: train.jsonl}}
zero: {config: ds_z2_config.json}
```

`zero.config` takes the JSON that you give to Hugging Face's Trainer, LLaMA-Factory, axolotl or FastChat. `ftlaunch validate ds_z2_config.json`
checks the JSON by itself; `ftlaunch validate` checks it with the spec. Every mistake comes at once, with the JSON's line.

- **What it may look like**: JSON with comments (`//`, `#`, `/* */`) and with commas before a closing bracket. Hjson without quotes is refused, and so is
  a key that is given twice. Keys that begin with `_`, `#` or `//` are notes to the reader. `5e8` may stand for a whole number. Older names are read
  (`cpu_offload`, `bfloat16`, `prefetch_bucket_size` for `stage3_prefetch_bucket_size`, `thread_count` of aio), each thing under one name.
- **"auto"** is filled in: what the spec decides (batch sizes, clipping, learning rate, betas, weight decay, warm-up, bf16 or fp16) by the spec and its
  defaults, buckets and the `stage3_` sizes by the preset of the stage (ds_configs/). Nothing in RUN/ds_config.json is "auto".
- **Who wins**, lowest first: the defaults, the JSON, the spec file, the command line (`--zero 3`, `--set optimizer.learning_rate=1e-4`). What the spec does
  not say is taken over from the JSON, so that a short spec is enough. What the JSON and the spec file say of one thing must be the same: each
  contradiction is a problem that names the JSON's line, the spec's key and its line. Over the command line's values the JSON is only warned of.
- **zero.overrides** wins over what the JSON says of keys that the spec has none for. It takes no key that stands in the spec: the last column says which one.
- **A run keeps it**: RUN/resolved.json holds every value with the JSON's name and line as its source, RUN/ds_config.json what DeepSpeed gets, and
  RUN/zero_config.json what the JSON said (without comments and Comet's key) and what was ignored of it. A resume never reads the JSON again, which may be
  gone. In another stage (`--zero 2`) it leaves out what has no effect there.
- **What has no effect here** is left out with a warning (`ftlaunch validate`, `launch`, `submit`). What would change training and is not offered is refused,
  unless its value switches it off (`"enabled": false`, or a value named below).

## What is read otherwise than DeepSpeed reads it

- **Batch sizes.** `train_batch_size` is `batch.global_batch_size`: the samples of an update, on any number of ranks. Micro-batch and accumulation say how an
  update is split, which follows from `batch.micro_batch_tokens` here; a total that is no multiple of their product is refused. Without a
  `train_batch_size`, and where the spec gives no size, micro-batch x accumulation (1 where it is not written) x ranks is taken for it and told.
- **Precision.** `bf16.enabled` and `fp16.enabled` are `train.precision`: one that is true decides; both false, or bf16 false alone, means fp32; both true is
  refused. `torch_autocast` to bfloat16 is bf16_autocast. Stage 0 in bf16 or fp16 is refused, because DeepSpeed is wrong there.
- **Optimizers.** {optimizers}.
  DeepSpeed's Adam is AdamW unless `adam_w_mode` is false, which is refused.
- **Schedules.** {schedules}.
  A warm-up is linear here; DeepSpeed's rises with the logarithm unless `warmup_type` is linear, and a warning says so. `total_num_steps` must be
  `train.max_steps` where the spec gives that; else the run's length counts.
- **sub_group_size 0** (every parameter a step of its own) becomes the preset's size.
- **reduce_scatter false** at stage 3 is ignored: it scales gradients another way there.

## Every key

"to DeepSpeed" is through zero.overrides, where resolved.json shows it. Keys without a mark for a stage count in all of them.

| key | in a JSON given as zero.config | in zero.overrides |
|---|---|---|
"""
_SAID = {
    "train_batch_size": "`batch.global_batch_size`",
    "train_micro_batch_size_per_gpu": "see above",
    "gradient_accumulation_steps": "see above",
    "optimizer.type": "`optimizer.type`",
    "optimizer.params.lr": "`optimizer.learning_rate`",
    "optimizer.params.betas": "`optimizer.adam_beta1` and `optimizer.adam_beta2`",
    "optimizer.params.eps": "`optimizer.adam_epsilon`",
    "optimizer.params.weight_decay": "`optimizer.weight_decay`",
    "optimizer.params.momentum": "`optimizer.momentum`, or `optimizer.muon_momentum`",
    "scheduler.type": "`schedule.lr_scheduler_type`",
    "scheduler.params.warmup_min_lr": "0, or refused",
    "scheduler.params.warmup_min_ratio": "0, or refused",
    "scheduler.params.warmup_max_lr": "`optimizer.learning_rate`",
    "scheduler.params.warmup_num_steps": "`schedule.warmup_steps`",
    "scheduler.params.warmup_type": "see above",
    "scheduler.params.total_num_steps": "see above",
    "scheduler.params.cos_min_ratio": "`schedule.min_lr_ratio`",
    "fp16.enabled": "`train.precision`",
    "bf16.enabled": "`train.precision`",
    "torch_autocast.enabled": "`train.precision`",
    "torch_autocast.dtype": "bfloat16, or refused",
    "zero_optimization.offload_param.nvme_path": "`zero.nvme_path`",
    "zero_optimization.offload_optimizer.nvme_path": "`zero.nvme_path`",
    "zero_optimization.cpu_offload": "`zero.offload_optimizer`",
    "zero_optimization.cpu_offload_param": "`zero.offload_param`",
    "bfloat16": "read as `bf16`",
}
"""Keys that are the spec's in another form -> where."""
_NO_EFFECT = "it has no effect here: "
_REFUSED_SCHEDULES = ("cycle_", "decay_", "lr_range_")


def render_ds_docs() -> str:
    """The page."""
    kinds: dict[str, list[str]] = {}
    for theirs, ours in OPTIMIZERS.items():
        kinds.setdefault(ours, []).append(theirs)
    optimizers = ", ".join(f"{' and '.join(theirs)} {'are' if len(theirs) > 1 else 'is'} {ours}" for ours, theirs in kinds.items())
    schedules = ", ".join(f"{theirs} is {ours}" for theirs, ours in SCHEDULES.items())
    head = HEAD.replace("{optimizers}", f"{optimizers}; others are refused").replace("{schedules}", f"{schedules}; others are refused")
    rows: dict[tuple[str, str], list[str]] = {}
    for key, rule, inherited in _keys(load_schema(DS_SCHEMA), "", {}):
        home, _, name = key.rpartition(".")
        said = f"{_where(rule)} | {_in_json(key, rule, inherited)} | {_in_overrides(rule, inherited)} |\n"
        # What is said of several keys of a section stands at the first of them.
        named = rows.setdefault((home, said), [])
        named.append(f"`{name}`" if named else f"`{key}`")
    return head + "".join(f"| {', '.join(names)}{said}" for (_, said), names in rows.items())


def _keys(schema: Schema, above: str, inherited: Schema) -> Iterator[tuple[str, Schema, Schema]]:
    """Each key with its rule and that of the refused section it stands in; of sections that are not looked into, only the section."""
    for name, rule in schema["properties"].items():
        key = f"{above}{name}"
        if key.startswith("scheduler.params.") and name.startswith(_REFUSED_SCHEDULES):
            continue
        if "properties" in rule and rule.get("x-json") in (None, "spec"):
            yield from _keys(rule, f"{key}.", rule if "x-refused" in rule else inherited)
        else:
            yield key, rule, inherited


def _where(rule: Schema) -> str:
    stages, precisions = rule.get("x-stages"), rule.get("x-precisions")
    notes = [f"stage {', '.join(map(str, stages))}"] if stages else []
    return f" ({'; '.join([*notes, *(precisions or [])])})" if notes or precisions else ""


def _in_json(key: str, rule: Schema, inherited: Schema) -> str:
    becomes = rule.get("x-json") or ("spec" if inherited.get("x-json") == "spec" else None)
    offs = "".join(f"; {json.dumps(off)} does nothing" for off in rule.get("x-off", ()) if off not in (None, []))
    if key in _SAID or "x-key" in rule:
        return _SAID.get(key) or f"`{rule['x-key']}`"
    if becomes is None:
        return "to DeepSpeed"
    word = {"ignored": "ignored", "silent": "dropped", "refused": "refused"}[becomes]
    return f"{word}: {rule['x-refused'].removeprefix(_NO_EFFECT)}{offs if becomes == 'refused' else ''}"


def _in_overrides(rule: Schema, inherited: Schema) -> str:
    refused = rule if "x-refused" in rule else inherited
    return f"no: {refused['x-fix']}" if "x-refused" in refused else "yes"


if __name__ == "__main__":
    sys.stdout.write(render_ds_docs())
