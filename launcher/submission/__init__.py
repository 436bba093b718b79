"""Runs as jobs of a batch scheduler: what is asked for, the script, the record, and what a job does when it ends."""
