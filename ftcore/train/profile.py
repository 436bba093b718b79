"""Calls and kernels of a few updates, as torch's profiler records them, in RUN/profile/rank_R.json.gz; where that is there, in rank_R_from_UPDATE.json.gz."""

from __future__ import annotations

import os
from typing import Any

import torch

from ftcore.dist import Ranks
from ftcore.metrics.writer import record_event
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import ProfilingSection


class Profile:
    """The profiler of one rank; outside of the chosen updates it costs a comparison."""

    def __init__(self, section: ProfilingSection, run_dir: RunDir, ranks: Ranks) -> None:
        self._section, self._run_dir, self._rank = section, run_dir, ranks.rank
        first = section.start_update
        self._updates = range(first, first + section.updates) if ranks.rank in section.ranks else range(0)
        self._profiler: Any = None
        self._began = first

    def before(self, update: int) -> None:
        """To be called before the update numbered from 1. A resumed run records what is left of the chosen updates."""
        if update in self._updates and self._profiler is None:
            activities = [torch.profiler.ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(torch.profiler.ProfilerActivity.CUDA)
            self._profiler = torch.profiler.profile(activities=activities, profile_memory=self._section.memory)
            self._profiler.start()
            self._began = update

    def after(self, update: int) -> None:
        """To be called after the update numbered from 1; writes the file once the last of them is done."""
        if self._profiler is not None and update + 1 not in self._updates:
            self.close()

    def close(self) -> None:
        """Ends the recording and writes it; nothing when none is going on. A disk that takes no file leaves a note: the run goes on."""
        if self._profiler is None:
            return
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        path = self._run_dir.profile(self._rank)
        if path.exists():
            # What was recorded before the run was stopped stays.
            path = path.with_name(path.name.replace(".", f"_from_{self._began}.", 1))
        aside = path.with_name(f".{path.name}")
        try:
            path.parent.mkdir(exist_ok=True)
            profiler.export_chrome_trace(str(aside))
            os.replace(aside, path)
        except (OSError, RuntimeError) as error:
            record_event(self._run_dir, "note", text=f"rank {self._rank}: the profile could not be written: {error}")
        else:
            record_event(self._run_dir, "profile", rank=self._rank, path=str(path.relative_to(self._run_dir.path)))
