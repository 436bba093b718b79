"""What can be seen of a run, and ended, from outside of it."""
