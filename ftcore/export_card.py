"""The model card of an export (README.md): what was trained, on what, how well, and how to load it; and the record of it for programs."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from ftcore.batch.cursor import Cursor
from ftcore.checkpoint.find import Found
from ftcore.checkpoint.layout import CURSOR
from ftcore.data.prepared import Prepared, PreparedSet
from ftcore.export_forms import ADAPTER
from ftcore.export_loading import loading_code
from ftcore.export_verify import Fidelity
from ftcore.metrics.writer import kept_lines
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import MethodSection

Losses = dict[int, float]
"""Update (1-based count of updates done) -> loss per supervised token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Everything that a card and a record tell."""

    run_dir: RunDir
    resolved: ResolvedSpec
    prepared: Prepared
    found: Found
    form: str
    """adapter, merged or hf."""
    adapters: tuple[str, ...]
    """Names of the adapters in the folder; () for one without a name, or a full model."""
    nested: bool
    """Each adapter lies in a folder of its name."""
    vocab_size: int
    fidelity: Fidelity


def record_of(card: Card) -> dict[str, object]:
    """What ftlaunch_export.json says beside the files: a warm start and an evaluation check the base by it."""
    manifest, base = card.found.manifest, card.prepared.model
    record: dict[str, object] = {
        "form": card.form,
        "method": card.resolved.spec.method.type,
        "update": manifest.update,
        "metric": manifest.metric,
        "base": base.name,
        "base_revision": base.revision,
        "base_digest": base.digest,
        "vocab_size": card.vocab_size,
        "largest_logit_difference": card.fidelity.reload,
    }
    if card.adapters:
        record["adapters"] = list(card.adapters)
    if card.fidelity.quantisation is not None:
        record["quantisation_logit_difference"] = card.fidelity.quantisation
    return record


def render_card(card: Card) -> str:
    """README.md: YAML front matter as the Hugging Face hub reads it, then Markdown. Raises CheckpointError when the checkpoint's cursor is damaged."""
    base, method = card.prepared.model, card.resolved.spec.method
    name = f" ({', '.join(card.adapters)})" if card.adapters else ""
    sections = [
        _front_matter(card),
        f"# {_KINDS[card.form]} of {base.name}{name}",
        f"Fine-tuned with ftlaunch: {_method(method)}.",
        _table("Base model", _base_rows(card)),
        _data(card),
        _table("Training", _training_rows(card)),
        _losses(card),
        _table("Settings", _settings_rows(card)),
        _loading(card),
        _checked(card),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


_KINDS = {"adapter": "LoRA adapter", "merged": "Fine-tuned model (LoRA merged)", "hf": "Fine-tuned model"}


def _front_matter(card: Card) -> str:
    method = card.resolved.spec.method
    tags = ["ftlaunch", *([] if method.type == "full" else ["lora"]), *(["qlora"] if method.type == "qlora" else []), *(["dora"] if method.use_dora else [])]
    lines = [
        f"base_model: {json.dumps(card.prepared.model.name)}",
        f"base_model_relation: {'adapter' if card.form == ADAPTER else 'finetune'}",
        f"library_name: {'peft' if card.form == ADAPTER else 'transformers'}",
        "pipeline_tag: text-generation",
        *("tags:", *(f"- {tag}" for tag in tags)),
    ]
    return "\n".join(["---", *lines, "---"])


def _method(method: MethodSection) -> str:
    if method.type == "full":
        return "all of its parameters"
    if method.type == "lora":
        return "LoRA on a frozen base"
    kind = f"4 bits, {method.quant_type}{', scales quantised too' if method.double_quant else ''}" if method.bits == 4 else "8 bits"
    return f"LoRA on a frozen base whose linear layers were held in {kind} (QLoRA)"


def _base_rows(card: Card) -> list[tuple[str, object]]:
    base = card.prepared.model
    return [
        ("name", base.name),
        ("revision", base.revision or "a local folder"),
        ("digest (sha256 of weights, configuration and code)", base.digest),
        ("weights held in", card.resolved.spec.model.dtype),
        ("vocabulary", f"{card.vocab_size} entries, as in the base: ftlaunch does not resize embeddings"),
    ]


def _data(card: Card) -> str:
    data = card.resolved.spec.data
    sets = [(name, data.training[name].path, prepared) for name, prepared in card.prepared.train.items()]
    sets += [(name, data.held_out[name].path, prepared) for name, prepared in card.prepared.eval.items()]
    lines = [f"| {name} | {_cell(path)} | {_counts(prepared)} |" for name, path, prepared in sets]
    stream = card.prepared.stream
    lines += [f"| {each.name} (streamed) | {_cell(each.dataset.path)} | - | - | - | - | {each.fingerprint} |" for each in (stream.sets if stream else ())]
    head = "| set | file | rows | rows used | tokens | supervised tokens | fingerprint |\n|---|---|---:|---:|---:|---:|---|"
    return "\n".join(["## Data\n", head, *lines])


def _counts(prepared: PreparedSet) -> str:
    counts = (prepared.rows, prepared.samples, prepared.tokens, prepared.supervised_tokens)
    return " | ".join([*(f"{count:,}" for count in counts), prepared.fingerprint or "-"])


def _training_rows(card: Card) -> list[tuple[str, object]]:
    manifest, spec = card.found.manifest, card.resolved.spec
    cursor = Cursor.from_json((card.found.path / CURSOR).read_text(encoding="utf-8"))
    return [
        ("updates", f"{manifest.update} ({cursor.steps_taken} optimizer steps)"),
        ("samples seen", f"{cursor.samples_seen:,}"),
        ("supervised tokens seen", f"{cursor.supervised_tokens_seen:,} of {cursor.tokens_seen:,} tokens"),
        ("precision", manifest.precision),
        ("optimizer", f"{manifest.optimizer}, learning rate {spec.optimizer.learning_rate:g}, {spec.schedule.lr_scheduler_type} schedule"),
        ("ranks and ZeRO stage, of its last launch", f"{manifest.world_size}, stage {manifest.zero_stage}"),
        ("seed", spec.train.seed),
        ("versions", ", ".join(f"{name} {version}" for name, version in manifest.versions.items())),
    ]


def _losses(card: Card) -> str:
    """First and last loss up to the checkpoint, of training and of each evaluation set."""
    update = card.found.manifest.update
    found = {"training": training_losses(card.run_dir, update, card.adapters)}
    if len(card.resolved.spec.method.adapters) < 2:
        # Of several adapters, events.jsonl does not tell which one was scored.
        found |= evaluation_losses(card.run_dir, update)
    lines = [f"| {name} | {_at(losses, min(losses))} | {_at(losses, max(losses)) if len(losses) > 1 else '-'} |" for name, losses in found.items() if losses]
    return "\n".join(["## Loss per supervised token\n", "| set | first | last |\n|---|---|---|", *lines]) if lines else ""


def _at(losses: Losses, update: int) -> str:
    return f"{losses[update]:.4f} ({f'update {update}' if update else 'before training'})"


def training_losses(run_dir: RunDir, update: int, adapters: tuple[str, ...] = ()) -> Losses:
    """The losses that metrics.jsonl tells up to `update`; of one adapter among several, its own. Empty without the file."""
    losses: Losses = {}
    for line in kept_lines(_text(run_dir.metrics), update):
        record = json.loads(line)
        own = record.get("losses", {}).get(adapters[0]) if len(adapters) == 1 else None
        _put(losses, record["update"], record.get("loss") if own is None else own)
    return losses


def evaluation_losses(run_dir: RunDir, update: int) -> dict[str, Losses]:
    """Set -> its losses that events.jsonl tells up to `update`; of an update that was done twice, the later one."""
    found: dict[str, Losses] = {}
    for line in kept_lines(_text(run_dir.events), update):
        record = json.loads(line)
        if record.get("event") == "evaluation":
            _put(found.setdefault(str(record.get("set")), {}), record["update"], record.get("loss"))
    return found


def _put(losses: Losses, update: int, loss: object) -> None:
    if isinstance(loss, (int, float)) and math.isfinite(loss):
        losses[update] = float(loss)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _settings_rows(card: Card) -> list[tuple[str, object]]:
    spec = card.resolved.spec
    batch, method = spec.batch, spec.method
    size = f"{batch.global_batch_size} samples" if batch.global_batch_size is not None else f"at most {batch.tokens_per_update} tokens"
    rows: list[tuple[str, object]] = [
        ("method", method.type),
        ("an update", size),
        ("longest sample", f"{spec.data.max_length} tokens"),
        ("weight decay", spec.optimizer.weight_decay),
    ]
    if method.type != "full":
        rows += [
            *(
                (f"adapter {name}", f"r {each.r or method.r}, lora_alpha {method.lora_alpha if each.lora_alpha is None else each.lora_alpha:g}")
                for name, each in method.adapters.items()
            ),
            ("r, lora_alpha, lora_dropout", f"{method.r}, {method.lora_alpha:g}, {method.lora_dropout:g}"),
            ("target_modules", ", ".join(method.target_modules)),
            ("modules_to_save", ", ".join(method.modules_to_save) or "none"),
            ("use_rslora, use_dora", f"{method.use_rslora}, {method.use_dora}".lower()),
        ]
    return rows


def _loading(card: Card) -> str:
    code = loading_code(card.resolved.spec, card.prepared.model, card.form, card.adapters if card.nested else ())
    return "\n".join(["## Loading\n", "With this folder as the working directory, or its path in place of the dot:\n", "```python", *code, "```"])


def _checked(card: Card) -> str:
    text = f"## Checked\n\nRead back after it was written: every tensor as it was trained, largest difference of a logit {card.fidelity.reload:.3g}."
    if card.fidelity.quantisation is None:
        return text
    gap = f"On the base as it was, the logits differ from those on the quantised base that it was trained with by at most {card.fidelity.quantisation:.3g}."
    return f"{text}\n{gap}"


def _table(title: str, rows: list[tuple[str, object]]) -> str:
    return "\n".join([f"## {title}\n", "| | |\n|---|---|", *(f"| {name} | {_cell(value)} |" for name, value in rows)])


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
