"""The scaling test: points of ranks and stages measured by short real runs, set against each other."""
