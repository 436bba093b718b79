"""One padding-free row: positions restart, no label crosses a join, samples don't see each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ftcore.batch.collate import collate
from ftcore.data.cache import Sample
from ftcore.spec.errors import TrainingError


def sample(ids: list[int], *spans: tuple[int, int]) -> Sample:
    return Sample(ids=np.array(ids, dtype=np.int32), spans=np.array(spans or np.zeros((0, 2)), dtype=np.int32).reshape(-1, 2), row=1)


def test_joins() -> None:
    """E02: rows [1,2,3] and [4,5,6,7,8], everything supervised: six targets, 3 -> 4 is none of them."""
    batch = collate([sample([1, 2, 3], (0, 3)), sample([4, 5, 6, 7, 8], (0, 5))])
    assert batch.position_ids_BT.tolist() == [[0, 1, 2, 0, 1, 2, 3, 4]]
    assert batch.targets_K.tolist() == [2, 3, 5, 6, 7, 8]
    assert batch.input_ids_BT[0, batch.keep_C].tolist() == [1, 2, 4, 5, 6, 7]
    assert batch.segment_lengths == (3, 5)
    assert batch.supervised_tokens == 6


def test_end_token_that_is_also_the_pad_token_is_learned() -> None:
    """D11: rows of 3 and 5 tokens plus end, pad = end: no padding exists, and 4 + 6 labels stand before the shift."""
    end = 0
    batch = collate([sample([5, 6, 7, end], (0, 4)), sample([5, 6, 7, 8, 9, end], (0, 6))])
    assert batch.targets_K.tolist().count(end) == 2
    assert batch.supervised_tokens == 4 + 6 - 2  # each sample's first token has nothing before it


@pytest.mark.parametrize("end", [0, 9], ids=["the id that pads", "another id"])
def test_only_padding_is_left_out_of_padded_rows(end: int) -> None:
    """D11: of the row of 3 tokens and its end the two positions behind it count nothing, whatever id stands there; both ends are targets."""
    batch = collate([sample([5, 6, 7, end], (0, 4)), sample([5, 6, 7, 8, 9, end], (0, 6))], "padded")
    assert batch.attention_mask_BT is not None and batch.pick_K is not None
    assert batch.input_ids_BT.tolist() == [[5, 6, 7, end, 0, 0], [5, 6, 7, 8, 9, end]]
    assert batch.attention_mask_BT.tolist() == [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]]
    assert batch.targets_K.tolist() == [6, 7, end, 6, 7, 8, 9, end]
    rows, columns = batch.pick_K // len(batch.keep_C), batch.keep_C[batch.pick_K % len(batch.keep_C)]
    assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == [(0, 0), (0, 1), (0, 2), *((1, column) for column in range(5))]


def test_several_spans() -> None:
    batch = collate([sample([1, 2, 3, 4, 5, 6], (1, 2), (4, 6))])
    assert batch.targets_K.tolist() == [2, 5, 6]


def test_filler() -> None:
    batch = collate([])
    assert (batch.tokens, batch.supervised_tokens, batch.keep_C.tolist()) == (1, 0, [0])


@pytest.fixture(scope="module")
def model():  # type: ignore[no-untyped-def]
    from transformers import LlamaConfig, LlamaForCausalLM

    from ftcore import attention

    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, attn_implementation=attention.NAME, **heads)
    return LlamaForCausalLM(config).eval()


def test_another_sample_leaves_logits_bit_equal(model) -> None:  # type: ignore[no-untyped-def]
    from ftcore.train.loss import supervised_logits

    def second(first: list[int]) -> torch.Tensor:
        with torch.no_grad():
            return supervised_logits(model, collate([sample(first), sample([9, 8, 7, 6, 5, 4], (1, 6)), sample([1, 2, 3], (1, 3))]))

    assert torch.equal(second([1, 2, 3, 4]), second([40, 41, 42, 43]))


def test_packed_sum_is_the_sum_of_separate_losses(model) -> None:  # type: ignore[no-untyped-def]
    """E01: losses and gradients of a packed row are those of its samples alone."""
    from ftcore.train.loss import token_loss_sum

    samples = [sample([1, 2, 3], (1, 3)), sample([4, 5, 6, 7, 8], (2, 5)), sample([9, 9, 9, 3, 2, 1], (3, 6))]
    packed = token_loss_sum(model, collate(samples))
    packed.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    alone = torch.zeros(())
    for one in samples:
        logits = model(torch.tensor(one.ids.tolist()).unsqueeze(0)).logits[0, :-1]
        labels = torch.full((len(one.ids) - 1,), -100)
        for start, end in one.spans.tolist():
            labels[start - 1 : end - 1] = torch.tensor(one.ids.tolist())[start:end]
        alone = alone + torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    alone.backward()
    assert float(packed.detach()) == pytest.approx(float(alone.detach()), rel=1e-6)
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, gradients[name], rtol=1e-4, atol=1e-6), name
    model.zero_grad()


def test_sliding_window_hides_what_is_far(model) -> None:  # type: ignore[no-untyped-def]
    from ftcore.attention import segment_attention

    torch.manual_seed(1)
    query, key, value = (torch.randn(1, 2, 9, 8) for _ in range(3))
    windowed, _ = segment_attention(model, query, key, value, None, segment_lengths=(9,), sliding_window=3)
    alone, _ = segment_attention(model, query[:, :, 6:], key[:, :, 6:], value[:, :, 6:], None, segment_lengths=(3,))
    assert torch.allclose(windowed[:, 8], alone[:, 2], atol=1e-6)


@pytest.mark.parametrize("option", ["softcap", "s_aux", "position_bias"])
def test_what_sdpa_lacks_is_refused(option: str, model) -> None:  # type: ignore[no-untyped-def]
    from ftcore.attention import segment_attention

    states = torch.zeros(1, 2, 3, 8)
    with pytest.raises(TrainingError, match=option):
        segment_attention(model, states, states, states, None, **{option: 30.0})
