"""Write the trained model in Hugging Face's format: `python -m ftcore.export RUN --to DIR [--format auto|adapter|merged|hf]`."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch
from peft import PeftModel
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from ftcore.checkpoint.find import Found
from ftcore.checkpoint.read import StateReader
from ftcore.data.prepared import Prepared, load_prepared
from ftcore.export_choice import BEST, NEWEST, choose_checkpoint
from ftcore.model.build import attach_method
from ftcore.model.load import DTYPES, load_base
from ftcore.process import run_main
from ftcore.spec.errors import CheckpointError, SpecError
from ftcore.spec.events import emit
from ftcore.spec.resolved import ResolvedSpec, load_resolved
from ftcore.spec.run_dir import RunDir

RECORD = "ftlaunch_export.json"
"""Marks a folder as an export, says which files it is made of, and how well it loaded back."""
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.1}
"""Largest difference of a logit between the model in memory and its files read back; merging an adapter rounds once more."""


def main(run_dir: RunDir, to: Path, form: str, which: str = NEWEST) -> None:
    """Exports the checkpoint of `run_dir` that `which` names (see `choose_checkpoint`) to `to`, and checks it by loading it back.

    Raises CheckpointError when there is no checkpoint or the files read back give other logits, SpecError
    when the form does not fit the run's method.
    """
    resolved, prepared = load_resolved(run_dir.resolved), load_prepared(run_dir.prepared)
    form = choose_form(form, resolved.spec.method.type)
    require_replaceable(to, named=to)
    found = choose_checkpoint(run_dir, which)
    emit("progress", stage="export", done=0, total=1, text=f"exporting {found.path.name} to {to}")
    model = trained_model(resolved, prepared, found)
    with folder_aside(to) as aside:
        new = aside / "new"
        with disk_errors(to):
            save(model, new, form, prepared)
        gap = verify(model, new, form, prepared, resolved)
        with disk_errors(to):
            write_record(new, {"form": form, "largest_logit_difference": gap, "base": prepared.model.name})
            replace(new, to, aside / "old")
    emit("exported", path=str(to), form=form, update=found.manifest.update)


@contextmanager
def folder_aside(to: Path) -> Iterator[Path]:
    """A fresh folder beside `to`, gone at the end whatever happens: no name that a user's folder could have is taken."""
    # Named before it is made, so that a signal right after the making finds it named. 64 random bits: no one else's.
    aside = to.parent / f".{to.name}.{secrets.token_hex(8)}"
    try:
        with disk_errors(to):
            to.parent.mkdir(parents=True, exist_ok=True)
            aside.mkdir()
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def disk_errors(to: Path) -> Iterator[None]:
    """Raises CheckpointError for whatever the operating system refuses inside: a full disk, a limit, a missing permission."""
    try:
        yield
    except Exception as error:
        # tokenizers raises a bare Exception that only its text tells from others.
        if not isinstance(error, (OSError, SafetensorError)) and "(os error" not in str(error):
            raise
        raise CheckpointError(f"can't write the export: {error}", where=str(to), fix="make room there, or name another place with --to") from error


def write_record(folder: Path, record: dict[str, object]) -> None:
    """Writes the record of an export, with the names of all files in `folder`."""
    (folder / RECORD).write_text(json.dumps({**record, "files": files_in(folder)}, indent=1) + "\n")


def files_in(folder: Path) -> list[str]:
    """Every file and link below `folder` but the record, by its path relative to it."""
    paths = sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return [name for path in paths if (name := path.relative_to(folder).as_posix()) != RECORD]


def replace(new: Path, to: Path, old: Path) -> None:
    """Puts `new` in the place of `to`, whose earlier export moves to `old`; puts that back when anything goes wrong.

    Raises SpecError when a file of the user's has come to `to` meanwhile. It looks after the move, when no one
    can still add a file by its path.
    """
    try:
        if os.path.lexists(to):
            os.rename(to, old)
            require_replaceable(old, named=to)
        os.rename(new, to)
    except BaseException:
        if os.path.lexists(old) and not os.path.lexists(to):
            os.rename(old, to)
        raise


def require_replaceable(folder: Path, *, named: Path) -> None:
    """Raises SpecError when `folder` holds anything but the files of an earlier export: nothing of the user's is overwritten.

    `named` is what the user calls it.
    """
    if not os.path.lexists(folder):
        return
    if not folder.is_dir() or folder.is_symlink():
        raise SpecError(f"{named} exists and is not an export of ftlaunch", where="--to", fix="name a new or empty folder")
    found = files_in(folder)
    written = _written_files(folder)
    if written is None and (found or (folder / RECORD).exists()):
        raise SpecError(f"{named} exists and is not an export of ftlaunch", where="--to", fix="name a new or empty folder")
    others = [name for name in found if name not in (written or ())]
    if others:
        raise SpecError(
            f"{named} is an export, and holds files that ftlaunch did not write: {', '.join(others[:5])}{', ...' if len(others) > 5 else ''}",
            where="--to",
            fix="move them away, or name a new or empty folder",
        )


