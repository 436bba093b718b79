"""Records -> the tokens that a model sees, or why a record can't be used."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ftcore.data.chat import ChatRenderer, Rendered
from ftcore.data.fields import Record, TextPair
from ftcore.data.prepared import ModelSource
from ftcore.data.spans import Aligner, Tokens
from ftcore.data.tokenizer import load_tokenizer
from ftcore.spec.errors import DataError

Tokenise = Callable[[Sequence[Record]], list[Tokens | DataError]]


def make_tokenise(source: ModelSource, template: str, loss_on: str) -> Tokenise:
    """A function from records to their tokens, or to why a record can't be used.

    `template` is the spec's data.chat_template, `loss_on` its data.loss_on. Raises SpecError or DataError when the tokenizer or the
    template itself can't be used; a missing chat template only once there are messages to render.
    """
    tokenizer = load_tokenizer(source.path, trust_remote_code=source.trust_remote_code, chat_template=template)
    aligner = Aligner(tokenizer)
    renderer: list[ChatRenderer] = []

    def tokenise(records: Sequence[Record]) -> list[Tokens | DataError]:
        results: list[Tokens | DataError | Rendered] = []
        for record in records:
            if not isinstance(record, TextPair) and not renderer:
                renderer.append(ChatRenderer(tokenizer))
            try:
                results.append(aligner.pair(record) if isinstance(record, TextPair) else renderer[0].render(record))
            except DataError as error:
                results.append(error)
        encoded = iter(aligner.encode([result for result in results if isinstance(result, Rendered)]))
        return [next(encoded) if isinstance(result, Rendered) else result for result in results]

    return tokenise
