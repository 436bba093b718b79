"""Calls and kernels of a few updates, as torch's profiler records them, in RUN/profile/rank_R.json.gz; where that is there, in rank_R_from_UPDATE.json.gz."""

from __future__ import annotations

import os
from typing import Any

import torch

from ftcore.dist import Ranks, barrier
from ftcore.metrics.writer import record_event
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import ProfilingSection
from ftcore.spec.trace_ranges import PHASE_RANGES, RANGE_PREFIX, UPDATE_RANGE


class NamedRanges:
    """Ranges inside each other, as the trace names them, and where there is a GPU as NVTX has them too."""

    def __init__(self, *, nvtx: bool) -> None:
        self._nvtx = nvtx
        self._open: list[Any] = []

    def enter(self, name: str) -> None:
        """Opens one inside those that are open."""
        entered = torch.profiler.record_function(RANGE_PREFIX + name)
        entered.__enter__()
        self._open.append(entered)
        if self._nvtx:
            torch.cuda.nvtx.range_push(RANGE_PREFIX + name)

    def leave(self, depth: int) -> None:
        """Closes the innermost ones until so many are open."""
        while len(self._open) > depth:
            if self._nvtx:
                torch.cuda.nvtx.range_pop()
            self._open.pop().__exit__(None, None, None)


class Profile:
    """The profiler of one rank; outside of the chosen updates it costs a comparison."""

    def __init__(self, section: ProfilingSection, run_dir: RunDir, ranks: Ranks) -> None:
        self._section, self._run_dir, self._ranks = section, run_dir, ranks
        first = section.start_update
        self._chosen = range(first, first + section.updates)
        self._updates = self._chosen if ranks.rank in section.ranks else range(0)
        self._profiler: Any = None
        self._began = first
        self._on_gpu = ranks.device.type == "cuda"
        # A build for AMD's GPUs has no NVTX.
        self._ranges = NamedRanges(nvtx=self._on_gpu and torch.version.cuda is not None)
        self._phase = ""
        """The one that the training is in, where it has said so."""
        self._in_update = False
        self._has_met = False

    def before(self, update: int) -> None:
        """To be called before the update numbered from 1, on every rank. A resumed run records what is left of the chosen updates."""
        if update in self._updates and self._profiler is None:
            self._start(update)
        if update in self._chosen and not self._has_met and self._ranks.world_size > 1:
            # Ranks start their profilers for unlike long: what the first one waits for the last is no part of an update.
            barrier()
            self._has_met = True
        if self._profiler is not None:
            self._ranges.leave(0)
            self._ranges.enter(f"{UPDATE_RANGE} {update}")
            self._in_update = True
            self.phase(self._phase)

    def phase(self, name: str) -> None:
        """From now on the training is in this phase: one of PHASE_RANGES is a range of its own, anything else is none."""
        self._phase = name
        if self._profiler is None:
            return
        self._ranges.leave(1 if self._in_update else 0)
        if name in PHASE_RANGES:
            self._ranges.enter(name)

    def after(self, update: int) -> None:
        """To be called after the update numbered from 1; writes the file once the last of them is done."""
        if self._profiler is None:
            return
        is_last = update + 1 not in self._updates
        if is_last and self._on_gpu:
            # The update is over when the device has done it.
            torch.cuda.synchronize()
        self._ranges.leave(0)
        self._in_update = False
        if is_last:
            self.close()

    def close(self) -> None:
        """Ends the recording and writes it; nothing when none is going on. A disk that takes no file leaves a note: the run goes on."""
        if self._profiler is None:
            return
        self._ranges.leave(0)
        self._in_update = False
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        path = self._run_dir.profile(self._ranks.rank)
        if path.exists():
            # What was recorded before the run was stopped stays.
            path = path.with_name(path.name.replace(".", f"_from_{self._began}.", 1))
        aside = path.with_name(f".{path.name}")
        try:
            path.parent.mkdir(exist_ok=True)
            profiler.export_chrome_trace(str(aside))
            os.replace(aside, path)
        except (OSError, RuntimeError) as error:
            record_event(self._run_dir, "note", text=f"rank {self._ranks.rank}: the profile could not be written: {error}")
        else:
            record_event(self._run_dir, "profile", rank=self._ranks.rank, path=str(path.relative_to(self._run_dir.path)))

    def _start(self, update: int) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(activities=activities, profile_memory=self._section.memory, record_shapes=True)
        self._profiler.start()
        if self._on_gpu:
            # What was launched before is no part of the update.
            torch.cuda.synchronize()
        self._began = update
