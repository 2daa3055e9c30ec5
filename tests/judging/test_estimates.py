from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from minari.serialization import serialize_space

import pappus
from pappus.cli import main
from pappus.data.dataset import open_dataset
from pappus.errors import UserError
from pappus.judging.estimates import METHODS, Question, judge
from pappus.judging.fitted_q import FittedQ, FQEConfig
from pappus.judging.logged import Asked, Logged
from pappus.judging.wording import reachable
from tests.envs.random_mdp import RandomMDP, random_policy
from tests.judging.mdp_data import logged_of

GAMMA = 0.9
MDP = RandomMDP(states=4, actions=2, ends=0.2, horizon=60, seed=1)
POLICY, BEHAVIOUR = (random_policy(4, 2, 0.5, seed) for seed in (2, 3))
QUICK = FQEConfig(updates=50, hidden=(8,))
TINY: dict[str, Any] = {
    "runtime": "inline", "actors": 1, "envs_per_actor": 4, "network.hidden_sizes": [8], "evaluation.episodes": 1,
    "optimizer.learning_rate": 1e-12, "seed": 3,
}
"""Runs whose policy stays what it was: what they record is on-policy."""


def question(methods: tuple[str, ...] = METHODS) -> Question:
    return Question(methods, 0.95, GAMMA, 1e6, Asked(), QUICK)


def data_of(episodes: int, behaviour: Any = BEHAVIOUR) -> Logged:
    return logged_of(MDP.play(BEHAVIOUR, episodes, np.random.default_rng(5)), POLICY, behaviour)


