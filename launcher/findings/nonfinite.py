"""A loss or a gradient that was not finite: the first such update, its samples, and what the numbers before it say."""

from __future__ import annotations

import math

from ftcore.spec.run_record import Line, number
from launcher.findings.finding import ENDED, NOTE, WRONG, Evidence, Finding, Knob
from launcher.findings.going_on import resume_lines
from launcher.findings.seen import Seen, host_of, middle

_BEFORE = 20
"""Logged updates before it that its numbers are compared with."""
GROWN = 3.0
"""Times the usual gradient norm, or the best loss, from which on the run was already diverging."""
LEAPT = 10.0
"""Times the largest loss before, from which on an update's own loss tells of parameters that are lost; lengths alone make no such difference."""
_SHOWN = 8


def nonfinite(seen: Seen, attempt: int | None, *, ended: bool) -> Finding | None:
    """The finding of the first refused update of a launch, or of all of them; None without one. `ended`: the run stopped for it."""
    refused = seen.events("failed_update", attempt)
    if not refused:
        return None
    first = refused[0]
    update = int(number(first, "update"))
    culprits = [each for each in first.get("micro_steps") or () if isinstance(each, dict)]
    bad = [each for each in culprits if not _is_finite(each.get("loss"))]
    before = [line for line in seen.record.updates if int(line["update"]) < update][-_BEFORE:]
    rank = bad[0].get("rank") if len({each.get("rank") for each in bad}) == 1 else None
    what = f"update {update} was the first that was not finite: {first.get('reason')}"
    more = f"; {len(refused)} updates in all were refused" if len(refused) > 1 else ""
    diverging = is_diverging(before) or has_leapt(culprits, before)
    knobs = _knobs(seen, diverging=diverging, bad=bad)
    return Finding(
        kind="nan",
        severity=ENDED if ended else WRONG,
        what=what + more,
        rank=rank if isinstance(rank, int) else None,
        host=host_of(seen, rank if isinstance(rank, int) else None),
        update=update,
        phase="forward" if bad else "backward",
        time=number(first, "time") or None,
        details=tuple(_micro_steps(bad or culprits, all_of_them=not bad)),
        causes=_causes(seen, first, before, bad=bad, diverging=diverging),
        evidence=(Evidence(what=f"failed_update {update}: {first.get('reason')}", file="events.jsonl"), *_numbers(before, first)),
        knobs=knobs,
        go_on=resume_lines(seen, knobs, needs_change=True) if ended else (),
    )


def overflows(seen: Seen) -> Finding | None:
    """fp16's search for a loss scale, where it takes many updates; None otherwise."""
    found = seen.events("overflow")
    if not found or len(found) < max(5, 0.05 * max(1, seen.done)):
        return None
    scale = next((event.get("loss_scale") for event in reversed(found) if event.get("loss_scale")), None)
    return Finding(
        kind="overflow",
        severity=NOTE if len(found) < 0.2 * max(1, seen.done) else WRONG,
        what=f"{len(found)} of {seen.done + len(found)} updates overflowed in fp16 and changed nothing; the loss scale is {scale}",
        evidence=(Evidence(what=f"{len(found)} overflow events", file="events.jsonl"),),
        knobs=(Knob(options="--set train.precision=bf16", gives="no loss scale and no overflows, where the accelerator has bf16"),),
    )


def _micro_steps(steps: list[Line], *, all_of_them: bool) -> list[str]:
    named = [
        f"rank {each.get('rank')}, micro-step {each.get('micro_step')}: loss {each.get('loss')}, samples {_ids(each.get('samples'))}" for each in steps[:_SHOWN]
    ]
    return [*(["the losses were finite and the gradient was not, so any of the update's micro-steps may be the one:"] if all_of_them and named else []), *named]


def _ids(samples: object) -> str:
    return ", ".join(map(str, samples[:_SHOWN])) if isinstance(samples, list) and samples else "not recorded"


def _numbers(before: list[Line], first: Line) -> tuple[Evidence, ...]:
    found = []
    if before:
        last = before[-1]
        norm = f"gradient norm {_shown(last.get('grad_norm'))}"
        usual = f", usual {middle(_finite(before[:-1], 'grad_norm')):.3g}" if len(before) > 2 else ""
        loss = f"loss {_shown(last.get('loss'))}, best {min(_finite(before, 'loss'), default=math.nan):.4g}"
        found.append(
            Evidence(what=f"before it, update {last['update']}: {loss}; {norm}{usual}; learning rate {number(last, 'learning_rate'):.3g}", file="metrics.jsonl")
        )
    if first.get("loss_scale") is not None:
        found.append(Evidence(what=f"loss scale {first['loss_scale']}", file="events.jsonl"))
    return tuple(found)


