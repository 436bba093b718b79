"""The report of all sets of a spec: `python -m ftcore.data_report.report FOLDER`, started by `ftlaunch data report`."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ftcore import stop_request
from ftcore.batch.mix import draws_an_epoch
from ftcore.data.cache import SampleSet
from ftcore.data.cache_errors import writing_cache
from ftcore.data.tokenizer import load_tokenizer
from ftcore.data_report.copies import Overlap, SetKeys, keys_of, overlap_of
from ftcore.data_report.examine import STREAMED_ROWS, Examiner
from ftcore.data_report.facts import MixShare, Report, SetReport
from ftcore.data_report.page import render_page
from ftcore.data_report.set_facts import SetSource, set_report
from ftcore.data_report.sets import set_names
from ftcore.source import resolve_tokenizer_source
from ftcore.spec.data_report import DataReportDir, DataRequest, DataRequestDir, load_request
from ftcore.spec.errors import DataError, Problem
from ftcore.spec.events import emit
from ftcore.spec.resolved import ResolvedSpec, load_resolved
from ftcore.spec.run_dir import RunDir, write_atomic
from ftcore.spec.sections import DataSection, DataSet, TrainingSet

STREAM_NOTE = "data.streaming: what is trained on is read while training; the report is of the first {rows:,} rows of each set"


def main(folder: RunDir) -> None:
    """Writes answer.json of a folder that holds request.json and resolved.json, and the report's own files. Raises FtError as its parts do."""
    stop_request.stop_anywhere()
    paths = DataRequestDir(folder.path)
    request, resolved = load_request(paths.request), load_resolved(folder.resolved)
    with writing_cache(Path(resolved.cache_dir)):
        report = make_report(resolved, request, folder.path / "scratch")
    text = json.dumps(asdict(report), indent=2, ensure_ascii=False) + "\n"
    written = DataReportDir(Path(request.output))
    write_atomic(written.json, text)
    if request.html:
        write_atomic(written.html, render_page(report))
    else:
        # A page of an earlier report would tell of other data.
        written.html.unlink(missing_ok=True)
    write_atomic(paths.answer, text)


@dataclass(frozen=True, slots=True)
class Asked:
    """What every set's part of the report is made with."""

    data: DataSection
    request: DataRequest
    tokenizer: Any
    examiner: Examiner
    keys: dict[str, SetKeys] = field(default_factory=dict)
    """Name of a set with samples -> their digests."""


def make_report(resolved: ResolvedSpec, request: DataRequest, scratch: Path) -> Report:
    """Everything about the data of a spec. Raises SpecError when its model or tokenizer can't be used; what is wrong with its data stands in the report."""
    data = resolved.spec.data
    model = resolve_tokenizer_source(resolved.spec.model, Path(resolved.cache_dir))
    tokenizer = load_tokenizer(model.path, trust_remote_code=model.trust_remote_code, chat_template=data.chat_template)
    asked = Asked(data, request, tokenizer, Examiner(resolved, model, tokenizer, scratch))
    names = set_names(data)
    sets: dict[str, SetReport] = {}
    for key, dataset in data.all_sets.items():
        emit("progress", stage="report", done=len(sets), total=len(names), text=names[key])
        sets[names[key]] = _set(key, names[key], dataset, asked)
    overlaps = _overlaps(sets, asked.keys, request.listed)
    mix, refusal = _mix(data, sets)
    return Report(
        spec=request.origin,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        model=model.name,
        tokenizer=model.path,
        max_length=data.max_length,
        overlong=data.overlong,
        on_bad_row=data.on_bad_row,
        loss_on=data.loss_on,
        sets={name: without_scratch(each, scratch) for name, each in sets.items()},
        overlaps=overlaps,
        mix=mix,
        notes=[STREAM_NOTE.format(rows=STREAMED_ROWS)] if data.streaming else [],
        refusals=refusal,
        refuses=bool(refusal) or any(each.refusals for each in sets.values()),
    )


def _set(key: str, name: str, dataset: DataSet, asked: Asked) -> SetReport:
    data, request = asked.data, asked.request
    purpose = "train" if key in data.keyed_training else "eval"
    found = asked.examiner.examine(key, dataset)
    rows_file = DataReportDir(Path(request.output)).rows(re.sub(r"[^A-Za-z0-9._-]+", "-", name))
    if found.prepared.outcomes and Path(found.prepared.outcomes).stat().st_size:
        rows_file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(found.prepared.outcomes, rows_file)
    else:
        rows_file.unlink(missing_ok=True)
    source = SetSource(
        key=key,
        purpose=purpose,
        path=dataset.path,
        files=found.prepared.files,
        format=found.prepared.format,
        format_reason=found.format_reason,
        revision=found.revision,
        template=found.template,
        refusals=found.refusals,
        rows_file=str(rows_file),
    )
    if found.prepared.arrow:
        asked.keys[name] = keys_of(SampleSet.open(found.prepared.arrow), name)
    backend = asked.tokenizer.backend_tokenizer
    return set_report(source, found.prepared, asked.keys.get(name), backend, max_length=data.max_length, listed=request.listed, rendered=request.samples)


def without_scratch(facts: SetReport, scratch: Path) -> SetReport:
    """The report without the place of samples that are gone with it."""
    return replace(facts, arrow="") if facts.arrow.startswith(str(scratch)) else facts


def _overlaps(sets: dict[str, SetReport], keys: dict[str, SetKeys], listed: int) -> list[Overlap]:
    """Every pair of a held-out set and a training set."""
    training = [(name, each) for name, each in keys.items() if sets[name].purpose == "train"]
    held_out = [(name, each) for name, each in keys.items() if sets[name].purpose == "eval"]
    return [overlap_of(trained, held, listed) for held in held_out for trained in training]


def _mix(data: DataSection, sets: dict[str, SetReport]) -> tuple[dict[str, MixShare], list[Problem]]:
    """The parts of several training sets in an epoch, and why they can't be mixed."""
    names = set_names(data)
    rules = {names[key]: rule for key, rule in data.keyed_training.items()}
    has_rule = any(rule.weight is not None or rule.samples is not None or rule.epochs is not None for rule in rules.values())
    sizes = {name: sets[name].samples for name in rules}
    if (len(rules) < 2 and not has_rule) or not all(sizes.values()):
        return {}, []
    try:
        draws = draws_an_epoch(sizes, rules)
    except DataError as error:
        return {}, list(error.problems)
    tokens = {name: draws[name] * sets[name].tokens / sizes[name] for name in draws}
    shares = {
        name: MixShare(samples=draws[name] / sum(draws.values()), tokens=tokens[name] / sum(tokens.values()), draws=draws[name], asked=asked_share(rules[name]))
        for name in draws
    }
    return shares, []


def asked_share(rule: TrainingSet) -> str:
    """What the spec says about a set's part."""
    if rule.weight is not None:
        return f"weight {rule.weight:g}"
    if rule.samples is not None:
        return f"{rule.samples:,} samples"
    return f"{rule.epochs:g} times through it" if rule.epochs is not None else "once through it"


if __name__ == "__main__":
    from ftcore.process import run_dir_argument, run_main

    run_main(main, run_dir_argument(sys.argv[1:]))
