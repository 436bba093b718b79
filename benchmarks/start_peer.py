"""The peer of benchmarks/start.py: fine-tuning with TRL as its documentation writes it, started by `deepspeed`: `start_peer.py FOLDER`.

FOLDER/peer.json names the model's folder, the file of rows, the DeepSpeed configuration and the sizes. When the first update is finished rank 0 makes the
file FOLDER/peer_update, and a moment later writes its loss into FOLDER/peer_update.loss.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback, TrainerControl, TrainerState
from trl import SFTConfig, SFTTrainer


class FirstUpdate(TrainerCallback):  # type: ignore[misc]
    """Says when the first update is finished, and what its loss was."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The weights have just changed for the first time."""
        if state.is_world_process_zero and not self.path.exists():
            self.path.touch()

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: dict[str, float], **_: Any) -> None:
        """The Trainer averages the loss over the ranks only when it logs."""
        if state.is_world_process_zero and "loss" in logs:
            self.path.with_suffix(".loss").write_text(str(logs["loss"]))


def main() -> None:
    """Trains."""
    folder = Path(sys.argv[1])
    given = json.loads((folder / "peer.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(given["model"])
    tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(given["model"], dtype="float32")
    arguments = SFTConfig(
        output_dir=str(folder / "peer"),
        deepspeed=given["ds_config"],
        use_cpu=True,
        bf16=False,
        activation_checkpointing=False,
        per_device_train_batch_size=given["samples"] // given["ranks"],
        max_length=given["max_length"],
        max_steps=given["updates"],
        learning_rate=given["learning_rate"],
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        report_to=[],
    )
    rows = load_dataset("json", data_files=given["rows"], split="train")
    trainer = SFTTrainer(model=model, args=arguments, train_dataset=rows, processing_class=tokenizer, callbacks=[FirstUpdate(folder / "peer_update")])
    trainer.train()


if __name__ == "__main__":
    main()
