"""`python -m ftcore.report.scale SCALE`: scale.html from a scaling test's scale.json."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

from ftcore.process import run_dir_argument, run_main
from ftcore.report.blocks import Cell, Charts, Column, Facts, Prose, Section, Table, Tile, Tiles
from ftcore.report.numbers import duration, fixed, in_bytes, money, percent, short_number
from ftcore.report.page import render_page
from ftcore.report.phase_times import PHASE_NAMES
from ftcore.report.scale_charts import efficiency_chart, memory_chart, phases_chart, rate_chart, rate_per_rank_chart, speedup_chart
from ftcore.spec.errors import CheckpointError
from ftcore.spec.run_dir import RunDir, write_atomic
from ftcore.spec.scale_result import Agreement, ScaleDir, ScalePoint, ScaleResult, read_scale

_STATES = {
    "failed": ("failed", "wrong"),
    "does_not_fit": ("does not fit", "wrong"),
    "refused": ("not allowed", "warn"),
    "waiting": ("not measured yet", ""),
    "queued": ("its job waits", ""),
    "running": ("its job runs", ""),
}


def main(folder: RunDir) -> None:
    """Writes SCALE/scale.html. Raises CheckpointError for a folder that holds no result, or a page that can't be written."""
    scale = ScaleDir(folder.path)
    text = page_of(read_scale(scale.path))
    try:
        write_atomic(scale.page, text)
    except OSError as error:
        raise CheckpointError(
            f"can't write {scale.page}: {error.strerror}", where=str(scale.path), fix="free some space, or mend the folder's rights"
        ) from error


def page_of(result: ScaleResult) -> str:
    """The whole page; equal results give equal text."""
    measured = result.measured
    shown = (_tiles(result), _points(result), *_missing(result), *_agreement(result), *_disturbed(result))
    sections = [Section(title="Result", blocks=shown, lead=_lead(result))]
    if measured:
        sections += [
            Section(title="Scaling", blocks=(Charts(charts=(speedup_chart(result), efficiency_chart(result))),), lead=_base_words(result)),
            Section(
                title="Where the time goes",
                blocks=(phases_chart(result), _phases(result), Prose(text="What limits each point:"), _limits(result)),
                lead="Seconds of an update, mean over ranks.",
            ),
            Section(title="Throughput and memory", blocks=(Charts(charts=(rate_chart(result), rate_per_rank_chart(result), memory_chart(result))),)),
        ]
    sections.append(Section(title="How it was measured", blocks=(_how(result), _windows(result), *_notes(result))))
    is_bad = result.agreement is not None and not result.agreement.passed
    state, tone = ("losses differ", "wrong") if is_bad else ("losses agree", "good") if result.agreement is not None else ("", "")
    return render_page(f"{result.mode.capitalize()} scaling of {result.model}", sections, subtitle=result.spec, state=state, tone=tone)


def name_of(point: ScalePoint, result: ScaleResult) -> str:
    """`8 ranks`, with its stage where there are several."""
    name = f"{point.ranks} rank{'s' if point.ranks > 1 else ''}"
    return name if len({each.stage for each in result.points}) == 1 else f"{name}, stage {point.stage}"


def _lead(result: ScaleResult) -> str:
    each = result.updates // result.windows
    kept = "The update's samples stay the same" if result.mode == "strong" else "The update grows with the ranks"
    window = f"{each} update{'s' if each > 1 else ''}"
    what = f"median of {result.windows} windows of {window}" if result.windows > 1 else window
    return f"{kept}; {result.precision}; {what} after {result.warm_up} to warm up."


def _base_words(result: ScaleResult) -> str:
    bases = {base.ranks for stage in {point.stage for point in result.measured} if (base := result.baseline(stage)) is not None}
    if bases == {1}:
        return "Against one rank of the same stage."
    return f"Against the fewest ranks of the same stage that were measured ({', '.join(map(str, sorted(bases)))}), not against one rank."


def _tiles(result: ScaleResult) -> Tiles:
    measured = result.measured
    if not measured:
        return Tiles(tiles=(Tile(label="measured points", value="0"),))
    fastest = (
        min(measured, key=lambda point: point.update_seconds or 0.0) if result.mode == "strong" else max(measured, key=lambda each: each.tokens_per_s or 0.0)
    )
    most = max(measured, key=lambda point: (point.ranks, -point.stage))
    # Runs of a weak test see different numbers of samples.
    cheapest = min(measured, key=lambda point: (point.device_minutes if result.mode == "strong" else _of_a_million(point)) or math.inf)
    of_run = f"{short_number(cheapest.device_minutes)} device-minutes for the run"
    of_tokens = f"{short_number(_of_a_million(cheapest))} device-minutes a million tokens"
    tiles = [
        Tile(label="fastest", value=name_of(fastest, result), note=f"{duration(fastest.update_seconds)} an update"),
        Tile(label="most ranks", value=f"{fixed(most.speedup, 2)} ×", note=f"{name_of(most, result)}, ideal {short_number(most.ideal_speedup)} ×"),
        Tile(label="its efficiency", value=percent(most.efficiency), note=f"{percent(most.normalised_efficiency)} by cores" if most.cores else most.limiting),
        Tile(label="least device time", value=name_of(cheapest, result), note=of_run if result.mode == "strong" else of_tokens),
    ]
    return Tiles(tiles=tuple(tiles))


def _of_a_million(point: ScalePoint) -> float | None:
    """Device-minutes of a million tokens."""
    return point.devices * 1e6 / point.tokens_per_s / 60 if point.devices and point.tokens_per_s else None


