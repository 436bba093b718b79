"""What every test rests on, however the tests were started."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings


def pytest_configure() -> None:
    """Generated examples may take their time on a busy machine, and are the same in each run: what fails is what was changed.
    With FTLAUNCH_EXPLORE=1 they are new ones.

    Signals are as at a terminal: started with nohup or by a shell's `&`, this process and all that it starts would ignore them.
    """
    # Health checks of what an example holds stay; that one goes by the clock.
    patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("the same", patient, derandomize=True)
    settings.register_profile("explore", patient)
    settings.load_profile("explore" if os.environ.get("FTLAUNCH_EXPLORE") else "the same")
    for signum, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, handler)


@pytest.fixture(autouse=True)
def _shell_without_what_libraries_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core chooses DeepSpeed's accelerator when it is imported into this process: no wish of a user's, as which a launch would take it."""
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
