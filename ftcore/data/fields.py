"""Names that moved to ftcore.data.formats."""

from __future__ import annotations

from ftcore.data.formats.record_kinds import Conversation, PlainText, Record, TextPair, TokenIds
from ftcore.data.formats.record_maker import to_records

__all__ = ["Conversation", "PlainText", "Record", "TextPair", "TokenIds", "to_records"]
