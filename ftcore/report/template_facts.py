"""How the rows of a set become text, and how their supervised part is found, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ftcore.data.formats.record_kinds import Conversation, PlainText, Record, TextPair
from ftcore.data.templates.rendering import MARKERS
from ftcore.report.facts import TemplateFacts

MARKED = "masks by its {% generation %} markers"
RENDERED = "masks by rendering each answer with and without what precedes it, proved on every row"


def template_facts(tokenizer: Any, choice: str, records: Sequence[Record]) -> TemplateFacts | None:
    """What holds for a set with these first records; `choice` is data.chat_template. None when no record could be made."""
    if not records:
        return None
    first = records[0]
    if isinstance(first, Conversation):
        name = choice or "the tokenizer's own"
        is_marked = bool(tokenizer.chat_template) and MARKERS.search(str(tokenizer.get_chat_template(tools=first.tools))) is not None
        described = f"{name}; {MARKED if is_marked else RENDERED}" if tokenizer.chat_template else "the tokenizer has none"
        return TemplateFacts(name=name, masks="markers" if is_marked else "rendering", described=described)
    if isinstance(first, TextPair):
        return TemplateFacts(name="", masks="none", described="none: prompt and completion are joined as they are, the completion is supervised")
    if isinstance(first, PlainText):
        return TemplateFacts(name="", masks="none", described="none: every token of the text is supervised")
    return TemplateFacts(name="", masks="none", described="none: the rows hold token ids, their labels say what is supervised")
