"""Results as text for a terminal."""

from __future__ import annotations

from ftcore.scoring.compare import Comparison
from ftcore.scoring.paired import FEWEST_ROWS
from ftcore.scoring.result import Result

Cells = list[str]


def render_result(result: Result) -> str:
    """A table, one line a set."""
    model = result.model
    metrics = list(result.settings.metrics)
    head = ["set", "rows", "tokens", "loss", "perplexity", *metrics, *(["answered"] if metrics else [])]
    lines = [head]
    for name, found in result.sets.items():
        scores = [number(found.metrics.get(metric), ".1%") for metric in metrics]
        answered = [f"{found.answered_rows:,}"] if metrics else []
        lines.append([name, f"{found.rows:,}", f"{found.tokens:,}", number(found.loss, ".4f"), number(found.perplexity, ",.3f"), *scores, *answered])
    update = f", update {model.update}" if model.update is not None else ""
    return f"{model.kind} {model.name}{update}; loss per supervised token\n{aligned(lines, left=1)}\n"


def render_comparison(comparison: Comparison) -> str:
    """A table, one line a set and metric."""
    lines = [["set", "metric", "rows", "before", "after", "difference", "95 % interval", ""]]
    for each in comparison.lines:
        form = ".4f" if each.metric == "loss" else ".1%"
        signed = f"+{form}"
        interval = f"{number(each.low, signed)} to {number(each.high, signed)}" if each.low is not None else "-"
        values = [number(each.before, form), number(each.after, form), number(each.difference, signed)]
        lines.append([each.set, each.metric, f"{each.rows:,}", *values, interval, each.verdict])
    notes = [f"left out: {reason}" for reason in comparison.left_out]
    if any(each.rows < FEWEST_ROWS for each in comparison.lines):
        notes.append(f"fewer than {FEWEST_ROWS} rows tell no difference")
    return f"before: {comparison.before}\nafter:  {comparison.after}\n{aligned(lines, left=2)}\n" + "".join(f"{note}\n" for note in notes)


def aligned(lines: list[Cells], *, left: int) -> str:
    """The cells in columns; the first `left` columns begin at the left, the others end at the right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    rows = []
    for line in lines:
        cells = [cell.ljust(width) if column < left else cell.rjust(width) for column, (cell, width) in enumerate(zip(line, widths, strict=True))]
        rows.append("  ".join(cells).rstrip())
    return "\n".join(rows)


def number(value: float | None, form: str) -> str:
    """`value` in Python's format, or `-` for None."""
    return "-" if value is None else format(value, form)
