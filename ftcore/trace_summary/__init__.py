"""Where the time of profiled updates went, computed from the Chrome traces that torch's profiler wrote; no torch is needed for it."""
