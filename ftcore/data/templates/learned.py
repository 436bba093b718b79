"""data.loss_on: which messages of a conversation are learned."""

from __future__ import annotations

from ftcore.data.formats.record_kinds import Conversation
from ftcore.data.templates.rendering import CharSpan

Weighted = list[tuple[CharSpan, float]]


def learned_answers(conversation: Conversation, loss_on: str) -> dict[int, float]:
    """Message of the assistant -> what each of its tokens counts; at 0 it is context.

    assistant and all: those from `supervised_from` on. last_assistant: the last of these. completion: of a row with a prompt and a completion
    the completion's, of another those that follow its last message of somebody else.
    """
    roles = [message["role"] for message in conversation.messages]
    answers = [index for index, role in enumerate(roles) if role == "assistant" and index >= conversation.supervised_from]
    if loss_on == "last_assistant":
        answers = answers[-1:]
    elif loss_on == "completion" and not conversation.supervised_from:
        last = max((index for index, role in enumerate(roles) if role != "assistant"), default=-1)
        answers = [index for index in answers if index > last]
    return {index: conversation.weights.get(index, 1.0) for index in answers}


def everything(length: int, answers: Weighted) -> Weighted:
    """A text's characters, all counting 1 but for the answers, which count what they are given."""
    spans: Weighted = []
    at = 0
    for (start, end), weight in answers:
        spans += [((at, start), 1.0), ((start, end), weight)]
        at = end
    return [(span, weight) for span, weight in [*spans, ((at, length), 1.0)] if weight and span[1] > span[0]]
