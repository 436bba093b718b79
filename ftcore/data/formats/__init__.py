"""Rows -> records, by the format of their data set: fields checked, roles and tools normalised. Templates and tokenizers come after."""
