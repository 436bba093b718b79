"""Chat templates: which one, the text it makes of a conversation, and which of its tokens are learned."""
