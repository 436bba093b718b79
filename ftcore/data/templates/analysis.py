"""Finds the answers in the text that a template makes of stand-ins: where each begins and where its turn ends."""

from __future__ import annotations

from ftcore.data.templates.layout import Layout, Spots, spot_of
from ftcore.data.templates.markers import marked_parts
from ftcore.data.templates.rendering import CALLS_FIX, MARKED_FIX, CharSpan, ChatTemplate, Tools, roles_of
from ftcore.data.templates.standins import CONTENT, TOOL_MARK, Shape, StandInText, behind, read_stand_ins
from ftcore.data.templates.turn_ends import turn_end
from ftcore.data.templates.turns import find_turns
from ftcore.spec.errors import DataError

NO_END = DataError(
    "the chat template writes nothing after an answer, so the model would never learn to stop",
    fix="use a template that ends an assistant turn with an end token",
)


Prefixes = dict[tuple[bool, tuple[str, ...]], StandInText]
"""Whether with the generation prompt, and the key of a shape's first messages -> their rendering."""


def analyse(template: ChatTemplate, shape: Shape, tools: Tools, prefixes: Prefixes, *, tools_stand_in: bool = False) -> Layout:
    """The layout of rows with this shape and these tools; `tools_stand_in`: the tools are stand-ins for any.

    `prefixes` is filled with renderings that other shapes with these tools may begin with too.
    Raises DataError when the template refuses the stand-ins.
    """
    analysis = Analysis(template, shape, tools, prefixes)
    whole = analysis.whole
    found = {index: analysis.answer(index) for index, message in enumerate(shape.messages) if message["role"] == "assistant"}
    answers = {index: parts if isinstance(parts, DataError) else _spots(whole, parts) for index, parts in found.items()}
    ends = {index: parts[-1][1] for index, parts in found.items() if not isinstance(parts, DataError) and parts}
    turns = tuple(spot_of(whole, at) for at in find_turns(shape.messages, whole, analysis.prefix, template.added, ends))
    compared = (0, 0)
    if tools_stand_in:
        mark = spot_of(whole, whole.text.rfind(TOOL_MARK) + len(TOOL_MARK))
        compared = turns[0] if turns and turns[0][0] == mark[0] and turns[0] >= mark else (mark[0], len(whole.glue[mark[0]]))
    shown = {slot.key[0] for slot in whole.slots}
    left_out = tuple(sorted({key[0] for key in shape.kinds if key[0] >= 0 and key[0] not in found} - shown))
    return Layout(glue=whole.glue, slots=whole.slots, answers=answers, turns=turns, compared=compared, left_out=left_out)