def _points(result: ScaleResult) -> Table:
    has_price, has_cores = result.price_per_hour is not None, any(point.cores for point in result.measured)
    names = [
        "an update",
        "speedup",
        "ideal",
        "efficiency",
        *(["by cores"] if has_cores else []),
        "supervised tokens/s",
        "a rank",
        "memory",
        "run",
        "device-minutes",
    ]
    columns = (Column(name="point"), *(Column(name=name, is_number=True) for name in names), *((Column(name="price", is_number=True),) if has_price else ()))
    rows = []
    for point in result.measured:
        price = None if point.device_minutes is None or result.price_per_hour is None else point.device_minutes / 60 * result.price_per_hour
        rows.append(
            (
                Cell(text=name_of(point, result) + (" *" if point.oversubscribed else "")),
                duration(point.update_seconds),
                fixed(point.speedup, 2),
                short_number(point.ideal_speedup),
                percent(point.efficiency),
                *((percent(point.normalised_efficiency),) if has_cores else ()),
                fixed(point.supervised_tokens_per_s, 0),
                fixed(point.supervised_tokens_per_s_per_rank, 0),
                in_bytes(point.peak_memory_bytes),
                duration(60 * point.run_minutes) if point.run_minutes is not None else "–",
                short_number(point.device_minutes),
                *((money(price, result.currency),) if has_price else ()),
            )
        )
    crowded = any(point.oversubscribed for point in result.measured)
    return Table(columns=columns, rows=tuple(rows), name="Measured points", note="* oversubscribed: more ranks than cores." if crowded else "")


def _missing(result: ScaleResult) -> tuple[Table, ...]:
    left = [point for point in result.points if not point.is_measured]
    rows = tuple((name_of(point, result), Cell(text=_STATES[point.state][0], tone=_STATES[point.state][1]), point.reason) for point in left)
    columns = (Column(name="point"), Column(name="state"), Column(name="why", is_long=True))
    return (Table(columns=columns, rows=rows, name="Points without numbers"),) if rows else ()


def _agreement(result: ScaleResult) -> tuple[Prose, ...]:
    found: Agreement | None = result.agreement
    if found is None:
        return ()
    gap = "a loss is missing or no number" if found.largest_loss_gap is None else f"the largest relative distance is {found.largest_loss_gap:.1e}"
    head = "All points trained the same" if found.passed else "The points did not train the same"
    return (Prose(text=f"{head}: {gap} (from {found.reference}; tolerance {found.tolerance:.2g}).", tone="good" if found.passed else "wrong"),)


def _disturbed(result: ScaleResult) -> tuple[Prose, ...]:
    """Beside the speedups, since they mean little then."""
    found = [name_of(point, result) for point in result.measured if point.is_disturbed]
    if not found:
        return ()
    text = f"Other processes kept cores busy when {', '.join(found)} began: times and speedups say little, losses are as right as ever."
    return (Prose(text=text, tone="warn"),)


def _phases(result: ScaleResult) -> Table:
    shown = [phase for phase in PHASE_NAMES if any(point.phases.get(phase, 0.0) >= 0.0005 * (point.update_seconds or 1.0) for point in result.measured)]
    columns = (Column(name="point"), *(Column(name=PHASE_NAMES[phase], is_number=True) for phase in shown), Column(name="sum", is_number=True))
    rows: list[tuple[str | Cell, ...]] = []
    for point in result.measured:
        total = point.update_seconds or 1.0
        shares = [percent(point.phases.get(phase, 0.0) / total) for phase in shown]
        rows.append((Cell(text=name_of(point, result)), *shares, percent(sum(point.phases.values()) / total)))
    return Table(columns=columns, rows=tuple(rows), name="Shares of an update")


def _limits(result: ScaleResult) -> Facts:
    return Facts(rows=tuple((name_of(point, result), point.limiting) for point in result.measured))


def _how(result: ScaleResult) -> Facts:
    rows = [("spec", result.spec), ("model", result.model), ("mode", result.mode), ("precision", result.precision)]
    for point in result.measured:
        where = ", ".join(f"{host}: {count}" for host, count in point.hosts.items()) or (f"job {point.job}" if point.job else "")
        on = _counted(point.accelerators, "accelerator") or _counted(point.cores, "core")
        rows.append((name_of(point, result), ", ".join(part for part in (where, on, f"update of {short_number(point.tokens)} tokens") if part)))
    return Facts(rows=tuple(rows))


def _counted(count: int | None, name: str) -> str:
    return f"{count} {name}{'' if count == 1 else 's'}" if count else ""


def _notes(result: ScaleResult) -> Iterator[Prose]:
    """What stands below a terminal's table, as sentences."""
    for note in result.notes:
        text = note.removeprefix("* ")
        yield Prose(text=f"{text[:1].upper()}{text[1:]}.", tone="soft")


def _windows(result: ScaleResult) -> Table:
    most = max((len(point.window_seconds) for point in result.measured), default=0)
    columns = (
        Column(name="seconds an update"),
        *(Column(name=f"window {number}", is_number=True) for number in range(1, most + 1)),
        Column(name="spread", is_number=True),
    )
    # Of one window alone nothing is known of how far they lie apart.
    spreads = [point.spread if len(point.window_seconds) > 1 else None for point in result.measured]
    windows = [(name_of(point, result), *(f"{seconds:.4g}" for seconds in point.window_seconds)) for point in result.measured]
    return Table(columns=columns, rows=tuple((*row, percent(spread)) for row, spread in zip(windows, spreads, strict=True)), name="Windows")


if __name__ == "__main__":
    run_main(main, run_dir_argument(sys.argv[1:]))
