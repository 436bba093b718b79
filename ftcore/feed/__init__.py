"""What the training loop is fed with: each update's micro-steps of this rank, put together ahead of time."""
