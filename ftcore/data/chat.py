"""Names that moved to ftcore.data.templates."""

from __future__ import annotations

from ftcore.data.templates.rendered import Rendered
from ftcore.data.templates.renderer import ChatRenderer
from ftcore.data.templates.rendering import MARKERS, CharSpan

__all__ = ["MARKERS", "CharSpan", "ChatRenderer", "Rendered"]
