"""What the rows of a data set are, told from the fields of the first ones. Shared by the launcher, which offers files, and the core, which reads them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftcore.spec.names import COLUMNS
from ftcore.spec.yaml_text import mapping

LOOKED_AT = 20
"""Rows that tell the format."""
REQUIRED = {
    "tokenized": ("input_ids", "labels"),
    "messages": ("messages",),
    "sharegpt": ("conversations",),
    "alpaca": ("instruction", "output"),
    "prompt_completion": ("prompt", "completion"),
    "text": ("text",),
}
"""Format -> the fields that each row must have."""
TALKS = ("messages", "conversations", "conversation", "chat", "dialog", "dialogue", "turns")
"""Fields that hold a conversation, in messages and sharegpt alike."""
SPEAKERS, WORDS = ("from", "role"), ("value", "content", "text")
"""Where a turn of the format sharegpt says who speaks, and what: the first of these that it has."""
_PAIRS = (("question", "answer"), ("question", "response"), ("query", "response"), ("query", "answer"), ("prompt", "response"), ("prompt", "answer"))
_MORE_PAIRS = (("prompt", "output"), ("input", "output"))
_BESIDE = {"input": ("input", "context"), "system": ("system", "system_prompt"), "history": ("history",)}
"""Field of alpaca that a row may have -> names for it. Beside a pair of other names they are more than a pair holds."""
_GENERAL = (
    'name the format and its columns, or write rows like {"messages": [{"role": ..., "content": ...}]} or {"prompt": ..., "completion": ...}; '
    "docs/data-formats.md has every format"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """What rows were found to be."""

    format: str
    """Empty: nothing that a format knows."""
    columns: dict[str, str] = field(default_factory=dict)
    """Field of the format -> the file's own name for it, where they differ."""
    reason: str
    """What was seen."""
    fix: str = ""
    """What to write when nothing was found."""


def detect_format(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str] | None = None) -> Detected:
    """The format that most of the first `LOOKED_AT` rows have, the earliest of equals; `columns` are names that the user gave.

    A row is of the first format in this order whose fields it has: tokenized, messages, sharegpt, prompt_completion under these names, alpaca, pairs of
    other names (question and answer, ...; not when a context, a system text or a history stands beside them), text.
    When none is, whatever has messages or conversations is.
    """
    first, given = rows[:LOOKED_AT], dict(columns or {})
    looks = [look for row in first if (look := looks_like(row, given)) is not None]
    # Whatever stands in these fields: what is wrong with it is told row by row.
    looks = looks or [
        (form, ()) for row in first for form in ("messages", "sharegpt") if given.keys() <= set(COLUMNS[form]) and _all_in(row, _named(form, given))
    ]
    if not looks:
        return _unknown(first, given)
    (form, named), count = Counter(looks).most_common(1)[0]
    found = dict(named)
    if form == "alpaca":
        found |= {name: own for name in ("input", "system") if (own := _beside(first, name)) not in ("", name)}
    every = "every" if count == len(first) else f"{count} of the first {len(first)}"
    seen = " and ".join(found.get(name, given.get(name, name)) for name in REQUIRED[form])
    return Detected(format=form, columns={**found, **given}, reason=f"{every} row{'' if count == len(first) else 's'} looked at: {seen}")


def looks_like(row: Mapping[str, Any], columns: Mapping[str, str]) -> tuple[str, tuple[tuple[str, str], ...]] | None:
    """(format, the other names of its fields) of one row; None when it is of no format."""
    for form, names in _looks(row, columns):
        if all(name in COLUMNS[form] for name in columns):
            return form, tuple((name, own) for name, own in names.items() if name != own)
    return None


