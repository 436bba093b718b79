"""Rules between keys of a spec: which parameters are trained."""

from __future__ import annotations

import re

from ftcore.spec.errors import Problem
from ftcore.spec.sections import Spec
from launcher.adapter_names import name_problem
from launcher.rules.precision import DTYPES
from launcher.rules.rule import Findings, Rule
from launcher.spec_source import Draft

LORA_KEYS = (
    "r",
    "lora_alpha",
    "lora_dropout",
    "target_modules",
    "modules_to_save",
    "use_rslora",
    "use_dora",
    "adapter_name_or_path",
    "adapters",
)
QLORA_KEYS = ("bits", "quant_type", "double_quant", "compute_dtype", "storage_dtype")


def _lora_keys(spec: Spec, draft: Draft) -> Findings:
    if spec.method.type == "full":
        for name in LORA_KEYS:
            if draft.given(f"method.{name}"):
                fix = f"use method.type: lora, or remove it (on the command line: --set method.{name}=null)"
                yield Problem(what=f"{name} is a key of LoRA, but method.type is full", where=f"method.{name}", fix=fix)


def _qlora_keys(spec: Spec, draft: Draft) -> Findings:
    method = spec.method
    for name in QLORA_KEYS:
        if method.type != "qlora" and draft.given(f"method.{name}"):
            what = f"{name} is about a quantised base, but method.type is {method.type}"
            yield Problem(what=what, where=f"method.{name}", fix=f"use method.type: qlora, or remove {name}")
        elif method.type == "qlora" and name != "bits" and method.bits == 8 and draft.given(f"method.{name}"):
            yield Problem(what=f"{name} is of the 4-bit types, but bits is 8", where=f"method.{name}", fix="remove it, or use bits: 4")


def _target_names(spec: Spec, draft: Draft) -> Findings:
    for key, names in (("target_modules", spec.method.target_modules), ("modules_to_save", spec.method.modules_to_save)):
        where = f"method.{key}"
        for name in names:
            if "," in name or " " in name:
                parts = [part for part in name.replace(",", " ").split() if part]
                yield Problem(what=f"'{name}' is not one module's name", where=where, fix=f"write a list: [{', '.join(parts)}]")
            elif name in ("all", "all_linear", "linear"):
                yield Problem(what=f"no module of a language model is called {name}", where=where, fix="did you mean `all-linear`?")
    targets = spec.method.target_modules
    if not targets:
        yield Problem(what="no module gets an adapter", where="method.target_modules", fix="name some, or use all-linear")
    if "all-linear" in targets and len(targets) > 1:
        yield Problem(what="all-linear already names every linear layer", where="method.target_modules", fix="keep all-linear alone, or the names alone")


def _several_adapters(spec: Spec, draft: Draft) -> Findings:
    method, where = spec.method, "method.adapters"
    if not method.adapters:
        return
    for name in method.adapters:
        what, fix = name_problem(name)
        if what:
            yield Problem(what=what, where=f"{where}.{name}", fix=fix)
    if method.modules_to_save:
        what = "modules_to_save would be shared by several adapters, which are each trained as if alone"
        yield Problem(what=what, where="method.modules_to_save", fix="remove it, or train one adapter")
    if method.adapter_name_or_path:
        what = "several adapters can't all start from one"
        yield Problem(what=what, where="method.adapter_name_or_path", fix="remove it, or train one adapter")


def _parameter_groups(spec: Spec, draft: Draft) -> Findings:
    where = "optimizer.parameter_groups"
    seen: set[str] = set()
    for group in spec.optimizer.parameter_groups:
        others = (group.learning_rate, group.weight_decay, group.max_grad_norm, group.keep_in_fp32 or None)
        if group.freeze and any(value is not None for value in others):
            yield Problem(what=f"the group of {group.pattern} is frozen, so nothing else of it has an effect", where=where, fix="keep pattern and freeze alone")
        if not group.freeze and all(value is None for value in others):
            fix = "give learning_rate, weight_decay, max_grad_norm, keep_in_fp32: true or freeze: true"
            yield Problem(what=f"the group of {group.pattern} changes nothing", where=where, fix=fix)
        if group.pattern in seen:
            yield Problem(what=f"{group.pattern} is the pattern of two groups", where=where, fix="make one of them")
        seen.add(group.pattern)


def _kept_parameters(spec: Spec, draft: Draft) -> Findings:
    precision, where = spec.train.precision, "optimizer.parameter_groups"
    for group in spec.optimizer.parameter_groups:
        if not group.keep_in_fp32 or precision == "bf16_autocast":
            continue
        if precision == "fp32":
            yield Problem(what=f"keep_in_fp32 of {group.pattern} has no effect: everything is fp32 with train.precision fp32", where=where, fix="remove it")
        else:
            what = f"DeepSpeed holds every parameter in {DTYPES[precision]} with train.precision {precision}, {group.pattern} too, beside fp32 masters"
            yield Problem(what=what, where=where, fix="use train.precision: bf16_autocast, whose weights are fp32, or remove keep_in_fp32")


def _checkpointing(spec: Spec, draft: Draft) -> Findings:
    value = spec.train.gradient_checkpointing
    if value not in ("none", "full", "sqrt") and not re.fullmatch(r"every:[1-9][0-9]{0,5}", value):
        what, fix = f"'{value}' is none of none, full, every:K and sqrt", "write for example every:2, or true"
        if value.lower() in ("true", "false"):
            what, fix = f"true or false (a boolean) expected, got text '{value}'", f"write {value.lower()}, without quotes"
        yield Problem(what=what, where="train.gradient_checkpointing", fix=fix)


METHOD_RULES = (
    Rule(("method.type",), _lora_keys),
    Rule(("method.type", "method.bits"), _qlora_keys),
    Rule(("method.target_modules", "method.modules_to_save"), _target_names),
    Rule(("method.adapters", "method.modules_to_save", "method.adapter_name_or_path"), _several_adapters),
    Rule(("optimizer.parameter_groups",), _parameter_groups),
    Rule(("optimizer.parameter_groups", "train.precision"), _kept_parameters),
    Rule(("train.gradient_checkpointing",), _checkpointing),
)
