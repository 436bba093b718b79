"""What happened to a run, from what it wrote down: findings with their evidence, and what helps."""
