"""Ways to bring a run's ranks to life on its hosts."""
