"""The report of a run: one HTML file that explains what it did, what it waited for and what it cost."""
