"""The chat template of a spec: the tokenizer's own, one that ships here, or a file."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from ftcore.spec.errors import SpecError
from ftcore.spec.names import CHAT_TEMPLATES

FOLDER = Path(__file__).parent
WHERE = "data.chat_template"


def is_named(choice: str) -> bool:
    """Whether `data.chat_template` names a template that ships here."""
    return choice in CHAT_TEMPLATES


def template_text(choice: str) -> str | None:
    """The template's text: of a name, or of a file; None for "", the tokenizer's own. Raises SpecError when there is no such template."""
    if not choice:
        return None
    if is_named(choice):
        return _shipped(choice)
    try:
        text = Path(choice).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        fix = f"leave it out for the tokenizer's own, give one of {', '.join(CHAT_TEMPLATES)}, or a .jinja file in UTF-8"
        raise SpecError(f"can't read the chat template {choice}: {reason}", where=WHERE, fix=fix) from error
    if not text.strip():
        raise SpecError(f"the chat template {choice} is empty", where=WHERE, fix="write the template, or leave the key out for the tokenizer's own")
    return text


def template_digest(choice: str) -> str:
    """sha256 of the template's text, for the key of prepared samples; of nothing for the tokenizer's own, whose files are digested by themselves."""
    return hashlib.sha256((template_text(choice) or "").encode()).hexdigest()


@cache
def _shipped(name: str) -> str:
    return (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
