"""Hold a frozen base in 4 or 8 bits through bitsandbytes."""

from __future__ import annotations

import torch
from transformers import BitsAndBytesConfig

from ftcore.spec.errors import FtError
from ftcore.spec.sections import MethodSection


def quantisation(method: MethodSection, dtype: torch.dtype) -> BitsAndBytesConfig:
    """How a qlora method's base is quantised; its 4-bit layers compute in `dtype` unless the method says otherwise. Raises FtError without bitsandbytes."""
    try:
        import bitsandbytes  # noqa: F401  transformers would say less about what to install
    except ImportError as error:
        raise FtError(f"method qlora needs bitsandbytes: {error}", where="method.type", fix="pip install 'ftlaunch[quant]'") from error
    if method.bits == 8:
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=method.quant_type,
        bnb_4bit_use_double_quant=method.double_quant,
        bnb_4bit_compute_dtype=getattr(torch, method.compute_dtype) if method.compute_dtype else dtype,
        # DeepSpeed's casts pass integers by, and floats of the engine's own type; others they would ruin, and validation refuses those.
        bnb_4bit_quant_storage=getattr(torch, method.storage_dtype),
    )


def keep_cpu_weights_in_place(base: torch.nn.Module) -> None:
    """Turns off bitsandbytes' repacking of 4-bit weights in evaluation on CPUs with AVX512-BF16.

    It swaps a weight's storage during a forward; under ZeRO-3 that storage is a gathered copy, and the weight is lost.
    """
    for module in base.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
