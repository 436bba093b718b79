"""Checkpoints that are free of world size and ZeRO stage: slices of fp32 masters and moments, a cursor, and a manifest written last."""
