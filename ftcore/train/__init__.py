"""The training loop and what one update is made of."""
