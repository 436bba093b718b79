"""What `ftlaunch evaluate` is asked to evaluate, and the spec it is evaluated by. Nothing heavy is imported."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ftcore.spec.document import dotted
from ftcore.spec.errors import ClusterError, FtError, Problem, SpecError
from ftcore.spec.evaluation import EvaluationRequest
from ftcore.spec.resolved import ResolvedSpec, load_resolved
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import MethodSection, Spec
from launcher.references import absolute, absolute_model, check_model
from launcher.resolve import Options, Resolution, read_and_resolve

BASE = "base"
"""Stands for the spec's own model, before training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """MODEL_OR_RUN and the options that choose within it."""

    name: str
    update: int | None = None
    best: bool = False
    adapter: str = ""
    against: str = ""
    """Absolute path of an earlier result; empty: none."""


def kind_of(name: str) -> str:
    """run, adapter, base or model, by what lies there."""
    folder = Path(absolute(name))
    if name == BASE:
        return "base"
    if (folder / "resolved.json").is_file():
        return "run"
    return "adapter" if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file() else "model"


def make_request(asked: Asked, options: Options) -> tuple[EvaluationRequest, Resolution]:
    """The request, and the spec's resolution that it was made from.

    Raises SpecError with every problem of the model, the spec and the options together, ClusterError when only the hostfile is wrong.
    """
    kind = kind_of(asked.name)
    run = load_resolved(RunDir(Path(absolute(asked.name))).resolved) if kind == "run" else None
    problems = _target_problems(asked, kind, run)
    resolution: Resolution | None = None
    host_error: ClusterError | None = None
    try:
        resolution = _resolve_run(run, asked.name, options) if run is not None and options.spec_path is None else read_and_resolve(options)
        problems += _spec_problems(resolution.resolved.spec)
    except ClusterError as error:
        host_error = error
    except SpecError as error:
        problems += error.problems
    if problems or resolution is None:
        if host_error is not None and not problems:
            raise host_error
        raise SpecError([*problems, *(host_error.problems if host_error is not None else ())])
    spec = _evaluated_spec(kind, asked.name, resolution.resolved.spec, run)
    is_own_model = kind == "model" and spec.model.model_name_or_path == resolution.resolved.spec.model.model_name_or_path
    request = EvaluationRequest(
        kind="base" if is_own_model else kind,
        name=spec.model.model_name_or_path if kind == "base" else asked.name,
        path=absolute(asked.name) if kind in ("run", "adapter") else "",
        update=asked.update,
        best=asked.best,
        adapter=asked.adapter,
        against=asked.against,
        resolved=replace(resolution.resolved, spec=spec),
    )
    return request, resolution


def _evaluated_spec(kind: str, name: str, spec: Spec, run: ResolvedSpec | None) -> Spec:
    """The spec with the model that is loaded and what is attached to it; nothing is recomputed or warm-started."""
    train = replace(spec.train, gradient_checkpointing="none")
    if run is not None:
        train = replace(train, precision=run.spec.train.precision, keep_in_fp32=run.spec.train.keep_in_fp32)
        method = replace(run.spec.method, adapter_name_or_path="")
        return replace(spec, model=run.spec.model, method=method, optimizer=run.spec.optimizer, train=train)
    # A quantised base stays one, so that it can be compared with what was trained on it.
    method = replace(spec.method, adapter_name_or_path="", adapters={}) if spec.method.type == "qlora" and kind != "model" else MethodSection()
    model = replace(spec.model, model_name_or_path=absolute_model(name)) if kind == "model" else spec.model
    return replace(spec, model=model, method=method, optimizer=replace(spec.optimizer, parameter_groups=()), train=train)


def _target_problems(asked: Asked, kind: str, run: ResolvedSpec | None) -> list[Problem]:
    problems = []
    if kind == "model":
        problem = check_model(asked.name)
        problems += [replace(problem, where="MODEL_OR_RUN")] if problem is not None else []
    if kind == "adapter" and not (Path(absolute(asked.name)) / "adapter_model.safetensors").is_file():
        what = f"{asked.name} has no adapter_model.safetensors"
        problems.append(Problem(what=what, where="MODEL_OR_RUN", fix="name the folder that `ftlaunch export --format adapter` or PEFT wrote"))
    given = [name for name, value in (("--update", asked.update), ("--best", asked.best), ("--adapter", asked.adapter)) if value]
    if run is None and given:
        fix = "name the run's folder"
        problems.append(Problem(what=f"{asked.name} is no run's folder, so {' and '.join(given)} choose nothing", where="MODEL_OR_RUN", fix=fix))
    if asked.update is not None and asked.best:
        problems.append(Problem(what="--update and --best name two checkpoints", where="--update", fix="give one of them"))
    if run is not None and (run.spec.method.adapters or asked.adapter):
        names = tuple(run.spec.method.adapters)
        if asked.adapter not in names:
            what = f"the run has no adapter '{asked.adapter}'" if asked.adapter else "the run has several adapters"
            fix = f"give one of {', '.join(names)}" if names else "remove it: the run has no named adapters"
            problems.append(Problem(what=what, where="--adapter", fix=fix))
    return problems


def _spec_problems(spec: Spec) -> list[Problem]:
    problems = []
    if not spec.data.held_out:
        problems.append(Problem(what="the spec has no held-out rows to evaluate on", where="data.eval", fix="add data.eval or data.eval_sets"))
    if "rouge_l" in spec.evaluation.metrics and importlib.util.find_spec("rouge_score") is None:
        what = "the metric rouge_l needs the package rouge-score, which is not installed"
        problems.append(Problem(what=what, where="evaluation.metrics", fix="pip install 'ftlaunch[eval]'"))
    return problems


def _resolve_run(run: ResolvedSpec, name: str, options: Options) -> Resolution:
    """The run's own spec, as far as somebody set it, with the options over it. Raises as `read_and_resolve`, naming the run's resolved.json."""
    label = str(Path(name) / "resolved.json")
    with tempfile.TemporaryDirectory(prefix="ftlaunch-evaluate-") as folder:
        file = Path(folder) / "spec.json"
        file.write_text(json.dumps(_given(run)), encoding="utf-8")
        try:
            resolution = read_and_resolve(replace(options, spec_path=file))
        except (SpecError, ClusterError) as error:
            raise _renamed(error, str(file), label) from error
        sources = {key: run.sources.get(key, label) if source.startswith(str(file)) else source for key, source in resolution.resolved.sources.items()}
        return replace(resolution, origin=label, resolved=replace(resolution.resolved, sources=sources))


def _renamed(error: FtError, file: str, label: str) -> FtError:
    return type(error)([replace(problem, file=label, line=None) if problem.file == file else problem for problem in error.problems])


def _given(run: ResolvedSpec) -> dict[str, Any]:
    """The values of a run's spec that its user set; the others follow anew from defaults and options."""

    def keep(data: dict[str, Any], above: tuple[str, ...]) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for key, value in data.items():
            path = (*above, key)
            if isinstance(value, dict) and value:
                inner = keep(value, path)
                kept |= {key: inner} if inner else {}
            elif value is not None and run.sources.get(dotted(path), "default") not in ("default", "derived"):
                kept[key] = value
        return kept

    return keep(dataclasses.asdict(run.spec), ())
