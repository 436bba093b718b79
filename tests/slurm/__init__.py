"""Runs under a real Slurm of two nodes."""