class Analysis:
    """One shape under one template."""

    def __init__(self, template: ChatTemplate, shape: Shape, tools: Tools, prefixes: Prefixes) -> None:
        """Renders the stand-ins whole. Raises DataError when the template refuses them."""
        self._template, self._shape, self._tools, self._prefixes = template, shape, tools, prefixes
        self._marked: list[CharSpan] | None = None
        if template.has_markers(tools):
            text, self._marked = template.marked(shape.messages, tools)
        else:
            text = template.text(shape.messages, tools)
        self.whole = read_stand_ins(text, shape.kinds)

    def prefix(self, count: int, prompt: bool) -> StandInText:
        """The first messages alone, with `prompt` up to where an answer to them begins."""
        key = (prompt, tuple(self._shape.key[:count]))
        if key not in self._prefixes:
            self._prefixes[key] = read_stand_ins(self._template.text(self._shape.messages[:count], self._tools, prompt=prompt), self._shape.kinds)
        return self._prefixes[key]

    def answer(self, index: int) -> list[CharSpan] | DataError:
        """What is learned of the answer `index`, or why that can't be told."""
        try:
            found: CharSpan | DataError = self._rendered(index)
        except DataError as error:
            found = error
        try:
            if self._marked is not None:
                return marked_parts(self._marked, None if isinstance(found, DataError) else found, self.whole, self._shape, index)
            return found if isinstance(found, DataError) else [found]
        except DataError as error:
            return error

    def _rendered(self, index: int) -> CharSpan:
        """From the end of the generation prompt to the end of the turn."""
        if index == 0:
            raise DataError(
                f"the first message is the assistant's, nothing prompts it (roles: {self._roles})", fix="begin the row with a system or user message"
            )
        start = self._start(index)
        end = self._end(index, start)
        self._check(index, start, end)
        return start, end

    @property
    def _roles(self) -> str:
        return roles_of(self._shape.messages)

    def _start(self, index: int) -> int:
        """Where the prompt of an answer ends: the rendering of the messages before it, as far as it stands in the whole text."""
        prompt = self.prefix(index, True)
        if self.whole.text.startswith(prompt.text):
            return len(prompt.text)
        own = self.whole.of(index)
        if not own:
            raise self._rewritten(index)
        before = self.whole.last_before(own[0][0])
        edge = self.whole.end_of(before)
        gap = self.whole.text[edge : own[0][0]]
        if prompt.slots and before >= 0 and prompt.slots[-1].key == self.whole.slots[before].key and gap.startswith(prompt.glue[-1]):
            return edge + len(prompt.glue[-1])
        bare = self.prefix(index, False)
        asked = prompt.text[len(bare.text) :] if prompt.text.startswith(bare.text) else ""
        at = gap.rfind(asked) if asked else -1
        if at >= 0:
            return edge + at + len(asked)
        # An earlier answer may be shown without what the prompt makes an answer begin with (its reasoning).
        if self._is_earlier(index) and any(asked[:size].strip() and gap.endswith(asked[:size]) for size in range(len(asked) - 1, 0, -1)):
            return own[0][0]
        raise DataError(f"the chat template's generation prompt is not how it begins message {index + 1} (roles: {self._roles})", fix=MARKED_FIX)

    def _is_earlier(self, index: int) -> bool:
        return any(message["role"] == "assistant" for message in self._shape.messages[index + 1 :])

    def _end(self, index: int, start: int) -> int:
        own = [span for span in self.whole.of(index) if span[0] >= start]
        tags = self._shape.tags_behind(index)
        edge = behind(tags, self.whole.text, own[-1][1] if own else start)
        until = self.whole if index == len(self._shape.messages) - 1 else self.prefix(index + 1, False)
        if own:
            there = until.of(index)
            tail = until.text[behind(tags, until.text, there[-1][1]) :] if there else None
        else:
            tail = until.text[behind(tags, until.text, start) :] if until.text.startswith(self.whole.text[:start]) else None
        length = None if tail is None else turn_end(tail, self.whole.text[edge:], self._template.added)
        if length is None:
            raise self._rewritten(index)
        if not self.whole.text[edge : edge + length].strip():
            raise NO_END
        return edge + length

    def _rewritten(self, index: int) -> DataError:
        return DataError(
            f"the chat template renders message {index + 1} or those before it differently once later ones follow (roles: {self._roles})",
            fix=MARKED_FIX + " into one row an answer",
        )

    def _check(self, index: int, start: int, end: int) -> None:
        """The answer's texts must stand between start and end, nobody else's, and not the answer's own header."""
        inside = [slot for slot, span in zip(self.whole.slots, self.whole.spans, strict=True) if start <= span[0] < end]
        if any(slot.key[0] not in (index, -1) for slot in inside):
            raise self._rewritten(index)
        keys = {slot.key for slot in inside}
        lost = [self._shape.kinds[key] for key in self._shape.needed(index) if key not in keys]
        if CONTENT in lost:
            fix = "use a template that writes every answer"
            raise DataError(f"the chat template leaves out the text of message {index + 1} (roles: {self._roles})", fix=fix)
        if lost:
            raise DataError(
                "the row has tool_calls, and the chat template ignores them",
                fix=CALLS_FIX,
            )
        message = self._shape.messages[index]
        own = [span[0] for span in self.whole.of(index) if span[0] >= start]
        # A call's own words stand before its name, and a tag of the content before its text.
        lead = self.whole.text[start : own[0]].strip() if own and not message.get("tool_calls") else ""
        if lead and not str(message.get("content")).startswith(lead) and "add_generation_prompt" not in self._template.source(self._tools):
            raise DataError(
                f"the chat template has no generation prompt, so {lead!r} would be learned as part of the answer",
                fix="use a template that honours add_generation_prompt, or one with {% generation %} markers",
            )


def _spots(whole: StandInText, parts: list[CharSpan]) -> Spots:
    return tuple((spot_of(whole, start), spot_of(whole, end)) for start, end in parts)
