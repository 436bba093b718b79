"""How gloo, NCCL and the kernel say that another process of the run has gone."""

from __future__ import annotations

LOST_PEER_WORDS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Read error",
    "Broken pipe",
    "remote process exited",
    "NCCL communicator was aborted",
)


def names_a_lost_peer(text: str) -> bool:
    """Whether an error's text or the end of a log says that another process went away, so that it is not the first failure."""
    return any(words in text for words in LOST_PEER_WORDS)
