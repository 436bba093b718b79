"""bitsandbytes' AdamW with moments in 8 bits for hidden matrices, and in 32 for embeddings, the output head, biases and norms.

Which is which does not depend on the size of a partition, as bitsandbytes' own threshold would. Imported only where it is used.
"""

from __future__ import annotations

from typing import Any

from bitsandbytes.optim import AdamW8bit

from ftcore.coded_moments import value_map


class GroupedAdamW8bit(AdamW8bit):
    """Groups with `is_hidden` have moments of 8 bits, all others of 32."""

    def get_config(self, gindex: int, pindex: int, group: dict[str, Any]) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config(gindex, pindex, group)
        return config | {"optim_bits": 8 if group["is_hidden"] else 32}

    def fill_qmap(self) -> None:
        self.name2qmap |= {"dynamic": value_map("state1"), "udynamic": value_map("state2")}
