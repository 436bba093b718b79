"""A trained parameter that the loss does not reach ends the run by name, before anything has changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ftcore import dist
from ftcore.batch.cursor import Cursor
from ftcore.data.prepared import ModelSource
from ftcore.engine import Engine, join_process_group
from ftcore.model.build import attach_method
from ftcore.model.groups import parameter_groups
from ftcore.model.load import load_base
from ftcore.spec.errors import TrainingError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import Spec
from ftcore.train.loop import Trainer
from tests.ranks.jobs import make_job, make_run, whole_state
from tests.ranks.pool import RankPool
from tests.ranks.specs import make_spec, with_section

Small = tuple[ModelSource, str]
SPECS = {f"full {stage}": make_spec(stage) for stage in (0, 1, 2, 3)} | {
    f"lora {stage}": with_section(make_spec(stage, method="lora", precision="bf16", coalesce=stage > 1), "method", modules_to_save=("spare",))
    for stage in (1, 2, 3)
}


def train_with_a_spare_layer(rank: int, world_size: int, folder: str, specs: dict[str, Spec], source: ModelSource, samples: str) -> dict[str, tuple[str, bool]]:
    """What each run's first update said, and whether every master is as it was."""
    ranks = dist.start()
    join_process_group(ranks)
    outcomes = {}
    for name, spec in specs.items():
        run_dir = RunDir(Path(folder) / name.replace(" ", "_"))
        if ranks.is_first:
            make_run(run_dir.path, spec, world_size)
        dist.barrier()
        base = load_base(spec.model, source)
        base.spare = torch.nn.Linear(4, 3, dtype=base.dtype)  # which nothing calls
        model = attach_method(base, spec.method, spec.train)
        engine = Engine(model, parameter_groups(model, spec), run_dir.ds_config, ranks, coalesce=bool(spec.zero.coalesce_grad_reduction))
        job = make_job(run_dir, spec, source, samples)
        trainer = Trainer(engine, job, Cursor(order_seed=spec.train.seed, data_fingerprint=job.train.fingerprint))
        engine.train()
        before, said = whole_state(engine), ""
        try:
            trainer.train_update(0)
        except TrainingError as error:
            said = str(error)
        after = whole_state(engine)
        outcomes[name] = (said, all(torch.equal(after[key], value) for key, value in before.items()))
        engine.deepspeed.destroy()
    dist.barrier()
    dist.stop()
    return outcomes


@pytest.fixture(scope="module")
def outcomes(pool: RankPool, small: Small, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, tuple[str, bool]]]:
    folder = tmp_path_factory.mktemp("spare")
    found: list[dict[str, tuple[str, bool]]] = pool.run(train_with_a_spare_layer, 2, str(folder), SPECS, *small, logs=folder / "logs")
    return found


@pytest.mark.parametrize("kind", SPECS)
def test_a_layer_that_the_loss_does_not_reach(kind: str, outcomes: list[dict[str, tuple[str, bool]]]) -> None:
    """On every rank, so that none waits for another."""
    for said, untouched in (outcome[kind] for outcome in outcomes):
        assert "the loss does not reach 2 trained parameters" in said and "spare" in said and "nothing was changed" in said
        assert untouched
