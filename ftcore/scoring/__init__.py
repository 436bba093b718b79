"""Scores of generated answers, the result of an evaluation on disk, and the comparison of two results. Needs no torch."""
