"""How the rows of a set become text, and how their supervised part is found, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ftcore.data.formats.record_kinds import Conversation, PlainText, Record, TextPair
from ftcore.data.templates.rendering import ChatTemplate
from ftcore.report.facts import TemplateFacts
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
        return TemplateFacts(name="", masks="none", described=f"none: prompt and completion are joined as they are; {learned}")
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
