"""What a run would be on other numbers of ranks: simulated, nothing is started."""
