"""Templates that rewrite earlier turns, or treat contents in ways of their own: the answers are proved all the same, or the row is refused."""

from __future__ import annotations

from typing import Any

import pytest

from ftcore.data.formats.record_kinds import Conversation
from ftcore.data.templates.renderer import ChatRenderer
from ftcore.data.templates.tokenise import tokenise_with
from ftcore.data.tokens import Tokens
from ftcore.spec.errors import DataError
from tests.unit.chats import TOOL, call, chat, learned
from tests.unit.made_tokenizers import CHATML, IM, MARKED, TOOLS, byte_level, sentencepiece_like, wrap

END = "<|im_end|>"
BACKEND = byte_level(specials=(*IM, "</s>"))


def found(template: str, row: Conversation, backend: Any = BACKEND, eos: str = END) -> list[str]:
    tokenizer = wrap(backend, template=template, eos=eos, bos="<s>" if backend is not BACKEND else None)
    (tokens,) = tokenise_with(tokenizer)([row])
    if isinstance(tokens, DataError):
        raise tokens
    return learned(tokenizer.backend_tokenizer, tokens)


SYSTEM_LAST = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
    "{% if loop.last or (loop.revindex0 == 1 and messages[-1].role == 'assistant') %}{% if tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}"
    "[INST] {% if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}{{ m.content }}[/INST]"
    "{% else %}[INST] {{ m.content }}[/INST]{% endif %}{% elif m.role == 'assistant' %} {{ m.content | trim }}{{ eos_token }}{% endif %}{% endfor %}"
)
PROMPTS_THINKING = CHATML.replace("assistant\n' }}{% endif %}", "assistant\n<think>\n' }}{% endif %}").replace(
    "m['content']", "(m['content'] if loop.last else m['content'].split('</think>\n\n')[-1])"
)


def test_system_message_and_tools_in_the_last_question() -> None:
    """The text before an answer is another one once more follows; the answers are where the whole text has them."""
    backend = sentencepiece_like(specials=("<s>", "</s>"), bos="<s>")
    rows = [chat("s Be kind.", "u a", "a b ", "u c", "a d", tools=tools) for tools in (None, [TOOL])]
    assert [found(SYSTEM_LAST, row, backend, "</s>") for row in rows] == [[" b</s>", " d</s>"]] * 2


def test_prompt_that_begins_the_reasoning() -> None:
    """An earlier answer is shown without its reasoning and learned as shown; the last one goes on where the prompt ends."""
    row = chat("u a", "a <think>\nr\n</think>\n\nb", "u c", "a <think>\ns\n</think>\n\nd")
    assert found(PROMPTS_THINKING, row) == ["b" + END, "s\n</think>\n\nd" + END]
    with pytest.raises(DataError, match="generation prompt is not how it begins message 4"):
        found(PROMPTS_THINKING, chat("u a", "a <think>\nr\n</think>\n\nb", "u c", "a d"))


def without(letter: str, base: str = CHATML) -> str:
    """A template that leaves a letter out of contents: no stand-in shows that."""
    return base.replace("m['content']", f"m['content'].replace('{letter}', '')")


@pytest.mark.parametrize("base", [CHATML, MARKED])
def test_contents_that_only_the_row_itself_shows(base: str) -> None:
    assert found(without("#", base), chat("u # a", "a #b", "u c", "a d#")) == ["b" + END, "d" + END]
    with pytest.raises(DataError, match=r"writes message 2 as .*, which isn't its text"):
        found(without("#", base), chat("u a", "a b#b"))


@pytest.mark.parametrize(
    ("template", "row", "reason"),
    [
        (without("#"), chat("a #b", "u c", "a d"), "the first message is the assistant's, nothing prompts it"),
        (without("#").replace("<|im_start|>assistant", "<|im_start|>Assistant"), chat("u # a", "a b"), "generation prompt is not how it begins message 2"),
        (without("#").split("{% if add", maxsplit=1)[0], chat("u # a", "a b"), "no generation prompt, so '<|im_start|>assistant"),
        (without("#").replace("+ '<|im_end|>' ", ""), chat("u # a", "a b"), "never learn to stop"),
        (
            without("#").replace("{% for m in messages %}", "{{ messages | length }}{% for m in messages %}"),
            chat("u # a", "a b", "u c", "a d"),
            "generation prompt is not how it begins message 2",
        ),
        (
            without("#").replace("{% for", "{{ 'x' if messages | length > 2 }}{% for", 1),
            chat("u # a", "a b", "u c", "a d"),
            "renders message 2 or those before it differently once later ones follow",
        ),
        (
            without("#", MARKED.replace("m['role'] == 'assistant'", "m['role'] == 'assistant' and loop.last")),
            chat("u # a", "a b", "u c", "a d"),
            "markers don't tell the answers apart",
        ),
        (
            without("#").replace("'<|im_end|>'", "('x' if m['tool_calls'] else '') + '<|im_end|>'").replace(".replace(", " | default('', true) | replace("),
            chat("u # a", call(content="c"), "t e", "a ok"),
            "has tool_calls, and the chat template ignores them",
        ),
    ],
)
def test_refused_after_looking_at_the_row_itself(template: str, row: Conversation, reason: str) -> None:
    with pytest.raises(DataError, match=reason.replace("<|im_start|>", r"<\|im_start\|>")):
        found(template, row)


