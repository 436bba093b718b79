"""The parts that models are made of, as parameters: linear layers, norms, attention, MLPs and experts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from launcher.memory.shape import Tensor


def linear(name: str, out: int, inner: int, kind: str, *, bias: bool = False) -> list[Tensor]:
    """A torch.nn.Linear called `name`."""
    weight = Tensor(name=f"{name}.weight", shape=(out, inner), kind=kind, module="linear")
    return [weight, Tensor(name=f"{name}.bias", shape=(out,), kind="bias", module="linear")] if bias else [weight]


def conv1d(name: str, out: int, inner: int, kind: str) -> list[Tensor]:
    """A Conv1D of GPT-2: a linear layer with bias, its weight the other way round."""
    weight = Tensor(name=f"{name}.weight", shape=(inner, out), kind=kind, module="conv1d")
    return [weight, Tensor(name=f"{name}.bias", shape=(out,), kind="bias", module="conv1d")]


def embedding(name: str, rows: int, width: int) -> Tensor:
    """A torch.nn.Embedding called `name`."""
    return Tensor(name=f"{name}.weight", shape=(rows, width), kind="embedding", module="embedding")


def norm(name: str, width: int, kind: str) -> list[Tensor]:
    """A norm over `width` numbers: rms, layer (with bias) or bare (without parameters)."""
    weight = Tensor(name=f"{name}.weight", shape=(width,), kind="norm", module="norm")
    return {"rms": [weight], "layer": [weight, replace(weight, name=f"{name}.bias")], "bare": []}[kind]


def in_layers(tensors: list[Tensor], layers: tuple[int, ...]) -> list[Tensor]:
    """The same parameters in each of `layers`; none where that is empty."""
    return [replace(tensor, layers=layers) for tensor in tensors] if layers else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """What attention is made of; matrices of separate query, key and value, or one of all (`fused`)."""

    prefix: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    bias: bool
    output: str
    output_bias: bool
    qk_norm: str
    """Kind of the norms of queries and keys: empty, head, whole or layer."""
    fused: bool

    def tensors(self) -> list[Tensor]:
        """Its parameters in the order of transformers' classes."""
        wide, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
        out = linear(f"{self.prefix}.{self.output}", self.hidden, wide, "attention", bias=self.output_bias)
        if self.fused:
            return [*out, *linear(f"{self.prefix}.qkv_proj", wide + 2 * narrow, self.hidden, "attention", bias=self.bias)]
        inputs = [
            tensor
            for name, rows in (("q_proj", wide), ("k_proj", narrow), ("v_proj", narrow))
            for tensor in linear(f"{self.prefix}.{name}", rows, self.hidden, "attention", bias=self.bias)
        ]
        return [*inputs, *out, *self._norms(wide, narrow)]

    def _norms(self, wide: int, narrow: int) -> list[Tensor]:
        if not self.qk_norm:
            return []
        if self.qk_norm == "layer":
            each = self.hidden // self.heads
            return [*norm(f"{self.prefix}.q_layernorm", each, "layer"), *norm(f"{self.prefix}.k_layernorm", each, "layer")]
        widths = (wide, narrow) if self.qk_norm == "whole" else (self.head_dim, self.head_dim)
        return [*norm(f"{self.prefix}.q_norm", widths[0], "rms"), *norm(f"{self.prefix}.k_norm", widths[1], "rms")]


def mlp(prefix: str, names: tuple[str, ...], hidden: int, width: int, *, bias: bool) -> list[Tensor]:
    """A dense MLP: the last of `names` leads back to `hidden`, the others to `width`; `gate_up_proj` is two matrices in one."""
    *inward, outward = names
    found = [tensor for name in inward for tensor in linear(f"{prefix}.{name}", width * (2 if name == "gate_up_proj" else 1), hidden, "mlp", bias=bias)]
    return [*found, *linear(f"{prefix}.{outward}", hidden, width, "mlp", bias=bias)]


def experts(prefix: str, hidden: int, count: int, width: int, shared: int) -> list[Tensor]:
    """A router and its experts, all experts of a layer in two parameters, as transformers 5 holds them; and one that all tokens pass, `shared` wide."""
    found = [
        Tensor(name=f"{prefix}.gate.weight", shape=(count, hidden), kind="router", module="router"),
        Tensor(name=f"{prefix}.experts.gate_up_proj", shape=(count, 2 * width, hidden), kind="expert", module="experts"),
        Tensor(name=f"{prefix}.experts.down_proj", shape=(count, hidden, width), kind="expert", module="experts"),
    ]
    if shared:
        found += mlp(f"{prefix}.shared_expert", ("gate_proj", "up_proj", "down_proj"), hidden, shared, bias=False)
        found += linear(f"{prefix}.shared_expert_gate", 1, hidden, "mlp")
    return found


def head(name: str, vocab: int, hidden: int, *, tied: bool, bias: bool = False) -> list[Tensor]:
    """The head; tied to the embedding only its bias is its own."""
    weight = Tensor(name=f"{name}.weight", shape=(vocab, hidden), kind="head", module="linear")
    own = [] if tied else [weight]
    return [*own, Tensor(name=f"{name}.bias", shape=(vocab,), kind="bias", module="linear")] if bias else own