def _looks(row: Mapping[str, Any], columns: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Every format that the row may be, the likeliest first, with the names of its required fields."""
    if _all_in(row, names := _named("tokenized", columns)):
        yield "tokenized", names
    for own in dict.fromkeys((*(columns[name] for name in ("messages", "conversations") if name in columns), *TALKS)):
        form = talk_form(row.get(own))
        if form and columns.get("conversations") == own:
            form = "sharegpt"
        wanted = "messages" if form == "messages" else "conversations"
        if form and columns.get(wanted, own) == own:
            yield form, {wanted: own}
    for form in ("prompt_completion", "alpaca"):
        if _all_in(row, names := _named(form, columns)):
            yield form, names
    if "output" not in columns and "response" in row and _all_in(row, names := _named("alpaca", {**columns, "output": "response"})):
        yield "alpaca", names
    for prompt, completion in (*_PAIRS, *_MORE_PAIRS):
        names = _named("prompt_completion", {"prompt": prompt, "completion": completion, **columns})
        if _all_in(row, names) and not _more_than_a_pair(row, names):
            yield "prompt_completion", names
    if _all_in(row, names := _named("text", columns)) and isinstance(row[names["text"]], str):
        yield "text", names


def _named(form: str, columns: Mapping[str, str]) -> dict[str, str]:
    return {name: columns.get(name, name) for name in REQUIRED[form]}


def _all_in(row: Mapping[str, Any], names: Mapping[str, str]) -> bool:
    return all(own in row for own in names.values())


def _more_than_a_pair(row: Mapping[str, Any], names: Mapping[str, str]) -> bool:
    return any(own in row for others in _BESIDE.values() for own in others if own not in names.values())


def _beside(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """The first of the names of an alpaca field that a row has; empty: none."""
    return next((own for own in _BESIDE[name] if any(own in row for row in rows)), "")


def listed(value: Any) -> list[Any] | None:
    """A list, or one written as JSON text as a CSV file must; None for anything else."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, list) else None


def talk_form(value: Any) -> str:
    """messages, sharegpt or empty: what a field's value is, also when it is that in JSON text."""
    turns = listed(value)
    if not turns or not all(isinstance(turn, dict) for turn in turns):
        return ""
    if all("role" in turn and (turn.keys() & {"content", "tool_calls", "function_call"}) for turn in turns):
        return "messages"
    speaks = all(any(key in turn for key in SPEAKERS) and any(key in turn for key in WORDS) for turn in turns)
    return "sharegpt" if speaks else ""


def _unknown(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> Detected:
    """Why no row has a format, and what the user may write."""
    if not rows:
        return Detected(format="", reason="there is no row to look at", fix="name a file with rows")
    fits = [form for form, names in COLUMNS.items() if all(name in names for name in columns)]
    if not fits:
        return Detected(format="", reason=f"no format has the fields {', '.join(columns)}", fix="name the format, and the columns that it has")
    row = rows[0]
    seen = ", ".join(f"{key} ({_kind(value)})" for key, value in list(row.items())[:8]) or "none"
    more = ", ..." if len(row) > 8 else ""
    return Detected(format="", reason=f"the fields of the first row are {seen}{more}", fix=_advice(row))


def _advice(row: Mapping[str, Any]) -> str:
    """The format and columns that the row most likely means."""
    texts = [key for key, value in row.items() if isinstance(value, str) and value]
    talks = {key: form for key, value in row.items() if (form := talk_form(value))}
    answer = next((own for own in ("answer", "response", "output") if own in row), "")
    asked = next((own for own in ("question", "query", "prompt", "instruction", "input") if own in row and own != answer), "")
    if "chosen" in row:
        return "pairs of a better and a worse answer are not compared; to learn the better: " + (
            _written(talks["chosen"], (REQUIRED[talks["chosen"]][0], "chosen"))
            if "chosen" in talks
            else _written("prompt_completion", ("prompt", asked or "NAME"), ("completion", "chosen"))
        )
    if talks:
        key, form = next(iter(talks.items()))
        return f"write {_written(form, (REQUIRED[form][0], key))}"
    if "input_ids" in row:
        return "tokens need labels: the ids where they are learned, -100 elsewhere"
    if asked and answer:
        beside = [(name, own) for name in ("input", "system") if (own := _beside([row], name)) not in ("", asked)]
        return f"write {_written('alpaca', ('instruction', asked), *beside, ('output', answer))}"
    if len(texts) == 1 and len(row) == 1:
        return f"write {_written('text', ('text', texts[0]))}"
    if len(texts) == len(row) == 2:
        return f"write {_written('prompt_completion', ('prompt', texts[0]), ('completion', texts[1]))} (or the other way round)"
    return _GENERAL


def _written(form: str, *columns: tuple[str, str]) -> str:
    return f"format: {form}, columns: {mapping(columns)}"


def _kind(value: Any) -> str:
    names = {list: "a list", dict: "an object", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
