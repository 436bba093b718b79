"""Which failures only follow from another rank's end."""

from __future__ import annotations

import pytest

from ftcore.process import is_lost_peer
from ftcore.spec.lost_peer import names_a_lost_peer


@pytest.mark.parametrize(
    "text",
    [
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:29501",
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Read error [127.0.0.1]:29501: Connection reset by peer",
        "writev [127.0.0.1]:29501: Broken pipe",
        "NCCL error: remote process exited or there was a network error",
        "NCCL communicator was aborted on rank 1.",
    ],
)
def test_words_of_a_lost_peer(text: str) -> None:
    assert names_a_lost_peer(f"lines above\n{text}\nlines below")
    assert is_lost_peer(RuntimeError(text))
    # A file or a socket of our own that breaks is a failure of its own.
    assert not is_lost_peer(OSError(text))


@pytest.mark.parametrize("text", ["", "CUDA out of memory", "loss is nan at update 7"])
def test_other_failures(text: str) -> None:
    assert not names_a_lost_peer(text)
    assert not is_lost_peer(RuntimeError(text))
