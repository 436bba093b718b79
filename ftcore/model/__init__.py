"""The model that is trained: loaded, quantised, adapted, grouped, and recomputed where memory is short."""
