"""The page of findings for a terminal and for findings.txt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ftcore.spec.errors import visible
from ftcore.spec.recorded import local_time
from launcher.findings.finding import ENDED, NOTE, SLOW, WRONG, Finding, Findings, ItemChange, Knob
from launcher.memory.fit import gib

_HEADS = {ENDED: "it ended the run", WRONG: "it goes wrong", SLOW: "it costs time", NOTE: "worth knowing"}
_COUNTS = {ENDED: "ended the run", WRONG: "went wrong", SLOW: "cost time", NOTE: "to know"}


def render(found: Findings) -> str:
    """The whole page, with a final newline."""
    return visible("\n".join(_lines(found))) + "\n"


def _lines(found: Findings) -> Iterator[str]:
    progress = f", update {found.update}" + (f" of {found.total_updates}" if found.total_updates else "") if found.update else ""
    attempt = f", attempt {found.attempt}" if found.attempt else ""
    yield f"{found.run}: {found.state}{progress}{attempt}"
    if not found.findings:
        word = "no launch has begun" if found.state == "new" else "nothing stands out: the run is healthy, by what it recorded"
        yield word
    else:
        grave = [each for each in found.findings if each.severity != NOTE]
        counts = [(name, sum(each.severity == name for each in found.findings)) for name in _COUNTS]
        healthy = "" if grave else "healthy, by what it recorded; "
        told = ", ".join(f"{count} {_COUNTS[name]}" for name, count in counts if count)
        yield f"{healthy}{len(found.findings)} finding{'s' if len(found.findings) > 1 else ''}: {told}"
    for number, finding in enumerate(found.findings, start=1):
        yield ""
        yield from _finding(number, finding)
    yield ""
    yield "looked at"
    yield from (f"  {line}" for line in found.looked_at or ("nothing: the run has recorded nothing yet",))
    if found.missing:
        yield "not looked at"
        yield from (f"  {line}" for line in found.missing)


def _finding(number: int, finding: Finding) -> Iterator[str]:
    yield f"{number}. {finding.kind.replace('_', ' ').upper()}: {finding.what}"
    facts = [_HEADS[finding.severity]]
    facts += (
        [f"rank {finding.rank}" + (f" on {finding.host}" if finding.host else "")]
        if finding.rank is not None
        else [f"host {finding.host}"]
        if finding.host
        else []
    )
    facts += [f"update {finding.update}"] if finding.update else []
    facts += [f"phase {finding.phase}"] if finding.phase else []
    facts += [when] if (when := local_time(finding.time or 0.0)) else []
    yield f"   {', '.join(facts)}"
    yield from (f"   {line}" for line in finding.details)
    yield from _block("why", finding.causes)
    yield from _block("evidence", [f"{each.what}" + (f"   [{each.file}]" if each.file else "") for each in finding.evidence])
    yield from _items(finding.items)
    yield from _block("what helps, cheapest first", [_knob(each) for each in finding.knobs])
    yield from _block("go on", finding.go_on)


def _block(head: str, lines: Iterable[str]) -> Iterator[str]:
    lines = list(lines)
    if lines:
        yield f"   {head}"
        yield from (f"     {line}" for line in lines)


def _items(items: tuple[ItemChange, ...]) -> Iterator[str]:
    if not items:
        return
    width = max(len(each.name) for each in items)
    yield f"   {'the ledger of a rank':<{width + 2}}  {'planned':>10}  {'usual':>10}  {'here':>10}  {'grew':>10}"
    for each in items:
        grew = f"+{gib(each.grew_bytes)}" if each.grew_bytes > 0 else ""
        yield f"     {each.name:<{width}}  {gib(each.predicted_bytes):>10}  {_size(each.usual_bytes):>10}  {_size(each.here_bytes):>10}  {grew:>10}"


def _size(size: int | None) -> str:
    return "-" if size is None else gib(size)


def _knob(knob: Knob) -> str:
    enough = {True: "; enough by itself", False: "; not enough by itself", None: ""}[knob.is_enough]
    where = "" if knob.may_resume else " [new run]"
    return f"{knob.options}{where}: {knob.gives}{'; ' + knob.costs if knob.costs else ''}{enough}"
