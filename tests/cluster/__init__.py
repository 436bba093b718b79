"""Real hosts and a real Slurm on one machine, for tests."""
