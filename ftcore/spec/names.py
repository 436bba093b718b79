"""The keys of a spec, and what a user who wrote another name most likely meant."""

from __future__ import annotations

import dataclasses
import difflib

from ftcore.spec import cluster, sections
from ftcore.spec.aliases import ALIASES
from ftcore.spec.value_aliases import VALUE_ALIASES

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
    "profiling": sections.ProfilingSection,
    "hardware": sections.HardwareSection,
}

COLUMNS = {
    "messages": ("messages", "system", "tools"),
    "sharegpt": ("conversations", "system", "tools"),
    "alpaca": ("instruction", "input", "output", "system", "history", "weight", "tools"),
    "prompt_completion": ("prompt", "completion", "weight", "tools"),
    "text": ("text",),
    "tokenized": ("input_ids", "labels"),
}
"""Data format -> its fields, which data.*.columns may rename."""
ROLES = ("system", "user", "assistant", "tool", "function_call")
"""What data.*.roles may say that a file's own role is."""

CHAT_TEMPLATES = ("chatml", "llama3", "qwen2.5", "qwen3", "mistral", "gemma", "phi3")
"""Templates that ship with ftlaunch, which data.chat_template may name."""

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
    "profiling": "updates",
    "hardware": "accelerator",
}
"""Section -> the key meant by one who wrote a plain value in its place."""

GROUPS, ADAPTERS, SCHEDULER = "optimizer.parameter_groups", "method.adapters", "cluster.scheduler"
REPEATED = (GROUPS, ADAPTERS)
"""Sections that repeat keys of others: nothing outside them is ever meant for them."""


def known_keys() -> dict[str, list[str]]:
    """Section (`data.train`, `data.eval` and a group of parameters too) -> its keys in order."""
    keys = {name: [field.name for field in dataclasses.fields(kind)] for name, kind in SECTIONS.items()}
    data_set, training_set = ([field.name for field in dataclasses.fields(kind)] for kind in (sections.DataSet, sections.TrainingSet))
    group = [field.name for field in dataclasses.fields(sections.ParameterGroup)]
    adapter = [field.name for field in dataclasses.fields(sections.AdapterSection)]
    scheduler = [field.name for field in dataclasses.fields(cluster.SchedulerSection)]
    return {**keys, "data.train": training_set, "data.eval": data_set, GROUPS: group, ADAPTERS: adapter, SCHEDULER: scheduler}


def advise(section: str, key: str) -> str:
    """What to write in place of the unknown `key` of `section` ("" for the top): an alias, another section's key, or the nearest name.

    Nothing when the section is unknown as well and no name is near.
    """
    known = known_keys()
    for nested, meant in (("data.train_sets.", "data.train"), ("data.eval_sets.", "data.eval"), (f"{GROUPS}.", GROUPS), (f"{ADAPTERS}.", ADAPTERS)):
        if section.startswith(nested):
            section = meant
    if section and section not in known:
        as_deep = [name for name in known if name.count(".") == section.count(".")]
        section = "".join(difflib.get_close_matches(section, as_deep, n=1))
        siblings = known.get(section, [])
    else:
        siblings = known.get(section, list(SECTIONS))
    name = key.lower().replace("-", "_")
    alias = ALIASES.get(f"{section}.{name}") or ALIASES.get(name)
    leaf = alias.split(" ")[0].rpartition(".")[2] if alias else ""
    if section in REPEATED and leaf in siblings:
        return _did_you_mean(leaf)
    # `steps` of evaluation is its `eval_steps`, not the `train.max_steps` that the word means elsewhere.
    here = [f"{section}.{sibling}" for sibling in siblings if sibling.endswith(f"_{name}")] if section and leaf not in siblings else []
    if here and name not in SECTIONS and f"{section}.{name}" not in ALIASES:
        return _did_you_mean(*here)
    if alias and name not in siblings:
        return _alias_text(alias)
    homes = [f"{home}.{name}" for home in known if name in known[home] and home not in REPEATED] + [name for _ in range(name in SECTIONS)]
    if homes:
        return _did_you_mean(*homes)
    near = difflib.get_close_matches(name, siblings, n=1)
    if near:
        return _did_you_mean(f"{section}.{near[0]}" if section else near[0])
    return _nearest_anywhere(name, known) or (f"valid here: {', '.join(siblings)}" if siblings else "")


def advise_value(key: str, value: str) -> str:
    """What to write in place of another tool's `value` of `key`; empty when it is no tool's."""
    alias = VALUE_ALIASES.get(key, {}).get(value.lower())
    return _alias_text(alias) if alias else ""


def nearest(name: str, choices: list[str]) -> str:
    """ "did you mean ...?" for the nearest of `choices`, or the list of them."""
    by_lower = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(name, choices, n=1) or difflib.get_close_matches(name.lower(), list(by_lower), n=1)
    return _did_you_mean(by_lower.get(near[0].lower(), near[0])) if near else f"valid here: {', '.join(choices)}"


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