@pytest.mark.parametrize(
    ("template", "row", "reason"),
    [
        (CHATML.replace("m['content']", "('' if m['role'] == 'assistant' else m['content'])"), chat("u a", "a b"), "leaves out the text of message 2"),
        (
            TOOLS.replace("{{ '<tool_call>' + (call['function'] | tojson) + '</tool_call>' }}", "called"),
            chat("u a", call(content="c"), "t d", "a e"),
            "has tool_calls, and the chat template ignores them",
        ),
        (CHATML.replace("'<|im_end|>' +", "('<|im_end|>' if loop.last else '</s>') +"), chat("u a", "a b", "u c", "a d"), "differently once later ones follow"),
        (
            MARKED.replace("+ '<|im_end|>' }}{% endgeneration", "}}{% endgeneration").replace("{% else", "{{ '<|im_end|>' }}{% else"),
            chat("u a", "a b"),
            "leave out the turn end",
        ),
        (MARKED.replace("{{ m['content'] + '<|im_end|>' }}{% endg", "{{ '<|im_end|>' }}{% endg"), chat("u a", "a b"), "leave out a part of message 2"),
        (MARKED.replace("m['role'] == 'assistant'", "true"), chat("u a", "a b"), "mark the text of message 1, which isn't the assistant's"),
        (MARKED.replace("m['role'] == 'assistant'", "loop.index == 9"), chat("u a", "a b"), "markers mark nothing"),
        (
            MARKED.replace("m['role'] == 'assistant'", "m['role'] == 'assistant' and loop.first"),
            chat("a a", "u b", "a c", weights={0: 0.0}),
            "leave out every answer",
        ),
    ],
)
def test_refused_on_stand_ins(template: str, row: Conversation, reason: str) -> None:
    """D15: never silently nothing, never what isn't the assistant's."""
    with pytest.raises(DataError, match=reason):
        found(template, row)


@pytest.mark.parametrize("template", [CHATML, without("#")])
def test_first_answer_with_a_weight_of_its_own(template: str) -> None:
    """With loss_on all every token counts, but where an answer begins that nothing prompts can't be told."""
    tokenizer = wrap(BACKEND, template=template, eos=END)
    row, weighted = chat("a b", "u c # d"), chat("a b", "u c # d", weights={0: 2.0})
    plain, refused = tokenise_with(tokenizer, "all")([row, weighted])
    assert isinstance(plain, Tokens)
    assert plain.spans == ((0, len(plain.ids)),)
    assert "the first message is the assistant's, nothing prompts it" in str(refused)


def test_answers_without_text_that_markers_do_not_tell_apart() -> None:
    template = MARKED.replace("m['content'] + '<|im_end|>' }}{% endgeneration", "m['content'] + ('!' if loop.last else '') + '<|im_end|>' }}{% endgeneration")
    assert found(template, chat("u a", "a ", "u c", "a d")) == [END, "d!" + END]
    with pytest.raises(DataError, match="markers don't tell the answers apart"):
        found(template, chat("u a", "a ", "u ", "a ", "u e", "a f"))


def test_header_and_line_break_inside_the_markers() -> None:
    """What the prompt gives and what stands behind the turn end are not learned, whatever the markers enclose."""
    header = "{{ '<|im_start|>' + m['role'] + '\n' }}"
    body = "{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}"
    wide = MARKED.replace(header, "").replace(body, "{% generation %}" + header + "{{ m['content'] + '<|im_end|>\n' }}{% endgeneration %}")
    wide = wide.replace("{% else %}", "{% else %}" + header).replace("{% endif %}{{ '\n' }}", "{{ '\n' }}{% endif %}", 1)
    row = chat("u a", "a b", "u c", "a d")
    tokenizer = wrap(BACKEND, template=wide, eos=END)
    assert ChatRenderer(tokenizer).render(row).text == ChatRenderer(wrap(BACKEND, template=MARKED, eos=END)).render(row).text
    assert found(wide, row) == ["b" + END, "d" + END]


def test_tools_that_look_as_if_they_were_used() -> None:
    """D08: a tool's name may stand in a question."""
    for template in (CHATML + "{# tools #}", CHATML + "{{ tools[9] if false }}"):
        with pytest.raises(DataError, match="the chat template ignores them"):
            found(template, chat("u what does f do", "a nothing", tools=[TOOL]))
    named = {"type": "function", "function": {"name": "second", "parameters": {}}}
    with pytest.raises(DataError, match="the chat template leaves out 'second'"):
        found("{{ tools[0] | tojson }}" + TOOLS.replace("tools | tojson", "tools[0] | tojson"), chat("u a", "a b", tools=[TOOL, named]))
    strict = "{% if tools and tools[0].function.name != 'f' %}{{ raise_exception('only f') }}{% endif %}" + TOOLS
    assert found(strict, chat("u a", "a b", tools=[TOOL])) == ["b" + END]


@pytest.mark.parametrize("answer", ["<tool_call>\n{}\n</tool_call>", "ok <think>r</think>", "<think>\n</think>"])
@pytest.mark.parametrize("more", [(), ("u d", "a e")])
def test_tags_of_a_content_are_no_turn_end(answer: str, more: tuple[str, ...]) -> None:
    """They stand behind the stand-in as the template's own text does: a row that ends in one would be learned without an end."""
    row = chat("u c", f"a {answer}", *more)
    assert found(CHATML, row)[0] == found(MARKED, row)[0] == answer + END
    outside = MARKED.replace("+ '<|im_end|>' }}{% endgeneration %}", "}}{% endgeneration %}{{ '<|im_end|>' }}")
    for template in (CHATML.replace(" + '<|im_end|>'", ""), outside):
        with pytest.raises(DataError, match="never learn to stop"):
            found(template, row)
