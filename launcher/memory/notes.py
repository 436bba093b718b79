"""What a table of sizes does not say by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcher.memory.shape import known_families

if TYPE_CHECKING:
    from launcher.memory.plan import Plan


def plan_notes(plan: Plan) -> Iterator[str]:
    """Sentences on what was assumed, and on what people expect otherwise."""
    spec, ledger = plan.resolved.spec, plan.ledger
    yield f"counted is the largest micro-step that the spec allows: {spec.batch.micro_batch_tokens:,} tokens, each of them supervised"
    exact = plan.exact
    if exact is not None and exact.traced is not None:
        yield "activations, logits and the worst of the backward pass were traced (--exact); --recommend counts other settings by formulas"
    elif exact is not None and exact.untraced:
        yield f"activations are counted by formulas: the micro-step could not be traced: {exact.untraced}"
    if plan.shape.family not in known_families() and (exact is None or exact.traced is None):
        yield f"activations of {plan.shape.family} are counted by its matrices, as those of Llama are; what it really saves was not looked at"
    if spec.method.type != "full":
        kept = ledger.group_bytes("activations")
        yield (
            f"{spec.method.type} saves gradients and optimizer state, hardly any activations ({kept / 2**30:.2f} GiB here): gradients flow through the frozen "
            "layers too; batch.micro_batch_tokens and train.gradient_checkpointing make them smaller"
        )
    if spec.method.type == "qlora" and spec.method.use_dora and spec.method.lora_dropout:
        yield "DoRA with dropout saves each adapted matrix unpacked for the backward pass, as large as without quantisation; method.lora_dropout: 0 spares that"
    if spec.method.type == "qlora" and spec.zero.stage == 3:
        yield "every rank loads and quantises the whole base before stage 3 shards it: the peak of loading is that of one accelerator alone"
    if spec.method.type == "qlora" and plan.shape.experts:
        yield "experts are parameters of their own, which bitsandbytes does not quantise: they are held as they are"
    if spec.zero.stage < 3 and spec.method.type != "qlora":
        most = max(host.slots for host in plan.resolved.hosts)
        if most > 1:
            yield f"every rank reads the whole model, so that a host of {most} ranks holds it {most} times for a moment; stage 3 reads it once"
