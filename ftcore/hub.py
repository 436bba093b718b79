"""Models of the Hugging Face hub, downloaded once into its own cache."""

from __future__ import annotations

from pathlib import Path

from ftcore.spec.errors import SpecError
from ftcore.spec.events import emit

WHERE = "model.model_name_or_path"
FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.tiktoken", "vocab.txt", "merges.txt"]
IGNORED = ["*/*", "consolidated*"]
"""Folders hold other formats; `consolidated` is a second copy of the weights."""


def download(name: str, revision: str, *, with_code: bool) -> tuple[Path, str]:
    """(folder, commit) of a hub model. What is there already is not downloaded again; without network the cache is used.

    Raises SpecError when there is no such model or revision, it is not public, or neither network nor cache have it.
    """
    from huggingface_hub import errors

    emit("progress", stage="prepare", done=0, total=0, text=f"fetching {name}")
    patterns = [*FILES, "*.py"] if with_code else FILES
    try:
        folder = _snapshot(name, revision, patterns)
        if not list(folder.glob("*.safetensors")):
            folder = _snapshot(name, revision, [*patterns, "*.bin"])
    except errors.HFValidationError as error:
        raise SpecError(f"{name!r} is neither a folder nor a hub id", where=WHERE, fix="check the path; a hub id reads OWNER/NAME") from error
    except errors.GatedRepoError as error:
        raise SpecError(
            f"the model {name} asks for a licence to be accepted", where=WHERE, fix=f"accept it at https://huggingface.co/{name} and set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise SpecError(f"the model {name} has no revision {revision!r}", where="model.revision", fix="use a branch, tag or commit of the model") from error
    except errors.RepositoryNotFoundError as error:
        raise SpecError(f"the hub has no model {name}, or it is private", where=WHERE, fix="check the name; set HF_TOKEN for a private model") from error
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SpecError(
            f"no folder {name}, and the hub model of that name could not be fetched: {reason}",
            where=WHERE,
            fix="check the name and the network, or name a local folder",
        ) from error
    return folder, folder.name


def _snapshot(name: str, revision: str, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, revision=revision, allow_patterns=patterns, ignore_patterns=IGNORED))
