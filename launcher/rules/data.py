"""Rules between keys of a spec: what is trained on, how sets are mixed, and streams."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ftcore.spec.data_paths import path_kind
from ftcore.spec.errors import Problem
from ftcore.spec.names import COLUMNS, nearest
from ftcore.spec.sections import DataSet, Spec
from launcher.rules.rule import Findings, Rule
from launcher.spec_source import Draft

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
_STREAM_KEYS = ("lanes", "shuffle_buffer", "repeat")
_HUB_KEYS = ("name", "revision")
_SETS = ("data.train", "data.train_sets", "data.eval", "data.eval_sets")


def check_set_name(where: str, name: str, *, alone: str, taken: bool) -> Iterator[Problem]:
    """What is wrong with the name of a set under `where`; `alone` is what the set outside it is called, which is there if `taken`."""
    if not _NAME.fullmatch(name):
        fix = "use letters, digits, _ and -, at most 64 and no - at its beginning: it names files"
        yield Problem(what=f"'{name}' is no name of a set", where=f"{where}.{name}", fix=fix)
    if name == alone and taken:
        yield Problem(what=f"the set of data.{alone} is called {alone}", where=f"{where}.{name}", fix=f"choose another name, or remove data.{alone}")


def _something_to_train_on(spec: Spec, draft: Draft) -> Findings:
    if not spec.data.training:
        yield Problem(what="there are no rows to train on", where="data.train", fix="add `data.train.path`, or several sets below data.train_sets")
    for name in spec.data.train_sets:
        yield from check_set_name("data.train_sets", name, alone="train", taken=spec.data.train is not None)


def _mix(spec: Spec, draft: Draft) -> Findings:
    sets = spec.data.keyed_training
    weighted = [key for key, each in sets.items() if each.weight is not None]
    for key, each in sets.items():
        given = [name for name in ("weight", "samples", "epochs") if getattr(each, name) is not None]
        if len(given) > 1:
            what = f"{' and '.join(given)} are given; each alone decides how much of the set an epoch holds"
            yield Problem(what=what, where=f"{key}.{given[1]}", fix="keep one of them")
        elif weighted and key not in weighted:
            what = f"it has no weight, and {weighted[0]} has one: shares can't be told"
            yield Problem(what=what, where=key, fix="give every set to train on a weight, or none of them")
    if len(sets) == 1 and weighted:
        yield Problem(what="weight has no effect with one set to train on", where=f"{weighted[0]}.weight", fix="remove it, or add data.train_sets")


def _columns(spec: Spec, draft: Draft) -> Findings:
    for key, each in spec.data.all_sets.items():
        fields = COLUMNS.get(each.format) or tuple(dict.fromkeys(name for names in COLUMNS.values() for name in names))
        for field in each.columns:
            if field not in fields:
                what = f"format {each.format} has no field `{field}`" if each.format != "auto" else f"no format has a field `{field}`"
                yield Problem(what=what, where=f"{key}.columns.{field}", fix=nearest(field, list(fields)))
        if each.path.startswith("builtin:") and (each.columns or each.roles or each.format not in ("auto", "messages")):
            yield Problem(what=f"{each.path} has messages, under that name", where=f"{key}.path", fix="remove format, columns and roles")
        yield from _roles(key, each)
        yield from _hub_keys(key, each)


def _roles(key: str, each: DataSet) -> Findings:
    if each.roles and each.format in ("alpaca", "text", "tokenized"):
        yield Problem(what=f"rows of the format {each.format} have no roles", where=f"{key}.roles", fix="remove it")


def _hub_keys(key: str, each: DataSet) -> Findings:
    kind = path_kind(each.path) if each.path else "hub"
    for name in _HUB_KEYS:
        if getattr(each, name) and kind != "hub":
            yield Problem(what=f"{name} is for data sets of the hub, and {each.path} is none", where=f"{key}.{name}", fix="remove it")
    if each.split and kind in ("builtin", "glob"):
        yield Problem(what=f"split has no effect on {each.path}", where=f"{key}.split", fix="remove it")


def _stream(spec: Spec, draft: Draft) -> Findings:
    data = spec.data
    if not data.streaming:
        for name in _STREAM_KEYS:
            if draft.given(f"data.{name}"):
                yield Problem(what=f"{name} has no effect without data.streaming", where=f"data.{name}", fix="add data.streaming: true, or remove it")
        return
    if spec.train.max_steps is None:
        what = "a stream has no length that is known beforehand, so the schedule needs the number of updates"
        yield Problem(
            what=what, where="data.streaming", fix="give train.max_steps in place of num_train_epochs (with data.repeat: false the run ends with the data)"
        )
    for key, each in data.keyed_training.items():
        if each.samples is not None or each.epochs is not None:
            name = "samples" if each.samples is not None else "epochs"
            yield Problem(what=f"{name} needs sets whose length is known", where=f"{key}.{name}", fix="mix a stream's sets by weight")


DATA_RULES = (
    Rule(("data.train", "data.train_sets"), _something_to_train_on),
    Rule(("data.train", "data.train_sets"), _mix),
    Rule(_SETS, _columns),
    Rule((*_SETS, "data.streaming", *(f"data.{name}" for name in _STREAM_KEYS), "train.max_steps"), _stream),
)
