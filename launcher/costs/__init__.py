"""What a run costs: plans that meet a deadline at given prices, and what a run has cost so far."""
