"""Rows from files: JSON, JSONL, CSV, parquet and Arrow; single files, folders, patterns and data sets of the hub."""
