"""`predict`: batches in the env's own format, and one sentence for what is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import pappus
from pappus.configured import configured
from pappus.data.no_env import SPEC_FILE
from pappus.errors import UserError
from pappus.networks.flat import FlatParameters
from pappus.policy import TrainedPolicy
from pappus.settings import to_yaml
from pappus.systems import SYSTEMS
from pappus.telemetry.checkpoint import CheckpointStore, save_state
from pappus.types import ACTION_MASK, ArraySpec, DiscreteAction, EnvSpec
from tests.export.cases import dicts, lstm, masks, mlp, squashed

RNG = np.random.default_rng(0)
SPEC = {"observation": {"shape": [3], "dtype": "float32"}, "action": {"discrete": 2}}


def test_a_batch_with_its_memory_is_acted_on_as_one_by_one() -> None:
    policy, seen = lstm(), RNG.uniform(-1, 1, (6, 2, 4))
    memory, batched = None, []
    for t in range(6):
        actions, memory = policy.predict(seen[t], state=memory, reward=np.full(2, t % 2))
        batched.append(actions)
    for env in range(2):
        policy.reset()
        assert [policy.act(seen[t, env], t % 2) for t in range(6)] == [actions[env] for actions in batched]


def test_an_episode_that_begins_forgets_the_one_before() -> None:
    policy, seen = lstm(), RNG.uniform(-1, 1, (2, 3, 4))
    _, memory = policy.predict(seen[0])
    fresh, after_fresh = policy.predict(seen[1])
    again, after_again = policy.predict(seen[1], state=memory, first=[True] * 3, reward=[5.0] * 3)
    assert np.array_equal(fresh, again)
    np.testing.assert_array_equal(after_fresh.network[1][0], after_again.network[1][0])


def test_masked_actions_are_never_taken() -> None:
    policy, mask = masks(), np.tile(np.array([1, 0, 0, 0, 1], np.int8), (50, 1))
    for deterministic in (True, False):
        seen = {"seen": RNG.uniform(-1, 1, (50, 4)), ACTION_MASK: mask}
        actions, _ = policy.predict(seen, deterministic=deterministic)
        assert np.array_equal(actions, np.tile([1 + 0, 1], (50, 1))), "counted from 1 and 0, as the env does"


def test_actions_are_in_the_units_of_the_env() -> None:
    seen = RNG.uniform(-1, 1, (200, 4))
    actions, _ = squashed().predict(seen, deterministic=False)
    assert actions.dtype == np.float32 and (actions >= [-2, 0]).all() and (actions[:, 0] <= 3).all()
    assert set(mlp().predict(seen, deterministic=False)[0]) <= {2, 3, 4}


def test_sampled_actions_follow_the_seed() -> None:
    seen = RNG.uniform(-1, 1, (50, 4))
    one, two = (mlp().predict(seen, deterministic=False)[0] for _ in range(2))
    assert np.array_equal(one, two) and len(set(one)) > 1


GOOD: dict[str, Any] = {
    "picture": np.zeros((2, 6, 6, 2), bool), "where": np.zeros((2, 4)), "kind": np.zeros(2, int),
    "both": (np.zeros((2, 3), np.int8), np.zeros(2)),
}


@pytest.mark.parametrize(
    ("make", "observations", "sentence"),
    [
        (mlp, np.zeros(4), r"shape \[4\], but .* \[N, 4\]; it is a single observation: give observation\[None\]"),
        (mlp, np.zeros((2, 5)), r"observations has shape \[2, 5\], but this policy sees batches \[N, 4\]"),
        (mlp, [[1, 2, 3, "x"]], "has dtype <U"),
        (mlp, {"a": np.zeros((2, 4))}, "observations is a dict, but this policy sees arrays"),
        (dicts, np.zeros((2, 4)), "lacks 'both': this policy was trained on a dict with 'both', 'kind'"),
        (dicts, {**GOOD, "picture": GOOD["picture"] * 0.5}, r"\['picture'\] has dtype float64, but .* bool"),
        (dicts, {**GOOD, "kind": np.zeros(2)}, r"\['kind'\] has dtype float64, but .* int"),
        (dicts, {**GOOD, "where": np.zeros((3, 4))}, "rows; give the same number of rows"),
        (dicts, {**GOOD, "both": (GOOD["both"][0],)}, r"observations\['both'\] lacks 1"),
        (masks, {"seen": np.zeros((2, 4))}, "lacks 'action_mask'"),
        (masks, {"seen": np.zeros((2, 4)), ACTION_MASK: np.ones((2, 3))}, r"\['action_mask'\] has shape \[2, 3\]"),
    ],
)
def test_what_is_no_batch_of_observations_gets_a_sentence(make: Any, observations: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make().predict(observations)


def test_memory_of_others_gets_a_sentence() -> None:
    policy = lstm()
    _, memory = policy.predict(np.zeros((2, 4)))
    with pytest.raises(UserError, match="state is not a recurrent state of 3 episodes"):
        policy.predict(np.zeros((3, 4)), state=memory)
    with pytest.raises(UserError, match="first has shape"):
        policy.predict(np.zeros((3, 4)), first=[True])


def run_of_envs_elsewhere(directory: Path) -> TrainedPolicy:
    """A run directory as `pappus serve` leaves it, whose spec file is gone; and the policy in it."""
    directory.mkdir()
    (directory / SPEC_FILE).write_text(yaml.safe_dump(SPEC))
    config = configured(SYSTEMS["seed-vtrace"], "spec:/nowhere/spec.yaml", {"network.hidden_sizes": [8]})
    (directory / "config.yaml").write_text(to_yaml(config))
    spec = EnvSpec(ArraySpec((3,), "float32"), DiscreteAction(2))
    algorithm = SYSTEMS["seed-vtrace"].algorithm.make(config.algorithm, spec, config.network)
    flat = FlatParameters(algorithm.build_network())
    store = CheckpointStore(directory / "checkpoints", keep_last=1)
    draft = store.begin(7)
    save_state(draft, "learner", {"weights": flat.values}, flat.layout)
    store.commit(draft, {"updates": 1, "train_seconds": 2.0})
    return pappus.load_policy(directory)


def test_a_policy_of_envs_elsewhere_needs_no_env(tmp_path: Path) -> None:
    policy = run_of_envs_elsewhere(tmp_path / "run")
    assert policy.predict(np.zeros((5, 3), np.float32))[0].shape == (5,)
    assert policy.act(np.array([0.1, 0.2, 0.3])) in (0, 1)
