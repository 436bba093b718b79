"""From rows of a file to token ids with supervised spans, cached once before any process group exists. Never imports torch."""
