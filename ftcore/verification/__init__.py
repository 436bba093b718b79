"""Compare runs that split the same updates in different ways: losses, gradient norms, samples and parameters."""
