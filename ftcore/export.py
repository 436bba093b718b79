"""Write the trained model in Hugging Face's format: `python -m ftcore.export RUN --to DIR [--format auto|adapter|merged|hf] [--adapter NAME]`."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from transformers import PreTrainedModel

from ftcore.data.prepared import Prepared, load_prepared
from ftcore.export_card import Card, record_of, render_card
from ftcore.export_choice import BEST, NEWEST, choose_checkpoint
from ftcore.export_folder import disk_errors, folder_aside, replace, require_replaceable, write_record
from ftcore.export_forms import ADAPTER, MERGED, Trained, choose_adapters, choose_form, merge, name_base, save_adapter, save_whole, trained_model
from ftcore.export_verify import Fidelity, logits_of, verify_adapter, verify_whole, vocabulary_of
from ftcore.model.adapters import activate
from ftcore.process import run_main
from ftcore.spec.events import emit
from ftcore.spec.resolved import ResolvedSpec, load_resolved
from ftcore.spec.run_dir import RunDir

CARD = "README.md"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What would end the process at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A folder that from_pretrained reads, as it was written."""

    folder: Path
    adapters: tuple[str, ...]
    """Names of the adapters in it; () for a full model."""
    vocab_size: int
    fidelity: Fidelity


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What is exported."""

    run_dir: RunDir
    resolved: ResolvedSpec
    prepared: Prepared
    trained: Trained
    form: str


def main(run_dir: RunDir, to: Path, form: str = "auto", which: str = NEWEST, adapter: str = "") -> None:
    """Exports the checkpoint of `run_dir` that `which` names (see `choose_checkpoint`) to `to`, and checks it by loading it back.

    Several adapters go to a folder each, unless `adapter` names one. Raises CheckpointError when there is no checkpoint
    or the files read back give another model, SpecError when the form or the adapter does not fit the run's method.
    """
    resolved, prepared = load_resolved(run_dir.resolved), load_prepared(run_dir.prepared)
    method = resolved.spec.method
    form = choose_form(form, method.type)
    names = choose_adapters(form, method, adapter)
    require_replaceable(to, named=to)
    found = choose_checkpoint(run_dir, which)
    emit("progress", stage="export", done=0, total=1, text=f"exporting {found.path.name} to {to}")
    trained = Trained(spec=resolved.spec, source=prepared.model, chat_template=prepared.chat_template, found=found)
    export = Export(run_dir=run_dir, resolved=resolved, prepared=prepared, trained=trained, form=form)
    with folder_aside(to) as aside:
        new = aside / "new"
        if form == ADAPTER:
            is_one = bool(adapter) or not method.adapters
            parts = write_adapters(export, {name: new if is_one else new / name for name in names}, to)
        else:
            parts = [write_whole(export, names, new, to)]
        with disk_errors(to):
            for part in parts:
                describe(export, part, nested=False)
            if parts[0].folder != new:
                describe(export, _together(parts, new), nested=True)
            replace(new, to, aside / "old")
    emit("exported", path=str(to), form=form, update=found.manifest.update)


def write_adapters(export: Export, folders: dict[str, Path], to: Path) -> list[Part]:
    """Writes each adapter of the run by its name to its folder, and reads it back. `to` is what the user calls the place."""
    trained = export.trained
    model = trained_model(trained)
    parts = []
    for name, folder in folders.items():
        activate(model, name)
        expected = logits_of(model)
        with disk_errors(to):
            folder.parent.mkdir(exist_ok=True)
            save_adapter(model, name, folder, trained)
        fidelity = verify_adapter(trained, model, name, folder, expected)
        parts.append(Part(folder=folder, adapters=(name,), vocab_size=vocabulary_of(model), fidelity=fidelity))
    return parts


def write_whole(export: Export, names: tuple[str, ...], folder: Path, to: Path) -> Part:
    """Writes the full model, or the base with the one adapter in `names` merged into it, and reads it back."""
    trained = export.trained
    model = trained_model(trained)
    for name in names:
        activate(model, name)
    expected = as_trained = logits_of(model)
    if trained.is_quantised:
        model = trained_model(trained, quantised=False)
        for name in names:
            activate(model, name)
        expected = logits_of(model)
    whole: PreTrainedModel = merge(model, names[0]) if export.form == MERGED else model  # type: ignore[assignment]
    with disk_errors(to):
        save_whole(whole, folder, trained)
    fidelity = verify_whole(trained, whole, folder, expected, as_trained)
    return Part(folder=folder, adapters=names, vocab_size=vocabulary_of(whole), fidelity=fidelity)


def _together(parts: list[Part], folder: Path) -> Part:
    """The folder of all adapters' folders: the names, and the worst of them."""
    quantisation = [part.fidelity.quantisation for part in parts if part.fidelity.quantisation is not None]
    fidelity = Fidelity(reload=max(part.fidelity.reload for part in parts), quantisation=max(quantisation, default=None))
    names = tuple(name for part in parts for name in part.adapters)
    return Part(folder=folder, adapters=names, vocab_size=parts[0].vocab_size, fidelity=fidelity)


def describe(export: Export, part: Part, *, nested: bool) -> None:
    """Writes the model card and the record of a folder; what PEFT or transformers wrote as a card goes."""
    card = Card(
        run_dir=export.run_dir,
        resolved=export.resolved,
        prepared=export.prepared,
        found=export.trained.found,
        form=export.form,
        adapters=tuple(name for name in part.adapters if name in export.resolved.spec.method.adapters),
        nested=nested,
        vocab_size=part.vocab_size,
        fidelity=part.fidelity,
    )
    name_base(part.folder, export.prepared.model)
    (part.folder / CARD).write_text(render_card(card), encoding="utf-8")
    write_record(part.folder, record_of(card))


class Ended(BaseException):
    """A signal asked the process to end."""


def cleaning_up(work: Callable[[], None]) -> None:
    """Runs `work`; a signal that would end the process at once first unwinds it, so that nothing is left aside.

    The process then dies of that very signal: its status is what it would have been.
    """
    received: list[int] = []

    def unwind(signum: int, frame: FrameType | None) -> None:
        # A second signal would cut the clean-up short.
        for other in SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        received.append(signum)
        raise Ended

    for signum in SIGNALS:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, unwind)
    try:
        work()
    except BaseException:
        # Not only Ended: a library may have made its own error of it.
        if not received:
            raise
    if received:
        signal.signal(received[0], signal.SIG_DFL)
        os.kill(os.getpid(), received[0])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ftcore.export")
    parser.add_argument("run", type=Path)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--format", default="auto", choices=("auto", "adapter", "merged", "hf"))
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--best", dest="which", action="store_const", const=BEST, default=NEWEST)
    chosen.add_argument("--update", dest="which")
    parser.add_argument("--adapter", default="")
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    run_main(lambda run_dir: cleaning_up(lambda: main(run_dir, given.to.resolve(), given.format, given.which, given.adapter)), RunDir(given.run.resolve()))
