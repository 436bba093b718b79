"""What a signal to a Slurm job raises before its launch takes signals itself.

In a file of its own: `python -m launcher.slurm_job` and an import of it are two modules, with two classes of one name.
"""

from __future__ import annotations


class EarlyWarningError(Exception):
    """Nothing was started, so nothing is to be saved."""
