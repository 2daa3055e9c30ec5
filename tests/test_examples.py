"""The examples do what they say."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pappus
from pappus.errors import UserError
from pappus.systems import find_system

EXAMPLES = Path(__file__).parents[1] / "examples"
SHORT: dict[str, Any] = {
    "runtime": "inline", "steps": 400, "envs_per_actor": 4, "unroll_length": 8, "evaluation.episodes": 1,
    "checkpoint.every_seconds": 1000.0,
}


@pytest.fixture(autouse=True)
def _from_the_folder_of_the_examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    for path in EXAMPLES.glob("own_*.py"):
        sys.modules.pop(path.stem, None)


@pytest.mark.parametrize(
    ("system", "env", "settings"),
    [
        ("own_topology:bold", "CartPole-v1", {}),
        ("own_algorithm:my_system", "CartPole-v1", {}),
        ("own_algorithm:a2c@seed", "CartPole-v1", {}),
        ("own_algorithm:a2c@a3c", "CartPole-v1", {"actors": 2}),
        ("impala", "own_env:FindTheLight", {}),
        ("impala", "CartPole-v1", {"network.factory": "own_network:make"}),
    ],
)
def test_an_example_trains(system: str, env: str, settings: dict[str, Any], tmp_path: Path) -> None:
    result = pappus.train(system, env, {**SHORT, **settings, "run_dir": tmp_path / "run"})
    assert result.summary.steps >= SHORT["steps"] and result.summary.updates > 0
    assert pappus.evaluate(result.directory, episodes=1).returns


def test_what_an_example_cannot_be_put_on_says_why() -> None:
    with pytest.raises(UserError, match="my-a2c@impala cannot work: my-a2c needs unrolls of the newest weights"):
        find_system("own_algorithm:a2c@impala")


def test_bold_actors_explore_more_than_careful_ones(tmp_path: Path) -> None:
    """Divided logits have a higher entropy, which the recorded log-probabilities show."""
    from pappus.api import configure, describe
    from pappus.runtimes.wiring import Wiring
    from pappus.transports.memory import HeapBlock

    bold = find_system("own_topology:bold")
    run = describe(configure(bold, "CartPole-v1", {**SHORT, "envs_per_actor": 64}), "CartPole-v1", bold)
    program = bold.topology.build(run)
    blocks = {edge.name: HeapBlock(*edge.memory()) for edge in program.edges.values()}
    wiring = Wiring(program.edges.values(), blocks)
    actors = [wiring.build(spec, 0) for spec in program.roles if spec.name.startswith("actor")]
    weights: Any = wiring.transport("weights")
    weights.publish(_decided(run.weights_size), 0)
    for _ in range(run.config.unroll_length):
        for actor in actors:
            assert actor.step() is None
    queue: Any = wiring.transport("unrolls")
    careful, daring = (float(-ring.slots[0].behaviour["log_prob"].mean()) for ring in queue.rings())
    assert daring > 1.2 * careful


def _decided(size: int) -> Any:
    """Weights of a policy with an opinion."""
    import numpy as np

    return np.random.default_rng(3).normal(0, 0.8, size).astype(np.float32)
