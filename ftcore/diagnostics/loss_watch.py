"""Watches the loss curve for spikes, growing oscillation, divergence and a start without any learning; plain Python, some tens of microseconds a logged update.

Every limit is meant for token losses of an update, whose noise is skewed and shrinks as the loss falls.
tests/unit/test_diagnostics_loss_watch.py holds the rate of false alarms on pure noise.
"""

from __future__ import annotations

from collections import deque

from ftcore.diagnostics.causes import likely_causes
from ftcore.diagnostics.curve import deviation, line_residuals, median, noise_of_steps, rise_score, sign_changes
from ftcore.diagnostics.findings import Finding, Observation, RunFacts

BASELINE = 40
"""Observations a spike is compared with: MAD is then known to about 15 %, and a falling loss has not moved far."""
FEWEST = 20
"""Observations before the first spike can be told: with fewer, MAD is off by a quarter and more."""
SPIKE = 10.0
"""MADs above the median, 6.7 standard deviations of normal noise; updates of few samples have a tail that 5 would meet now and then."""
FLOOR = 0.005
"""Least MAD as a share of the median: where the loss hardly moves, a rise of SPIKE * FLOOR = 5 % is the least worth telling."""
CALM = 5
"""Observations within half the limit that end an episode."""

BLOCKS, HALF_PERIODS = 24, (1, 2, 3)
"""Oscillation: means of 1, 2 or 3 observations, so that swings of up to six updates a period are seen."""
ALTERNATIONS = 20
"""Of 23: chance alternates as often once in 4,000 windows, and grows by GROWTH at the same time once in some hundred thousand."""
STILL_ALTERNATES = 15
"""Of 23: fewer end the episode."""
GROWTH = 1.8
"""Mean swing of the later half of the window over that of the earlier half."""
LEAST_SWING = 0.01
"""Share of the loss that the later swings must reach."""

TREND = 30
"""Observations in which the loss must rise."""
TREND_SCORE = 4.0
"""Mann-Kendall's score: pure noise gives 4 once in 30,000 windows."""
ABOVE_BEST, ABOVE_BEST_SHARE = 3.0, 0.05
"""Standard deviations, and share of the loss, by which the median of the last third must be over the best median so far."""

START, NO_GRADIENT = 8, 1e-6
"""A start without learning: this many updates with a learning rate and a norm below this; what trains has norms above 1e-3."""
LEARNT = 1e-3
"""A loss below this has nothing left to learn."""

RECENT = 20
"""Observations that the causes are judged by."""


