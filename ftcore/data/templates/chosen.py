"""Puts the spec's chat template into a tokenizer, so that training, evaluation and export all use the same one."""

from __future__ import annotations

from typing import Any

from ftcore.data.templates.named import WHERE, is_named, template_text
from ftcore.data.templates.rendering import ChatTemplate
from ftcore.spec.errors import DataError, SpecError

QUESTION = {"role": "user", "content": "question"}
ANSWER = {"role": "assistant", "content": "answer"}


def choose_template(tokenizer: Any, choice: str) -> None:
    """Gives the tokenizer the template that `data.chat_template` names; "" leaves it its own.

    Raises SpecError when there is no such template, it can't be read, or a named one whose turn end is no single token of the tokenizer.
    """
    set_template(tokenizer, template_text(choice))
    wrong = ChatTemplate(tokenizer).syntax_error() if choice else ""
    if wrong:
        raise SpecError(f"the chat template {choice} can't be read: {wrong}", where=WHERE, fix="mend the template")
    if is_named(choice) and turn_end_id(tokenizer) is None:
        raise SpecError(
            f"the template {choice} ends a turn with {_turn_end(tokenizer)!r}, which is no single token of the tokenizer {tokenizer.name_or_path}",
            where=WHERE,
            fix="name the template of the model's own family, or leave the key out for the tokenizer's own",
        )


def set_template(tokenizer: Any, text: str | None) -> None:
    """Gives the tokenizer a template; None: its own. It begins with the beginning-of-text token where the tokenizer puts that before every text."""
    if text is not None:
        tokenizer.chat_template = text
    if not tokenizer.chat_template or tokenizer.bos_token_id is None or added_in_front(tokenizer.backend_tokenizer) != [tokenizer.bos_token_id]:
        return
    own = tokenizer.chat_template
    if isinstance(own, dict):
        tokenizer.chat_template = {name: _with_bos(tokenizer, each) for name, each in own.items()}
    else:
        tokenizer.chat_template = _with_bos(tokenizer, own)


def turn_end_id(tokenizer: Any) -> int | None:
    """The token that the chat template writes after an answer, which generation stops on; None when it is text, or can't be told."""
    ids = tokenizer(_turn_end(tokenizer), add_special_tokens=False)["input_ids"]
    return int(ids[0]) if ids and ids[0] in tokenizer.added_tokens_decoder else None


def added_in_front(backend: Any) -> list[int]:
    """The ids that a tokenizer itself puts before a text: its beginning-of-text token, or nothing."""
    plain = backend.encode("a", add_special_tokens=False).ids
    whole = backend.encode("a", add_special_tokens=True).ids
    at = next((i for i in range(len(whole)) if whole[i : i + len(plain)] == plain), 0)
    return list(whole[:at])


def _with_bos(tokenizer: Any, template: str) -> str:
    if "bos_token" in template or tokenizer.bos_token in template:
        return template
    return "{{- bos_token }}" + template


def _turn_end(tokenizer: Any) -> str:
    """What the template writes after an answer; empty when that can't be told."""
    try:
        rendered = ChatTemplate(tokenizer).text([QUESTION, ANSWER], None)
    except DataError:
        return ""
    return rendered.rpartition(ANSWER["content"])[2].strip() if ANSWER["content"] in rendered else ""
