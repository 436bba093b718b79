"""One row of a set, as text and token by token: `python -m ftcore.data_report.show FOLDER`, started by `ftlaunch data show`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from ftcore import stop_request
from ftcore.data.formats.decide import decide_format
from ftcore.data.formats.record_kinds import PlainText
from ftcore.data.formats.record_maker import RecordMaker
from ftcore.data.overlong import Fitted, fit
from ftcore.data.reading.find import find_files
from ftcore.data.reading.rows import BadRow, Row, Source
from ftcore.data.templates.tokenise import tokenise_with
from ftcore.data.tokenizer import load_tokenizer
from ftcore.data.tokens import Tokens
from ftcore.data_report.facts import TemplateFacts
from ftcore.data_report.first_rows import first_rows, row_of
from ftcore.data_report.rendered import Segment, segments_of, token_text
from ftcore.data_report.sets import set_names
from ftcore.data_report.template_facts import template_facts
from ftcore.source import resolve_tokenizer_source
from ftcore.spec.data_report import DataRequest, DataRequestDir, load_request
from ftcore.spec.errors import DataError, Problem, SpecError
from ftcore.spec.resolved import ResolvedSpec, load_resolved
from ftcore.spec.run_dir import RunDir, write_atomic
from ftcore.spec.sections import DataSection

SHOW_VERSION = 1
MOST_RAW_BYTES = 20_000
"""Of a line that can't be read; it may be a whole file without line ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSample:
    """A sample that the row became; of a row that was dropped, its tokens as they were."""

    segments: list[Segment]
    ids: list[int]
    positions: list[int]
    """Position of each token: what its rotary or learned embedding is for. They begin at 0 in every sample, packed or not."""
    texts: list[str]
    """Each token as text."""
    supervised: list[bool]
    """Whether the token is a label that counts; the first one never is, for nothing precedes it."""
    weights: list[float]
    """What each label counts in the loss; 0 for context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRow:
    """One row and what became of it; the answer of `ftlaunch data show --json`."""

    set: str
    key: str
    row: int
    file: str
    line: int | None
    format: str
    format_reason: str
    value: dict[str, Any] | None
    """The row as it stands in the file; None where it can't be read."""
    raw: str = ""
    """The line of the file, of a row that can't be read; what is no UTF-8 is written as \\xff."""
    template: TemplateFacts | None
    outcome: str
    """kept, dropped, truncated, split, or bad."""
    reason: str
    tokens: int
    """Of the whole row."""
    samples: list[ShownSample] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    """Why the row can't be used."""
    version: int = SHOW_VERSION


def main(folder: RunDir) -> None:
    """Writes answer.json. Raises SpecError for a set that isn't there, DataError for a row that isn't, and FtError as its parts do."""
    stop_request.stop_anywhere()
    paths = DataRequestDir(folder.path)
    shown = show_row(load_resolved(folder.resolved), load_request(paths.request))
    write_atomic(paths.answer, json.dumps(asdict(shown), ensure_ascii=False, default=str) + "\n")


