"""The launcher: reads a spec, writes a run's folder, starts and watches the ranks. Standard library, click and yaml only."""
