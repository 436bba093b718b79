"""Runs over several hosts: real sshd, real networks between namespaces."""