def _causes(seen: Seen, first: Line, before: list[Line], *, bad: list[Line], diverging: bool) -> tuple[str, ...]:
    """The likely ones first, by this run's numbers."""
    likely: list[str] = []
    others: list[str] = []
    (likely if diverging else others).append(_learning_rate(seen, before, [] if bad else _sums(first)))
    samples = f"the samples named above: their loss was {bad[0].get('loss')}" if bad else "samples whose gradient overflows"
    (likely if bad and not diverging else others).append(samples)
    spec = seen.resolved.spec if seen.resolved is not None else None
    if spec is not None and spec.train.precision == "fp16":
        scale = number(first, "loss_scale", math.nan)
        (likely if scale == 1.0 else others).append(f"fp16 holds numbers up to 65,504; the loss scale was {scale:g}")
    if spec is not None and spec.optimizer.max_grad_norm <= 0:
        (likely if diverging else others).append("nothing is clipped (optimizer.max_grad_norm is 0)")
    if not before:
        likely.append("it was the first update: the base model's weights, or its data, hold what is not finite")
    return (*(f"likely: {text}" for text in likely), *(f"less likely: {text}" for text in others))


def _learning_rate(seen: Seen, before: list[Line], sums: list[float]) -> str:
    if not before:
        return "the learning rate, though no update was taken before"
    last, losses, norms = before[-1], _finite(before, "loss"), _finite(before, "grad_norm")
    growth = (
        f", the loss rose from {min(losses):.4g} to {losses[-1]:.4g} and the gradient norm from {min(norms):.3g} to {norms[-1]:.3g} before it"
        if len(losses) > 1 and norms
        else ""
    )
    tokens = middle([number(line, "supervised_tokens") for line in before])
    if sums and tokens:
        growth += f", the loss in it was about {sum(sums) / tokens:.4g}"
    peak = seen.resolved.spec.optimizer.learning_rate if seen.resolved is not None else 0.0
    share = f" ({number(last, 'learning_rate') / peak:.0%} of its peak)" if peak > 0 else ""
    return f"the learning rate {number(last, 'learning_rate'):.3g}{share}{growth}"


def is_diverging(before: list[Line]) -> bool:
    """Whether loss or gradient norm had grown by GROWN before the update that failed."""
    for key in ("loss", "grad_norm"):
        values = _finite(before, key)
        if len(values) >= 2 and values[-1] > GROWN * min(values):
            return True
    return False


def has_leapt(culprits: list[Line], before: list[Line]) -> bool:
    """Whether the update was lost as a whole: no micro-step had a finite loss, or all had, and far larger ones than before."""
    sums = [each for each in _sums({"micro_steps": culprits}) if math.isfinite(each)]
    if not before or not culprits:
        return False
    if not sums:
        whole = number(before[-1], "micro_steps") * number(before[-1], "world_size")
        return len(culprits) >= max(2.0, whole)
    most = max((loss * number(line, "supervised_tokens") for line in before for loss in _finite([line], "loss")), default=math.inf)
    return sum(sums) > LEAPT * most


def _sums(first: Line) -> list[float]:
    """Sums of the token losses of the micro-steps that an event names."""
    named = [each.get("loss") for each in first.get("micro_steps") or () if isinstance(each, dict)]
    return [float(str(each)) for each in named if _is_number(each)]


def _knobs(seen: Seen, *, diverging: bool, bad: list[Line]) -> tuple[Knob, ...]:
    if seen.resolved is None:
        return ()
    spec, knobs = seen.resolved.spec, []
    lower = Knob(options=f"--set optimizer.learning_rate={spec.optimizer.learning_rate / (10 if diverging else 2):.3g}", gives="smaller steps")
    if diverging:
        knobs.append(lower)
    if spec.optimizer.max_grad_norm <= 0:
        knobs.append(Knob(options="--set optimizer.max_grad_norm=1.0", gives="a gradient that is too large is scaled down"))
    if spec.train.on_nonfinite == "stop" and bad:
        what = f"such updates are left out, up to {spec.train.max_nonfinite_updates} in a row"
        knobs.append(Knob(options="--set train.on_nonfinite=skip", gives=what, costs="their samples are not learnt from"))
    if spec.train.precision == "fp16":
        knobs.append(Knob(options="--set train.precision=bf16", gives="a range as wide as fp32's"))
    if spec.train.precision in ("bf16", "bf16_autocast"):
        knobs.append(Knob(options="--set train.precision=fp32", gives="shows whether it is the precision", costs="memory and time"))
    return (*knobs, *(() if lower in knobs else (lower,)))


def _finite(lines: list[Line], key: str) -> list[float]:
    return [float(line[key]) for line in lines if isinstance(line.get(key), int | float) and math.isfinite(line[key])]


def _is_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True


def _is_finite(value: object) -> bool:
    return _is_number(value) and math.isfinite(float(str(value)))


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else str(value)
