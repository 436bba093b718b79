"""Other tools' values for the keys of a spec, and what a user of them should write here."""

from __future__ import annotations

_ADAMW, _EIGHT = "adamw", "adamw_8bit"
_NO_PAGING = "adamw_8bit (its state is not paged; zero.offload_optimizer: cpu, with adamw, keeps optimizer state in host memory)"
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}
_OFFLOAD = {"true": "cpu", "false": "none"}
_FORMATS = {
    **dict.fromkeys(("openai", "chat", "chat_template", "chatml", "conversational"), "messages"),
    **dict.fromkeys(("vicuna", "conversations"), "sharegpt"),
    **dict.fromkeys(("instruction", "instruct"), "alpaca"),
    **dict.fromkeys(("prompt-completion", "input_output", "qa"), "prompt_completion"),
    **dict.fromkeys(("completion", "pretrain", "pretraining", "plain", "raw"), "text"),
    **dict.fromkeys(("pretokenized", "pretokenised", "tokenised", "input_ids"), "tokenized"),
}
VALUE_ALIASES: dict[str, dict[str, str]] = {
    "optimizer.type": {
        **dict.fromkeys(("adam", "adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "fusedadam", "deepspeedcpuadam"), _ADAMW),
        "adamw_torch_8bit": _EIGHT,
        "adamw_bnb_8bit": _EIGHT,
        "bnb_adamw_8bit": _EIGHT,
        "adam8bit": _EIGHT,
        "adamw8bit": _EIGHT,
        "paged_adamw_8bit": _NO_PAGING,
        "paged_adamw_32bit": "adamw (with zero.offload_optimizer: cpu its state is kept in host memory)",
        "paged_adamw": "adamw (with zero.offload_optimizer: cpu its state is kept in host memory)",
    },
    "schedule.lr_scheduler_type": {
        "wsd": "warmup_stable_decay",
        "cosine_with_min_lr": "cosine (with schedule.min_lr_ratio)",
        "cosine_warmup_with_min_lr": "cosine (with schedule.min_lr_ratio)",
        "cosine_with_warmup": "cosine (with schedule.warmup_ratio or schedule.warmup_steps)",
        "linear_with_warmup": "linear (with schedule.warmup_ratio or schedule.warmup_steps)",
        "polynomial": "linear (a polynomial of power 1; with schedule.min_lr_ratio)",
    },
    "train.precision": {
        **dict.fromkeys(("bfloat16", "bf16-mixed", "16-bf16"), "bf16"),
        **dict.fromkeys(("float16", "half", "16"), "fp16"),
        **dict.fromkeys(("float32", "float", "32", "no"), "fp32"),
    },
    **dict.fromkeys(("model.dtype", "method.compute_dtype", "method.storage_dtype"), _DTYPES),
    "method.type": {
        "sft": "full (all parameters), or lora or qlora",
        "freeze": "full (with optimizer.parameter_groups: freeze)",
        "dora": "lora (with method.use_dora: true)",
        "rslora": "lora (with method.use_rslora: true)",
    },
    "model.attn_implementation": {"fa2": "flash_attention_2", "flash_attn": "flash_attention_2", "auto": "sdpa", "eager": "sdpa"},
    **dict.fromkeys(("zero.offload_optimizer", "zero.offload_param"), _OFFLOAD),
    **dict.fromkeys(("data.train.format", "data.eval.format"), _FORMATS),
    "data.overlong": {
        **dict.fromkeys(("truncate", "truncation", "right", "keep_start"), "truncate_right"),
        **dict.fromkeys(("left", "keep_end"), "truncate_left"),
    },
    "data.loss_on": {**dict.fromkeys(("answers", "answer", "default"), "assistant"), **dict.fromkeys(("last", "last_turn", "last_round"), "last_assistant")},
}
"""Key -> another tool's value of it (in lower case) -> the value here, and after a blank a note."""
