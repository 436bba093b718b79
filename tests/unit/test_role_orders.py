"""Odd orders of roles (D10): the table in docs/data-formats.md, through every template that ships and one that leaves messages out."""

from __future__ import annotations

from typing import Any

import pytest

from ftcore.data.formats.record_maker import RecordMaker
from ftcore.data.reading.rows import Row
from ftcore.data.templates.named import template_text
from ftcore.data.templates.tokenise import tokenise_with
from ftcore.data.tokens import Tokens
from ftcore.spec.errors import DataError
from ftcore.spec.names import CHAT_TEMPLATES
from ftcore.spec.sections import DataSet
from ftcore.tiny_llama import tiny_tokenizer

STRICT = ("mistral", "gemma")
"""Templates whose roles must alternate after a system message."""
NO_TOOLS = ("gemma", "phi3")
MAKER = RecordMaker(DataSet(path="f.jsonl", format="messages"), "messages", "data.train")
ONLY_TWO_ROLES = (
    "{% for m in messages %}{% if m['role'] in ('user', 'assistant') %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def made(template: str, roles: str, **first: Any) -> tuple[list[str], str]:
    """The texts that are learned of a row with these roles, without what the template adds to each, and the whole text. Raises DataError as it is told."""
    tokenizer: Any = tiny_tokenizer()
    tokenizer.chat_template = template_text(template) if template in CHAT_TEMPLATES else template
    messages = [{"role": role, "content": f"text{index}", **(first if index == 0 else {})} for index, role in enumerate(roles.split())]
    (tokens,) = tokenise_with(tokenizer)([MAKER.record(Row(number=1, line=1, value={"messages": messages}))])
    if not isinstance(tokens, Tokens):
        raise tokens
    return [text[text.index("text") :][:5] for start, end in tokens.spans if (text := tokenizer.decode(tokens.ids[start:end]))], tokenizer.decode(tokens.ids)


@pytest.mark.parametrize("template", CHAT_TEMPLATES)
@pytest.mark.parametrize(
    ("roles", "learned", "refused_by"),
    [
        ("user assistant user user", ["text1"], STRICT),
        ("user assistant assistant", ["text1", "text2"], STRICT),
        ("user", [], ()),
        ("system system user assistant", ["text3"], STRICT),
        ("user system assistant", ["text2"], STRICT),
        ("user assistant tool assistant", ["text1", "text3"], NO_TOOLS),
    ],
)
def test_orders_that_the_template_decides(template: str, roles: str, learned: list[str], refused_by: tuple[str, ...]) -> None:
    if template in refused_by:
        with pytest.raises(DataError, match=r"the chat template refuses the row: .*\(roles: " + roles):
            made(template, roles)
        return
    found, text = made(template, roles)
    assert found == learned
    assert all(f"text{index}" in text for index in range(len(roles.split()))), "nothing is left out"


@pytest.mark.parametrize("template", CHAT_TEMPLATES)
def test_orders_that_are_refused_whatever_the_template(template: str) -> None:
    with pytest.raises(DataError, match=r"the first message is the assistant's, nothing prompts it \(roles: assistant user assistant\)"):
        made(template, "assistant user assistant")
    with pytest.raises(DataError, match=r"message 2 is a tool's, .* \(roles: user tool assistant\)"):
        made(template, "user tool assistant")
    if template not in STRICT:
        assert made(template, "assistant user assistant", train=False)[0] == ["text2"]


@pytest.mark.parametrize(
    ("roles", "reason"),
    [
        ("system user assistant", r"leaves out message 1, the system's \(roles: system user assistant\)"),
        ("user system assistant", r"leaves out message 2, the system's"),
        ("user assistant tool assistant", r"leaves out message 3, the tool's"),
    ],
)
def test_a_template_that_leaves_messages_out(roles: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        made(ONLY_TWO_ROLES, roles)
    assert made(ONLY_TWO_ROLES, "user assistant user assistant")[0] == ["text1", "text3"]


def test_a_template_that_leaves_messages_out_and_changes_the_others() -> None:
    """Where a row can't be laid over stand-ins its own texts are looked for."""
    changes = ONLY_TWO_ROLES.replace("m['content'] +", "m['content'].replace('text0', 'TEXT0') +")
    with pytest.raises(DataError, match="leaves out message 1, the user's"):
        made(changes, "user assistant")


CONCATENATES = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + (m['content'] or '') }}{% for call in m['tool_calls'] or [] %}"
    "{{ '<call>' + call['function']['name'] + ':' + call['function']['arguments'] + '</call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.mark.parametrize("arguments", [{"a": None, "é": [1.5, 'x"y']}, '{"a": null, "é": [1.5, "x\\"y"]}'])
@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (CONCATENATES, '<call>f:{"a": null, "é": [1.5, "x\\"y"]}</call><|im_end|>'),
        (
            CONCATENATES.replace("call['function']['arguments']", "(call['function']['arguments'] | tojson)"),
            '<call>f:{"a": null, "é": [1.5, "x\\"y"]}</call><|im_end|>',
        ),
    ],
)
def test_a_template_gets_the_arguments_that_it_takes(arguments: Any, template: str, expected: str) -> None:
    """As an object, or as JSON text where it can do nothing with an object; whatever the row has."""
    tokenizer: Any = tiny_tokenizer()
    tokenizer.chat_template = template
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    row = Row(number=1, line=1, value={"messages": [{"role": "user", "content": "a"}, call]})
    (tokens,) = tokenise_with(tokenizer)([MAKER.record(row)])
    assert isinstance(tokens, Tokens), str(tokens)
    assert [tokenizer.decode(tokens.ids[start:end]) for start, end in tokens.spans] == [expected]
