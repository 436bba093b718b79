"""The Python that loads an export, for its model card."""

from __future__ import annotations

import json

from ftcore.data.prepared import ModelSource
from ftcore.spec.sections import MethodSection, Spec


def loading_code(spec: Spec, base: ModelSource, form: str, folders: tuple[str, ...]) -> list[str]:
    """Lines that load the export in the working directory as it was trained, as `model` and `tokenizer`.

    `form` is adapter, merged or hf; `folders` are the adapters that lie in a folder of their name each.
    """
    trust = ", trust_remote_code=True" if base.trust_remote_code else ""
    options = f'dtype="{spec.model.dtype}"{trust}'
    first, *others = folders or (".",)
    tokenizer = f"tokenizer = AutoTokenizer.from_pretrained({json.dumps(first)}{trust})"
    if form != "adapter":
        return ["from transformers import AutoModelForCausalLM, AutoTokenizer", "", f'model = AutoModelForCausalLM.from_pretrained(".", {options})', tokenizer]
    where = f"{json.dumps(base.name)}, revision={json.dumps(base.revision)}" if base.revision else json.dumps(base.path)
    if spec.method.type == "qlora":
        imports = ["import torch", "from peft import PeftModel", "from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig"]
        bits = [f"bits = {_bits(spec.method, spec.method.compute_dtype or str(spec.model.dtype))}  # as it was trained; without it the base is loaded whole"]
        options += ", quantization_config=bits"
    else:
        imports, bits = ["from peft import PeftModel", "from transformers import AutoModelForCausalLM, AutoTokenizer"], []
    named = f", adapter_name={json.dumps(first)}" if folders else ""
    return [
        *imports,
        "",
        *bits,
        f"base = AutoModelForCausalLM.from_pretrained({where}, {options})",
        f"model = PeftModel.from_pretrained(base, {json.dumps(first)}{named})",
        *(f"model.load_adapter({json.dumps(name)}, adapter_name={json.dumps(name)})" for name in others),
        tokenizer,
    ]


def _bits(method: MethodSection, dtype: str) -> str:
    if method.bits == 8:
        return "BitsAndBytesConfig(load_in_8bit=True)"
    options = f'bnb_4bit_quant_type="{method.quant_type}", bnb_4bit_use_double_quant={method.double_quant}, bnb_4bit_compute_dtype=torch.{dtype}'
    return f"BitsAndBytesConfig(load_in_4bit=True, {options})"
