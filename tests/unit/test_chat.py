"""Chat templates: what is rendered, which characters are the answers', and which rows are refused (cases D08, D10, D13, D15)."""

from __future__ import annotations

from typing import Any

import pytest

from ftcore.data.formats.record_kinds import Conversation
from ftcore.data.reading.rows import Row
from ftcore.data.templates.rendered import Rendered
from ftcore.data.templates.renderer import ChatRenderer
from ftcore.spec.errors import DataError
from tests.unit.made_tokenizers import CHATML, GEMMA, IM, MARKED, MISTRAL, TOOLS, byte_level, wrap

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}


@pytest.fixture(scope="module")
def backend() -> Any:
    return byte_level(specials=(*IM, "<s>", "</s>", "<start_of_turn>", "<end_of_turn>"))


def talk(*turns: str, tools: list[dict[str, Any]] | None = None, supervised_from: int = 0) -> Conversation:
    """`talk("u hi", "a hello")`: roles by their first letter."""
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    messages = [{"role": names[turn[0]], "content": turn[2:]} for turn in turns]
    return Conversation(row=Row(number=1, line=1, value={}), messages=messages, tools=tools, supervised_from=supervised_from)


def render(backend: Any, template: str, conversation: Conversation) -> Rendered:
    return ChatRenderer(wrap(backend, template=template, eos="</s>", bos="<s>")).render(conversation)


def answers(rendered: Rendered) -> list[str]:
    return [rendered.text[start:end] for start, end in rendered.spans]


def refused(backend: Any, template: str, conversation: Conversation) -> str:
    with pytest.raises(DataError) as caught:
        render(backend, template, conversation)
    return str(caught.value)


@pytest.mark.parametrize("template", [CHATML, MARKED])
def test_answers_and_their_ends(backend: Any, template: str) -> None:
    rendered = render(backend, template, talk("s be kind", "u a", "a b", "u c", "a ", "a e"))
    assert answers(rendered) == ["b<|im_end|>", "<|im_end|>", "e<|im_end|>"]
    assert rendered.text.endswith("e<|im_end|>\n")


@pytest.mark.parametrize("template", [CHATML, MARKED])
def test_only_the_completion_of_message_lists(backend: Any, template: str) -> None:
    assert answers(render(backend, template, talk("u a", "a b", "u c", "a d", supervised_from=3))) == ["d<|im_end|>"]


def test_no_assistant_marks_nothing(backend: Any) -> None:
    assert render(backend, CHATML, talk("u hi")).spans == ()
    assert render(backend, MARKED, talk("u hi")).spans == ()


def test_end_token_inside_an_answer_does_not_end_it(backend: Any) -> None:
    assert answers(render(backend, CHATML, talk("u a", "a b<|im_end|>c"))) == ["b<|im_end|>c<|im_end|>"]


def test_one_beginning_of_text(backend: Any) -> None:
    assert render(backend, MISTRAL, talk("u a", "a b")).text == "<s>[INST] a [/INST] b</s>"


@pytest.mark.parametrize(
    ("template", "turns", "reason"),
    [
        (GEMMA, ("u a", "u b", "a c"), "roles must alternate (roles: user user assistant)"),
        (GEMMA, ("s a", "u b", "a c"), "no system role"),
        (MISTRAL, ("u a", "a b", "a c"), "roles must alternate"),
        (CHATML, ("a a", "u b", "a c"), "the first message is the assistant's"),
        ("{{ messages[0]['x']['y'] }}", ("u a", "a b"), "UndefinedError"),
        ("{% for", ("u a", "a b"), "TemplateSyntaxError"),
        ("{% generation %}{{ 1 / 0 }}{% endgeneration %}", ("u a", "a b"), "ZeroDivisionError"),
    ],
)
def test_refused_rows_name_the_roles(backend: Any, template: str, turns: tuple[str, ...], reason: str) -> None:
    text = refused(backend, template, talk(*turns))
    assert reason in text
    assert "roles: " in text