def _written_files(folder: Path) -> list[str] | None:
    """The files that the record in `folder` lists; None without a record that can be read."""
    try:
        return [str(name) for name in json.loads((folder / RECORD).read_text(encoding="utf-8"))["files"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def choose_form(form: str, method: str) -> str:
    """adapter for lora and hf for full when `form` is auto. Raises SpecError when it can't be had."""
    if form == "auto":
        return "adapter" if method == "lora" else "hf"
    possible = {"lora": ("adapter", "merged", "hf"), "full": ("hf",)}[method]
    if form not in possible:
        raise SpecError(f"a run with method {method} has no {form} form", where="--format", fix=f"use {' or '.join(possible)}")
    return "merged" if form == "hf" and method == "lora" else form


def trained_model(resolved: ResolvedSpec, prepared: Prepared, found: Found) -> torch.nn.Module:
    """The base model with the checkpoint's parameters in place, on the CPU, in evaluation mode. Raises CheckpointError for another base."""
    if found.manifest.base["digest"] != prepared.model.digest:
        raise CheckpointError("the base model has changed since the checkpoint was written", where=prepared.model.path, fix="put it back as it was")
    model = attach_method(load_base(resolved.spec.model, prepared.model), resolved.spec.method, resolved.spec.train)
    reader = StateReader.open(found.path, found.manifest)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name in found.manifest.parameters:
            parameters[name].copy_(reader.parameter(name))
    return model.eval()


def save(model: torch.nn.Module, folder: Path, form: str, prepared: Prepared) -> None:
    """Writes safetensors, config and tokenizer (with its chat template) to `folder`."""
    target = model
    if form == "merged":
        # Merged out of place: the model in memory stays as it is, to be compared with.
        import copy

        target = copy.deepcopy(model).merge_and_unload()
    if isinstance(target, PreTrainedModel):
        target.config._attn_implementation = "sdpa"
        target.config.use_cache = True
    elif form == "adapter":
        target.peft_config["default"].base_model_name_or_path = prepared.model.path
    target.save_pretrained(folder)
    AutoTokenizer.from_pretrained(prepared.model.path, trust_remote_code=prepared.model.trust_remote_code).save_pretrained(folder)


def verify(model: torch.nn.Module, folder: Path, form: str, prepared: Prepared, resolved: ResolvedSpec) -> float:
    """Loads `folder` back and returns the largest difference of a logit on a short row. Raises CheckpointError when they differ or a tensor is empty."""
    dtype = DTYPES[str(resolved.spec.model.dtype)]
    if form == "adapter":
        base = AutoModelForCausalLM.from_pretrained(prepared.model.path, dtype=dtype, trust_remote_code=prepared.model.trust_remote_code)
        loaded: torch.nn.Module = PeftModel.from_pretrained(base, folder)
    else:
        loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, trust_remote_code=prepared.model.trust_remote_code)
    empty = [name for name, parameter in loaded.named_parameters() if parameter.numel() == 0]
    ids = torch.arange(3, 35).unsqueeze(0) % model.config.vocab_size
    with torch.no_grad():
        gap = float((loaded.eval()(ids).logits.float() - model(ids, use_cache=False).logits.float()).abs().max())
    if empty or not gap <= TOLERANCES[dtype]:
        raise CheckpointError(
            f"the export does not load back as it was: largest logit difference {gap:.3g}, {len(empty)} empty tensors",
            where=str(folder),
            fix="keep the run folder and report it",
        )
    return gap


class Ended(BaseException):
    """A signal asked the process to end."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def cleaning_up(work: Callable[[], None]) -> None:
    """Runs `work`; a signal that would end the process at once first unwinds it, so that nothing is left aside.

    The process then dies of that very signal: its status is what it would have been.
    """
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _unwind)
    try:
        work()
    except Ended as ended:
        signal.signal(ended.signum, signal.SIG_DFL)
        os.kill(os.getpid(), ended.signum)


def _unwind(signum: int, frame: FrameType | None) -> None:
    # A second signal would cut the clean-up short.
    for other in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise Ended(signum)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ftcore.export")
    parser.add_argument("run", type=Path)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--format", default="auto", choices=("auto", "adapter", "merged", "hf"))
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--best", dest="which", action="store_const", const=BEST, default=NEWEST)
    chosen.add_argument("--update", dest="which")
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    run_main(lambda run_dir: cleaning_up(lambda: main(run_dir, given.to.resolve(), given.format, given.which)), RunDir(given.run.resolve()))
