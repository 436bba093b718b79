"""The simulator against speeds on several hosts, which nothing was fitted to: `python -m benchmarks.simulator [SCALE]`. Seconds.

llm-foundry's rows are foretold by the model as it was fitted to llm-foundry's rows of one host (`python -m benchmarks.time_model --fit`); those of programs
that the model does not know are tied to their own speed on one host, as `--measured` does. Two rows contradict their own table (see `contradicted`): they are
in the means, and marked. Then all rows that have a speed on one host are tied to it, and the band of launcher.simulation.uncertainty is counted out.

With SCALE (a folder of `ftlaunch scale`) each of its measured points is foretold from the one with the fewest ranks.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from benchmarks.published import Row, contradicted, on_several_hosts
from benchmarks.time_model import anchors, predicted, summary, tied
from launcher.simulation.uncertainty import half_width

FITTED = "llm-foundry"
"""The program whose rows of one host the model was fitted to."""


def foretold(row: Row) -> float:
    """Tokens a second of one accelerator. Raises StopIteration for a row of another program without a row of one host."""
    return predicted(row)[0] if row.software == FITTED else tied(row, next(iter(anchors(row))))


def error(row: Row) -> float:
    """Of the foretold speed."""
    return foretold(row) / row.tokens_per_s - 1


def tied_rows() -> list[Row]:
    """Rows on several hosts that have one of their family on one host, and that no other row contradicts."""
    return [row for row in on_several_hosts() if anchors(row) and contradicted(row) is None]


def tied_error(row: Row) -> float:
    """Of the speed foretold from its own program's on one host."""
    return tied(row, anchors(row)[0]) / row.tokens_per_s - 1


def is_in_band(row: Row) -> bool:
    """Whether the published seconds lie in the band around those foretold from one host."""
    times = predicted(row)[1]
    width = half_width(ranks=row.gpus, anchor_ranks=8, communication_share=times.communication_s / times.total_s, on_cpu=False)
    return abs(tied_error(row)) <= width


def print_published() -> None:
    """Each row, and what they come to."""
    rows = on_several_hosts()
    for row in rows:
        other = contradicted(row)
        said = f"   contradicted by {other.tokens_per_s:,.0f} on {other.gpus}" if other is not None else ""
        print(f"{row.software:<20}{row.name:<34}{row.tokens_per_s:>9,.0f}{foretold(row):>10,.0f} tokens/s {error(row):>+7.1%}{said}")
    kept = [row for row in rows if contradicted(row) is None]
    print(summary("several hosts, all rows", [error(row) for row in rows]))
    print(summary("  without the contradicted ones", [error(row) for row in kept]))
    for software in dict.fromkeys(row.software for row in rows):
        for gpu in dict.fromkeys(row.gpu for row in rows if row.software == software):
            print(summary(f"  {software}, {gpu}", [error(row) for row in kept if (row.software, row.gpu) == (software, gpu)]))
    own = tied_rows()
    print(summary("tied to one host, contradicted ones left out", [tied_error(row) for row in own]))
    print(f"in the band of a tied point: {statistics.mean(map(is_in_band, own)):.0%} of them")


def print_measured(folder: Path) -> None:
    """Each measured point beside what the one with the fewest ranks foretells."""
    from benchmarks.measured_points import compared

    for point in compared(folder):
        print(point)


def main() -> None:
    """Prints what was asked for."""
    if len(sys.argv) > 1:
        print_measured(Path(sys.argv[1]))
    else:
        print_published()


if __name__ == "__main__":
    sys.exit(main())