def judged(logged: Logged, methods: tuple[str, ...] = METHODS, explicit: bool = False) -> pappus.Estimates:
    return judge(logged, spaces.Discrete(2), question(methods), "a policy", explicit)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run that learns nothing, and what it recorded."""
    folder = tmp_path_factory.mktemp("ppo")
    pappus.train("ppo", "CartPole-v1", run_dir=folder / "run", record=str(folder / "data"), steps=2_000, **TINY)
    return folder / "run", folder / "data"


def test_every_method_finds_the_value_of_the_policy() -> None:
    found, value = judged(data_of(500)), MDP.value(POLICY, GAMMA)
    assert [one.method for one in found.estimates] == list(METHODS)
    for one in found.estimates:
        assert one.interval is not None and one.interval[0] < one.value < one.interval[1]
        assert abs(one.value - value) < one.interval[1] - one.interval[0], one
    assert not found.warnings and not found.cloned


def test_behaviour_that_was_not_recorded_is_fitted_and_said() -> None:
    found = judged(data_of(400, None), ("wis",))
    assert found.cloned and "fitted to the data" in str(found)
    assert found["wis"].value == pytest.approx(judged(data_of(400), ("wis",))["wis"].value, abs=0.2)


def test_on_policy_data_is_judged_as_what_it_earned(recorded: tuple[Path, Path]) -> None:
    run, data = recorded
    found = pappus.estimate(run, data, ["is", "wis"])
    assert found["is"].value == pytest.approx(found.behaviour.value, rel=1e-4)
    assert found["is"].effective == pytest.approx(found.episodes, rel=1e-4)
    assert found.largest_weight == pytest.approx(1, abs=1e-3)


def test_the_policy_gives_logged_actions_the_probability_that_it_recorded(recorded: tuple[Path, Path]) -> None:
    run, data = recorded
    (episode,) = open_dataset(data).read([0])
    assert pappus.load_policy(run).log_prob(episode) == pytest.approx(episode.behaviour["log_prob"], abs=1e-5)


def test_a_policy_with_memory_is_replayed_through_its_episodes(tmp_path: Path) -> None:
    pappus.train(
        "ppo", "CartPole-v1", run_dir=tmp_path / "run", record=str(tmp_path / "data"), steps=600, core="lstm", **TINY
    )
    found = pappus.estimate(tmp_path / "run", tmp_path / "data", ["is"])
    assert found["is"].effective == pytest.approx(found.episodes, rel=1e-4)
    assert found["is"].value == pytest.approx(found.behaviour.value, rel=1e-4)


def test_a_deterministic_policy_is_judged_by_fqe_alone(tmp_path: Path) -> None:
    pappus.train(
        "ddpg", "Pendulum-v1", run_dir=tmp_path / "run", record=str(tmp_path / "data"), steps=900,
        **{**TINY, "topology.replay.warm_up": 5, "topology.replay.samples_per_insert": 0.1},
    )
    found = pappus.estimate(tmp_path / "run", tmp_path / "data", discount=0.9, fqe=QUICK)
    assert [one.method for one in found.estimates] == ["fqe"]
    assert any("left out" in warning for warning in found.warnings)
    with pytest.raises(UserError, match=r"--methods is: the policy is deterministic .*; use --methods fqe"):
        pappus.estimate(tmp_path / "run", tmp_path / "data", ["is"])
    with pytest.raises(UserError, match=r"all \d+ episodes were truncated, and with discount=1"):
        pappus.estimate(tmp_path / "run", tmp_path / "data", discount=1)


def test_the_command_prints_a_table_and_json(recorded: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    run, data = map(str, recorded)
    assert main(["data", "estimate", run, "--data", data, "--methods", "is,wis", "--confidence", "0.9"]) == 0
    said = capsys.readouterr().out
    assert "90 % interval" in said and "This assumes:" in said and "behaviour" in said
    assert main(["data", "estimate", run, "--data", data, "--methods", "is", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["estimates"][0]["method"] == "is" and found["discount"] == 0.99


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"methods": ["iss"]}, "unknown method 'iss'; did you mean 'is'"),
        ({"confidence": 95}, "confidence=95 is no share"),
        ({"discount": 0}, "discount=0 must lie above 0"),
        ({"epsilon": 0.1}, "epsilon=0.1 with a policy that samples"),
        ({"clip": 0}, "clip=0 must be positive"),
    ],
)
def test_wrong_options_get_a_sentence(recorded: tuple[Path, Path], options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        pappus.estimate(*recorded, **options)


def test_data_of_another_env_gets_a_sentence(recorded: tuple[Path, Path], tmp_path: Path) -> None:
    pappus.train("a2c", "Acrobot-v1", run_dir=tmp_path / "run", steps=40, **TINY)
    with pytest.raises(UserError, match=r"its observation is float32 \[4\], the env's float32 \[6\]; use data of this"):
        pappus.estimate(tmp_path / "run", recorded[1])


def test_data_whose_actions_have_other_bounds_gets_a_sentence(tmp_path: Path) -> None:
    settings = {**TINY, "record": str(tmp_path / "data")}
    pappus.train("a2c", "Pendulum-v1", run_dir=tmp_path / "run", steps=40, **settings)
    metadata = tmp_path / "data" / "data" / "metadata.json"
    content = json.loads(metadata.read_text())
    content["action_space"] = serialize_space(spaces.Box(-8.0, 8.0, (1,)))
    metadata.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"its actions lie in Box\(-8.0, 8.0, .*, the env's in Box\(-2.0"):
        pappus.estimate(tmp_path / "run", tmp_path / "data")


def test_one_episode_has_an_estimate_and_no_interval() -> None:
    found = judged(data_of(1))
    assert all(one.interval is None for one in found.estimates)
    assert any(warning.startswith("one episode: there is no interval") for warning in found.warnings)


def test_nan_probabilities_get_a_sentence() -> None:
    logged = data_of(5)
    wrong = logged.behaviour
    assert wrong is not None and logged.log_prob is not None
    with pytest.raises(UserError, match="recorded log_prob are no finite numbers"):
        judged(logged._replace(behaviour=np.full_like(wrong, np.nan)))
    with pytest.raises(UserError, match="no probability, but NaN or infinity"):
        judged(logged._replace(log_prob=np.full_like(wrong, np.nan)))


def test_few_effective_episodes_and_cut_weights_are_warned_of() -> None:
    far = random_policy(4, 2, 6.0, 9)
    logged = logged_of(MDP.play(BEHAVIOUR, 30, np.random.default_rng(0)), far, BEHAVIOUR)
    found = judge(logged, spaces.Discrete(2), question(("is",))._replace(clip=2.0), "a policy", True)
    assert any("effective sample size" in warning for warning in found.warnings)
    assert any("had weights above 2, which were cut" in warning for warning in found.warnings)


def test_actions_that_the_data_lacks_are_warned_of() -> None:
    logged = data_of(20)
    found = judged(logged._replace(action=np.zeros_like(logged.action)), ("fqe",))
    assert any("are none that the data has" in warning for warning in found.warnings)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_fit_that_diverged_is_cut_to_what_the_rewards_allow_and_warned_of(
    sign: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = sign * 1e6
    monkeypatch.setattr(FittedQ, "mean_at_start", lambda self: (fitted, fitted + np.arange(20.0)))
    logged = data_of(20)
    found = judged(logged, ("fqe",))
    least, most = reachable(logged.reward, GAMMA)
    edge = most if sign > 0 else least
    assert found["fqe"].value == edge and found["fqe"].interval == (edge, edge)
    assert any("fqe was fitted as" in warning and "the fit diverged" in warning for warning in found.warnings)


def test_a_method_that_was_left_out_is_named_with_those_that_were_not() -> None:
    with pytest.raises(UserError, match="there is no estimate by 'is', only by wis, fqe; `warnings` say why"):
        judged(data_of(20), ("wis", "fqe"))["is"]
