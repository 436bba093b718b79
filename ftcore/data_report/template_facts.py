"""How the rows of a set become text, and how their supervised part is found, in words."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any

from ftcore.data.formats.record_kinds import Conversation, PlainText, Record, TextPair
from ftcore.data.templates.rendering import ChatTemplate
from ftcore.data_report.facts import TemplateFacts
from ftcore.spec.errors import DataError

MARKED = "answers found by its {% generation %} markers"
RENDERED = "answers found by rendering, proved on every row"
LEARNED = {
    "assistant": "every answer is supervised",
    "last_assistant": "the last answer is supervised",
    "completion": "what follows the last message of somebody else is supervised",
    "all": "every token is supervised",
}
"""data.loss_on -> in words."""


def template_facts(tokenizer: Any, choice: str, loss_on: str, records: Sequence[Record]) -> TemplateFacts | None:
    """What holds for a set with these first records; `choice` is data.chat_template. None when no record could be made."""
    if not records:
        return None
    first = records[0]
    if isinstance(first, Conversation):
        return _of_template(tokenizer, choice, loss_on, first)
    if isinstance(first, TextPair):
        learned = LEARNED["all"] if loss_on == "all" else "the completion is supervised"
        described = f"none: prompt and completion are joined as they are; {learned}"
        return TemplateFacts(name="", masks="none", described=described, note=_glued([each for each in records if isinstance(each, TextPair)]))
    if isinstance(first, PlainText):
        return TemplateFacts(name="", masks="none", described=f"none: texts; {LEARNED['all']}")
    return TemplateFacts(name="", masks="none", described="none: rows hold token ids; their labels say what is supervised")


def _of_template(tokenizer: Any, choice: str, loss_on: str, first: Conversation) -> TemplateFacts | None:
    name = choice or "the tokenizer's own"
    if not tokenizer.chat_template:
        return TemplateFacts(name="", masks="none", described="the tokenizer has none")
    try:
        is_marked = ChatTemplate(tokenizer).has_markers(first.tools)
    except DataError as error:
        return TemplateFacts(name=name, masks="none", described=error.problems[0].what)
    masks = "markers" if is_marked else "rendering"
    return TemplateFacts(name=name, masks=masks, described=f"{name}; {MARKED if is_marked else RENDERED}; {LEARNED[loss_on]}")


def _glued(pairs: Sequence[TextPair]) -> str:
    """A note where words of prompts and completions touch; empty when none do."""
    glued = [pair for pair in pairs if _touches(pair.prompt[-1:], pair.completion[:1])]
    if not glued:
        return ""
    first = glued[0]
    count = f"in {len(glued)} of the first {len(pairs)} rows" if len(pairs) > 1 else "in this row"
    seam = f"{first.prompt[-20:]}|{first.completion[:20]}"
    return (
        f"{count} no white space stands between prompt and completion (row {first.row.number}: {seam!r}): "
        "put it into the file, or name a format that goes through the chat template (docs/data-formats.md)"
    )


def _touches(last: str, first: str) -> bool:
    """Whether a prompt's last character and a completion's first one want white space between: not after control tokens, nor in scripts without spaces."""
    wants_none = not last or last.isspace() or last in ">]([{<" or unicodedata.east_asian_width(last) in "WF"
    return not wants_none and first.isalnum() and unicodedata.east_asian_width(first) not in "WF"
