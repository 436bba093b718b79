"""The digest that tells a damaged file: XXH3 with 128 bits, ten times as fast as SHA-256, so that it costs a save nothing.

It finds bits that flipped and files that were cut or mixed up. It is no seal: who can write into the folder can write a manifest as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import xxhash

from ftcore.spec.events import emit_at

CHUNK_BYTES = 2**20


class Digest(Protocol):
    """As in hashlib."""

    def update(self, data: bytes | memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


def new_digest() -> Digest:
    """An empty one, to be fed piece by piece."""
    return xxhash.xxh3_128()


def digest_of(content: bytes) -> str:
    """32 hex digits."""
    return xxhash.xxh3_128_hexdigest(content)


def file_digest(path: Path) -> str:
    """The digest of the file's bytes. Raises OSError."""
    digest = new_digest()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            emit_at("load")
    return digest.hexdigest()