def show_row(resolved: ResolvedSpec, request: DataRequest) -> ShownRow:
    """The row that `request` names, whether it can be used or not."""
    data, cache_dir = resolved.spec.data, Path(resolved.cache_dir)
    key = find_set(data, request.set_name)
    dataset = data.all_sets[key]
    source = find_files(dataset, key, purpose="train" if key in data.keyed_training else "eval", cache_dir=cache_dir)
    row = row_of(source, request.row, set_names(data)[key])
    about: dict[str, Any] = {"set": set_names(data)[key], "key": key, "row": row.number, "file": row.file, "line": row.line}
    about |= {"format": "", "format_reason": ""}
    if isinstance(row, BadRow):
        return replace(_bad(row, DataError(row.problems), about, template=None), raw=raw_line(source, row))
    try:
        decided, reason = decide_format(dataset, first_rows(source), key)
        about |= {"format": decided.format, "format_reason": reason}
        record = RecordMaker(decided, decided.format, key).record(row)
    except DataError as error:
        return _bad(row, error, about, template=None)
    model = resolve_tokenizer_source(resolved.spec.model, cache_dir)
    tokenizer = load_tokenizer(model.path, trust_remote_code=model.trust_remote_code, chat_template=data.chat_template)
    template = template_facts(tokenizer, data.chat_template, data.loss_on, [record])
    try:
        (found,) = tokenise_with(tokenizer, data.loss_on)([record])
    except DataError as error:
        return _bad(row, error, about, template)
    if isinstance(found, DataError):
        return _bad(row, found, about, template)
    fitted = fit(found, data.overlong, data.max_length, is_text=isinstance(record, PlainText))
    outcome, reason = told_outcome(fitted, found, data)
    backend = tokenizer.backend_tokenizer
    samples = [shown_sample(each, backend) for each in fitted.samples or (found,)]
    return ShownRow(**about, value=row.value, template=template, outcome=outcome, reason=reason, tokens=len(found.ids), samples=samples)


def raw_line(source: Source, row: BadRow) -> str:
    """The line on which a row that can't be read begins; empty where its file has no lines, or is compressed."""
    file = next((each for each in source.files if each.name == row.file and not each.compression and each.path.is_file()), None)
    if file is None or row.line is None:
        return ""
    with file.path.open("rb") as lines:
        return next(islice(lines, row.line - 1, None), b"")[:MOST_RAW_BYTES].decode("utf-8", "backslashreplace").rstrip("\r\n")


def find_set(data: DataSection, name: str) -> str:
    """The key of the set that is called `name`, in the report or in the spec; empty: the first one. Raises SpecError when there is none."""
    names = set_names(data)
    if not name:
        return next(iter(names))
    found = next((key for key, own in names.items() if name in (own, key)), None)
    if found is None:
        raise SpecError(f"the spec has no set {name!r}", where="--set", fix=f"its sets are {', '.join(names.values())}")
    return found


def told_outcome(fitted: Fitted, tokens: Tokens, data: DataSection) -> tuple[str, str]:
    """(outcome, reason) of a row whose tokens are known."""
    if fitted.outcome == "dropped" and fitted.reason == "overlong":
        length = f"{len(tokens.ids):,} tokens, data.max_length is {data.max_length:,}"
        return ("bad", f"{length}, and data.overlong is error") if data.overlong == "error" else ("dropped", f"{length}, and data.overlong is {data.overlong}")
    if fitted.outcome == "dropped":
        return "dropped", "no supervised token is left" if tokens.supervised else "it has no supervised token"
    return fitted.outcome or "kept", fitted.reason


def shown_sample(tokens: Tokens, backend: Any) -> ShownSample:
    """The tokens of a sample with what is known of each."""
    ids = tokens.ids.tolist()
    weights = [0.0] * len(ids)
    for (start, end), weight in zip(tokens.spans, tokens.weights, strict=True):
        for at in range(max(start, 1), end):
            weights[at] = float(weight)
    return ShownSample(
        segments=segments_of(backend, ids, tokens.spans, tokens.weights),
        ids=ids,
        positions=list(range(len(ids))),
        texts=[token_text(backend, token) for token in ids],
        supervised=[weight > 0 for weight in weights],
        weights=weights,
    )


def _bad(row: Row | BadRow, error: DataError, about: dict[str, Any], template: TemplateFacts | None) -> ShownRow:
    value = row.value if isinstance(row, Row) else None
    reason = "; ".join(problem.what for problem in error.problems)
    return ShownRow(**about, value=value, template=template, outcome="bad", reason=reason, tokens=0, problems=list(error.problems))


if __name__ == "__main__":
    from ftcore.process import run_dir_argument, run_main

    run_main(main, run_dir_argument(sys.argv[1:]))
