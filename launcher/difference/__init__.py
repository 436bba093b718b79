"""What differs between two runs, or two specs."""