class LossWatch:
    """Fed each logged update; answers with what is new. One finding an episode of each kind."""

    def __init__(self, facts: RunFacts) -> None:
        self._facts = facts
        self._recent: deque[Observation] = deque(maxlen=RECENT)
        self._baseline: deque[float] = deque(maxlen=BASELINE)
        self._losses: deque[float] = deque(maxlen=BLOCKS * HALF_PERIODS[-1])
        self._seen = 0
        self._in_spike, self._spike_length, self._calm = False, 0, 0
        self._swings_by = 0  # half period of the oscillation that lasts, 0: none
        self._best, self._diverging = float("inf"), False
        self._norms_at_start: list[float] | None = []

    def feed(self, observation: Observation) -> list[Finding]:
        """New findings, none most of the time. A skipped update, not finite, is remembered for the causes only."""
        self._recent.append(observation)
        if not observation.is_finite:
            return []
        self._seen += 1
        self._losses.append(observation.loss)
        found = [self._plateau(observation), self._spike(observation), self._oscillation(observation), self._divergence(observation)]
        return [finding for finding in found if finding is not None]

    def _finding(self, kind: str, what: str) -> Finding:
        recent = list(self._recent)
        return Finding(kind=kind, update=recent[-1].update, what=what, causes=likely_causes(kind, recent, self._facts))

    def _plateau(self, now: Observation) -> Finding | None:
        if self._norms_at_start is None or now.learning_rate <= 0:
            return None
        self._norms_at_start.append(now.grad_norm)
        if max(self._norms_at_start) >= NO_GRADIENT or now.loss < LEARNT:
            self._norms_at_start = None
            return None
        if len(self._norms_at_start) < START:
            return None
        largest, self._norms_at_start = max(self._norms_at_start), None
        norms = f"in the first {START} logged updates the gradient norm was at most {largest:.1g}"
        return self._finding("plateau", f"nothing learns: {norms}, the loss is {now.loss:.4g}")

    def _spike(self, now: Observation) -> Finding | None:
        if len(self._baseline) < FEWEST:
            self._baseline.append(now.loss)
            return None
        centre = median(self._baseline)
        mad = max(deviation(self._baseline, centre), FLOOR * abs(centre))
        above = (now.loss - centre) / mad
        if not self._in_spike:
            if above <= SPIKE:
                self._baseline.append(now.loss)
                return None
            self._in_spike, self._spike_length, self._calm = True, 0, 0
            usual = f"the median {centre:.4g} of the last {len(self._baseline)}"
            return self._finding("spike", f"loss spike at update {now.update}: {now.loss:.4g} is {above:.0f} MADs above {usual} (told from {SPIKE:g} on)")
        return self._leave_spike(now.loss, above)

    def _leave_spike(self, loss: float, above: float) -> Finding | None:
        """Ends the episode when the loss is back, or has stayed up for so long that it is the new level, which is told as divergence."""
        self._spike_length += 1
        self._calm = self._calm + 1 if above <= SPIKE / 2 else 0
        if self._calm:
            self._baseline.append(loss)
        if self._calm >= CALM:
            self._in_spike = False
            return None
        if self._spike_length < BASELINE:
            return None
        was, self._in_spike, told, self._diverging = median(self._baseline), False, self._diverging, True
        self._baseline.clear()
        level = median(list(self._losses)[-BASELINE:])
        what = f"the loss did not come back from its spike: {level:.4g} for {BASELINE} logged updates, {was:.4g} before"
        return None if told else self._finding("divergence", what)

    def _oscillation(self, now: Observation) -> Finding | None:
        for half_period in (self._swings_by,) if self._swings_by else HALF_PERIODS:
            if self._seen % half_period or len(self._losses) < BLOCKS * half_period:
                continue
            residuals = line_residuals(self._blocks(half_period))
            alternations = sign_changes(residuals)
            if self._swings_by:
                self._swings_by = half_period if alternations >= STILL_ALTERNATES else 0
                continue
            swing = _growing_swing(residuals, median(self._losses)) if alternations >= ALTERNATIONS else None
            if swing is not None:
                self._swings_by = half_period
                before, after = swing
                what = f"the loss swings from side to side, more and more: by {before:.3g}, then by {after:.3g} about {median(self._losses):.4g}"
                return self._finding("oscillation", f"{what} (update {now.update}, every {2 * half_period} logged updates)")
        return None

    def _blocks(self, half_period: int) -> list[float]:
        """Means of the last BLOCKS stretches of `half_period` losses."""
        window = list(self._losses)[-BLOCKS * half_period :]
        return [sum(window[place : place + half_period]) / half_period for place in range(0, len(window), half_period)]

    def _divergence(self, now: Observation) -> Finding | None:
        if len(self._losses) < TREND:
            return None
        window = list(self._losses)[-TREND:]
        level = median(window[-TREND // 3 :])
        noise = noise_of_steps(window)
        margin = max(ABOVE_BEST * noise, ABOVE_BEST_SHARE * abs(self._best))
        if level <= self._best + margin / 3:
            self._best, self._diverging = min(self._best, level), False
            return None
        if self._diverging or level <= self._best + margin or rise_score(window) < TREND_SCORE:
            return None
        self._diverging = True
        what = f"the loss rises: {level:.4g} over the last {TREND // 3} logged updates, {self._best:.4g} at best"
        return self._finding("divergence", f"{what} (update {now.update}; noise {noise:.2g})")


def _growing_swing(residuals: list[float], level: float) -> tuple[float, float] | None:
    """Mean swing of the window's earlier and later half, when it grows and is large enough to matter."""
    halves = residuals[: BLOCKS // 2], residuals[BLOCKS // 2 :]
    before, after = (sum(map(abs, half)) / len(half) for half in halves)
    return (before, after) if after >= GROWTH * before and after >= LEAST_SWING * abs(level) else None
