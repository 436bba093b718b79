"""The Hugging Face hub: models, downloaded once into its own cache; and what its refusals mean, in our words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.errors import FtError, SpecError
from ftcore.spec.events import emit

WHERE = "model.model_name_or_path"
FILES = ["*.json", "*.jinja", "*.model", "*.tiktoken", "vocab.txt", "merges.txt"]
"""Configuration and tokenizer."""
WEIGHTS = "*.safetensors"
IGNORED = ["*/*", "consolidated*"]
"""Folders hold other formats; `consolidated` is a second copy of the weights."""
TEMPLATES = "additional_chat_templates/*.jinja"
"""The one folder that counts: templates beside the default one, as for rows with tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked of the hub, for its refusals."""

    kind: str
    """model or data set."""
    name: str
    """OWNER/NAME."""
    revision: str
    where: str
    """Key of the name in the spec."""
    revision_where: str
    """Key of the revision in the spec."""
    error: type[FtError]
    """What a refusal becomes."""


def download(name: str, revision: str, *, with_code: bool, with_weights: bool = True) -> tuple[Path, str]:
    """(folder, commit) of a hub model; without weights: its configuration and tokenizer alone.

    What is there already is not downloaded again; without network the cache is used.

    Raises SpecError when there is no such model or revision, it is not public, or neither network nor cache have it.
    """
    emit("progress", stage="prepare", done=0, total=0, text=f"fetching {name if with_weights else f'configuration and tokenizer of {name}'}")
    patterns = [*FILES, *(["*.py"] if with_code else [])]
    with fetching(Wanted(kind="model", name=name, revision=revision, where=WHERE, revision_where="model.revision", error=SpecError)):
        folder = _snapshot(name, revision, [*patterns, WEIGHTS] if with_weights else patterns)
        if with_weights and not list(folder.glob(WEIGHTS)):
            folder = _snapshot(name, revision, [*patterns, "*.bin"])
        if (folder / "chat_template.jinja").exists():
            _snapshot(name, revision, [TEMPLATES], ignored=[])
    return folder, folder.name


@contextmanager
def fetching(wanted: Wanted) -> Iterator[None]:
    """Turns what the hub's library raises in the block into `wanted.error`: no such thing or revision, not public, neither network nor cache."""
    from huggingface_hub import errors

    kind, name, where, refusal = wanted.kind, wanted.name, wanted.where, wanted.error
    try:
        yield
    except errors.HFValidationError as error:
        raise refusal(f"{name!r} is neither a folder nor a hub id", where=where, fix="check the path; a hub id reads OWNER/NAME") from error
    except errors.GatedRepoError as error:
        page = f"https://huggingface.co/{'datasets/' if kind == 'data set' else ''}{name}"
        raise refusal(f"the {kind} {name} asks for a licence to be accepted", where=where, fix=f"accept it at {page} and set HF_TOKEN") from error
    except errors.RevisionNotFoundError as error:
        raise refusal(
            f"the {kind} {name} has no revision {wanted.revision!r}", where=wanted.revision_where, fix=f"use a branch, tag or commit of the {kind}"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise refusal(f"the hub has no {kind} {name}, or it is private", where=where, fix="check the name; set HF_TOKEN for a private one") from error
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise refusal(
            f"no folder {name}, and the hub {kind} of that name could not be fetched: {reason}",
            where=where,
            fix="check the name and the network, or name a local folder",
        ) from error


def _snapshot(name: str, revision: str, patterns: list[str], ignored: list[str] = IGNORED) -> Path:
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, revision=revision, allow_patterns=patterns, ignore_patterns=ignored))
