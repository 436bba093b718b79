"""Models whose packed samples see each other: refused packed, trained right padded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ftcore import dist
from ftcore.data.prepared import ModelSource
from ftcore.run import build_engine
from ftcore.spec.errors import SpecError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import Spec
from ftcore.train.isolation import require_isolated_samples
from ftcore.train.schedule import learning_rate_factor
from tests.ranks.jobs import make_job, make_run, train_runs
from tests.ranks.pool import RankPool
from tests.ranks.reference import train_reference
from tests.ranks.small_model import VOCABULARY
from tests.ranks.specs import make_spec, with_section

UPDATES = 6


@pytest.fixture(scope="module", params=["bloom", "mamba"])
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    """A model with position biases of its own attention, or with a convolution and a state that run on over the row."""
    from transformers import BloomConfig, BloomForCausalLM, MambaConfig, MambaForCausalLM

    torch.manual_seed(2)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32}
    if request.param == "bloom":
        model: torch.nn.Module = BloomForCausalLM(BloomConfig(n_layer=2, n_head=4, hidden_dropout=0.0, attention_dropout=0.0, **sizes))
    else:
        model = MambaForCausalLM(MambaConfig(num_hidden_layers=2, state_size=4, **sizes))
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)  # type: ignore[operator]
    return ModelSource(path=str(folder), revision="main", digest=request.param, name=request.param, trust_remote_code=False)


def probe(rank: int, world_size: int, folder: str, spec: Spec, source: ModelSource, samples: str) -> str:
    ranks = dist.start()
    run_dir = make_run(Path(folder), spec, world_size) if rank == 0 else RunDir(Path(folder))
    engine = build_engine(make_job(run_dir, spec, source, samples), ranks)
    try:
        require_isolated_samples(engine, spec.batch.layout)
    except SpecError as error:
        return str(error)
    return ""


def test_packed_rows_are_refused_with_the_way_out(other: ModelSource, small: tuple[ModelSource, str], pool: RankPool, tmp_path: Path) -> None:
    [packed] = pool.run(probe, 1, str(tmp_path / "packed"), make_spec(2), other, small[1], logs=tmp_path / "logs")
    assert "lets samples of one micro-step see each other" in packed and "use batch.layout: padded" in packed
    [padded] = pool.run(probe, 1, str(tmp_path / "padded"), with_section(make_spec(2), "batch", layout="padded"), other, small[1], logs=tmp_path / "logs")
    assert padded == ""


def test_padded_rows_train_as_a_plain_loop_does(other: ModelSource, small: tuple[ModelSource, str], pool: RankPool, tmp_path: Path) -> None:
    """Two ranks with padding in nearly every micro-step against one sample at a time."""
    spec = with_section(make_spec(2, updates=UPDATES), "batch", layout="padded")
    trained = pool.run(train_runs, 2, [(str(tmp_path / "run"), spec)], other, small[1], logs=tmp_path / "logs")[0][0]
    job = make_job(RunDir(tmp_path / "run"), spec, other, small[1])
    windows = [job.sequence.window(update).sample_ids.tolist() for update in range(UPDATES)]
    rates = [spec.optimizer.learning_rate * learning_rate_factor(spec.schedule, update, UPDATES) for update in range(UPDATES)]
    right = train_reference(other.path, job.train, windows, rates, spec.optimizer, torch.float32)
    assert trained.losses == pytest.approx(right.losses, rel=1e-5)
    assert trained.norms == pytest.approx(right.norms, rel=1e-4)