def test_template_that_rewrites_earlier_turns(backend: Any) -> None:
    drops = (
        "{% for m in messages %}{% if loop.last or m['role'] == 'user' %}<|im_start|>{{ m['content'] }}{{ '<|im_end|>' }}{% else %}(gone){% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}"
    )
    assert answers(render(backend, drops, talk("u a", "a b"))) == ["b<|im_end|>"]
    assert "renders message 2 or those before it differently" in refused(backend, drops, talk("u a", "a b", "u c", "a d"))


def test_generation_prompt_that_does_not_begin_an_answer(backend: Any) -> None:
    template = CHATML.replace("<|im_start|>assistant", "<|im_start|>Assistant")
    assert "generation prompt is not how it begins message 2" in refused(backend, template, talk("u a", "a b"))


def test_end_after_the_last_turn_only(backend: Any) -> None:
    """An end of text that is written only once nothing follows does not hide the ends of the turns before."""
    template = CHATML.replace("{% if add_generation_prompt %}", "{% if not add_generation_prompt %}</s>{% else %}")
    assert answers(render(backend, template, talk("u a", "a b", "u c", "a d"))) == ["b<|im_end|>", "d<|im_end|>\n</s>"]


def test_template_without_generation_prompt(backend: Any) -> None:
    template = CHATML.split("{% if add_generation_prompt", maxsplit=1)[0]
    assert "no generation prompt" in refused(backend, template, talk("u a", "a b"))


def test_turn_end_that_is_text(backend: Any) -> None:
    template = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + ' ###\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    assert answers(render(backend, template, talk("u a", "a b", "u c", "a d"))) == ["b ###", "d ###"]


def test_template_without_turn_end(backend: Any) -> None:
    template = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    assert "never learn to stop" in refused(backend, template, talk("u a", "a b"))


def test_template_that_changes_contents(backend: Any) -> None:
    """A template that drops the reasoning of an answer supervises what it leaves."""
    template = CHATML.replace("m['content']", "m['content'].split('</think>')[-1]")
    assert answers(render(backend, template, talk("u a", "a <think>x</think>b"))) == ["b<|im_end|>"]


def test_markers_that_mark_nothing_or_everything(backend: Any) -> None:
    nothing = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if false %}{% generation %}x{% endgeneration %}{% endif %}"
    assert "mark nothing" in refused(backend, nothing, talk("u a", "a b"))
    assert "mark the whole text" in refused(backend, "{% generation %}{{ messages[0]['content'] }}{% endgeneration %}", talk("u a", "a b"))


def test_tools_reach_the_text(backend: Any) -> None:
    text = render(backend, TOOLS, talk("u a", "a b", tools=[TOOL])).text
    assert '"properties": {"a": {"type": "string"}}' in text
    calls = [{"type": "function", "function": {"name": "f", "arguments": {"a": None}}}]
    called = Conversation(
        row=Row(number=1, line=1, value={}),
        messages=[
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "content": "done"},
            {"role": "assistant", "content": "ok"},
        ],
        tools=[TOOL],
    )
    assert answers(render(backend, TOOLS, called)) == ['<tool_call>{"name": "f", "arguments": {"a": null}}</tool_call><|im_end|>', "ok<|im_end|>"]
    assert "has tool_calls, and the chat template ignores them" in refused(backend, CHATML, Conversation(row=called.row, messages=called.messages, tools=None))


@pytest.mark.parametrize("template", [CHATML, CHATML + "{# tools #}"])
def test_tools_that_the_template_ignores(backend: Any, template: str) -> None:
    assert "the chat template ignores them" in refused(backend, template, talk("u a", "a b", tools=[TOOL]))


def test_no_chat_template(backend: Any) -> None:
    with pytest.raises(DataError, match="no chat template"):
        ChatRenderer(wrap(backend, template=None, eos="</s>"))
