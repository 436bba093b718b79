"""Rules between keys of a spec: what is evaluated, by what, and which checkpoint is the best one."""

from __future__ import annotations

import re

from ftcore.spec.errors import Problem
from ftcore.spec.names import nearest
from ftcore.spec.sections import Spec
from launcher.rules.data import check_set_name
from launcher.rules.rule import Findings, Rule
from launcher.spec_source import Draft


def _set_names(spec: Spec, draft: Draft) -> Findings:
    for name in spec.data.eval_sets:
        yield from check_set_name("data.eval_sets", name, alone="eval", taken=spec.data.eval is not None)


def _keys_without_sets(spec: Spec, draft: Draft) -> Findings:
    if spec.data.held_out:
        return
    for name in ("eval_steps", "eval_on_start", "metrics"):
        if draft.given(f"evaluation.{name}"):
            yield Problem(what=f"{name} is given, but there are no rows to evaluate on", where=f"evaluation.{name}", fix="add data.eval, or remove it")


def _best(spec: Spec, draft: Draft) -> Findings:
    wanted, where = spec.checkpoint.metric_for_best_model, "checkpoint.metric_for_best_model"
    if not wanted:
        return
    if not spec.data.held_out:
        yield Problem(what=f"{wanted} can't be measured: there are no rows to evaluate on", where=where, fix="add data.eval, or remove it")
        return
    known = ["loss", *(f"{name}/loss" for name in spec.data.held_out)]
    if wanted not in known:
        yield Problem(what=f"no evaluation gives {wanted}", where=where, fix=nearest(wanted, known))
    elif spec.evaluation.eval_steps == 0:
        what = "with evaluation.eval_steps 0 only the end is evaluated, so that the best checkpoint would be the last one"
        yield Problem(what=what, where=where, fix="set evaluation.eval_steps, or remove it")


def _early_stopping(spec: Spec, draft: Draft) -> Findings:
    evaluation, where = spec.evaluation, "evaluation.early_stopping_patience"
    if not evaluation.early_stopping_patience:
        # A patience of 0 that is given turns it off, for a run that goes on too, and leaves the threshold for later.
        if draft.given("evaluation.early_stopping_threshold") and not draft.given(where):
            what = "early_stopping_threshold has no effect without early_stopping_patience"
            yield Problem(what=what, where="evaluation.early_stopping_threshold", fix="give early_stopping_patience, or remove it")
        return
    if not spec.data.held_out:
        yield Problem(what="early_stopping_patience is given, but there are no rows to evaluate on", where=where, fix="add data.eval, or remove it")
    elif not spec.checkpoint.metric_for_best_model:
        fix = "add checkpoint.metric_for_best_model: loss, or remove early_stopping_patience"
        yield Problem(what="early_stopping_patience needs a metric that is watched", where=where, fix=fix)


def _answers(spec: Spec, draft: Draft) -> Findings:
    evaluation = spec.evaluation
    if "regex" in evaluation.metrics and not evaluation.regex:
        yield Problem(what="the metric regex needs a regular expression", where="evaluation.regex", fix="give one, or remove regex from evaluation.metrics")
    if evaluation.regex and "regex" not in evaluation.metrics:
        yield Problem(what="regex has no effect without the metric of that name", where="evaluation.regex", fix="add regex to evaluation.metrics, or remove it")
    try:
        re.compile(evaluation.regex)
    except (re.error, RecursionError, OverflowError) as error:
        yield Problem(what=f"it is no regular expression: {error}", where="evaluation.regex", fix="write it as Python's re does, in single quotes")


_EARLY = ("evaluation.early_stopping_patience", "evaluation.early_stopping_threshold")
EVALUATION_RULES = (
    Rule(("data.eval", "data.eval_sets"), _set_names),
    Rule(("data.eval", "data.eval_sets"), _keys_without_sets),
    Rule(("data.eval", "data.eval_sets", "checkpoint.metric_for_best_model", "evaluation.eval_steps"), _best),
    Rule((*_EARLY, "data.eval", "data.eval_sets", "checkpoint.metric_for_best_model"), _early_stopping),
    Rule(("evaluation.metrics", "evaluation.regex"), _answers),
)
