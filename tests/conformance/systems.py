"""Which system learns the exact envs with which settings. A new system is one line of `ROWS`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from pappus.algorithms.bc import BC as BehaviourCloning
from pappus.systems import find_system
from tests.envs.exact_envs import BANDIT, GAMMA, SLOPE, UNROLL, WALKS, World

Settings = dict[str, Any]

COMMON: Settings = {
    "runtime": "inline", "algorithm.discount": GAMMA, "envs_per_actor": 8, "unroll_length": UNROLL,
    "network.hidden_sizes": (32,), "network.activation": "tanh", "optimizer.learning_rate": 0.02,
    "optimizer.anneal": True, "evaluation.episodes": 1,
}
"""One layer over one-hot lights is nearly a table: what is wrong is then the algorithm, and not the network."""

ON_POLICY: Settings = {"steps": 3_200}
PPO: Settings = {
    "steps": 9_600, "algorithm.normalize_returns": False, "algorithm.epochs": 2, "algorithm.minibatches": 2,
}
PQN: Settings = {
    "steps": 4_800, "algorithm.epochs": 2, "algorithm.minibatches": 2, "algorithm.epsilon.end": 1.0,
    "network.layer_norm": False,
}
"""All actions are tried equally often. One-hot lights leave nothing to normalise."""
REPLAY: Settings = {
    "steps": 1_600, "batch_size": 32, "topology.replay.warm_up": 100, "topology.replay.samples_per_insert": 4.0,
}
ANY_ACTION: Settings = {"algorithm.epsilon.schedule": "ladder", "algorithm.epsilon.base": 1.0}
"""All actions are tried equally often: a value for each of them can be asked for."""
DQN: Settings = {**REPLAY, **ANY_ACTION, "algorithm.n_step": 3, "algorithm.target_every": 20}
DDPG: Settings = {
    **REPLAY, "algorithm.n_step": 3, "algorithm.noise.sigma": 1.0, "algorithm.target_share": 0.1,
}
CQL: Settings = {**DQN, "algorithm.alpha": 0.05}
"""So little shifts values by a third of the tolerance at most: by α (π − β) / β for data of a policy β."""
BC: Settings = {"batch_size": 64}
TD3_BC: Settings = {**DDPG, "algorithm.alpha": 1e3, "network.normalize": False}
"""Values count alone: what stays near the data is tested by its loss. One-hot lights leave nothing to normalise."""
REBRAC: Settings = {
    **DDPG, "algorithm.policy_penalty": 1e-4, "algorithm.critic_penalty": 1e-4, "network.layer_norm": False,
}
STOCHASTIC: Settings = {**REPLAY, "algorithm.n_step": 3, "algorithm.target_share": 0.1}
IQL: Settings = {**STOCHASTIC, "algorithm.expectile": 0.999, "algorithm.beta": 250.0}
"""An expectile of all actions that is near the best one's value."""
AWAC: Settings = {**STOCHASTIC, "algorithm.awac_lambda": 0.01, "algorithm.largest_weight": 1e9, "steps": 2_400}
SAC_LIKE: Settings = {
    **STOCHASTIC, "algorithm.alpha": 0.001, "algorithm.temperature": 0.1, "algorithm.entropy_per_action": -4.0,
    "steps": 2_800,
}
WHOLE_TARGETS: Settings = {"algorithm.target_every": 20, "algorithm.target_share": 1.0}
LSTM: Settings = {"network.core": "lstm", "network.core_size": 32, "optimizer.learning_rate": 0.03}
R2D2: Settings = {
    **REPLAY, **ANY_ACTION, **LSTM, "algorithm.n_step": 2, "algorithm.target_every": 20, "algorithm.burn_in": 2,
    "algorithm.length": UNROLL, "algorithm.period": 2, "topology.replay.samples_per_insert": 12.0,
    "env_options.last_inputs": False,
}


def offline(settings: Settings, updates: int) -> Settings:
    """The same from data: nobody explores, and a step is an update."""
    kept = {name: value for name, value in settings.items() if not name.startswith("topology.replay")}
    return {**kept, "steps": updates, "evaluation.every_steps": updates}


TWO_MEMORIES: Settings = {
    "steps": 4_000, "topology.replay.warm_up": 30, "topology.replay.samples_per_insert": 20.0,
    "optimizer.learning_rate": 0.02,
}
"""Each bundle warms its own memory up, and steps a network that the other one changes, too."""


@dataclass(frozen=True)
class Row:
    """A system and what it differs in from its defaults."""

    system: str
    settings: Settings
    continuous: bool = False

    @property
    def topology(self) -> str:
        """The name of its topology."""
        return find_system(self.system).topology.name

    @property
    def learner(self) -> tuple[str, bool]:
        """The name of its algorithm, and whether its network has memory."""
        return find_system(self.system).algorithm.name, "network.core" in self.settings

    @property
    def offline(self) -> bool:
        """Whether it learns from data, which has to be recorded first."""
        return self.topology == "offline"

    @property
    def imitates(self) -> bool:
        """Whether it finds no values, but the probabilities of the data's actions."""
        return find_system(self.system).algorithm.make is BehaviourCloning


ROWS: dict[str, Row] = {
    "impala": Row("impala", ON_POLICY),
    "impala-lstm": Row("impala", ON_POLICY | LSTM | {"steps": 8_000}),
    "seed-vtrace": Row("seed-vtrace", ON_POLICY),
    "seed-vtrace-beside": Row("seed-vtrace", ON_POLICY | {"topology.inference_in": "learner"}),
    "a2c": Row("a2c", ON_POLICY),
    "a3c": Row("a3c", ON_POLICY),
    "a3c-serialised": Row("a3c", ON_POLICY | {"topology.updates": "serialised"}),
    "appo": Row("appo", ON_POLICY),
    "seed-appo": Row("seed-appo", ON_POLICY),
    "ppo": Row("ppo", PPO),
    "ppo-lstm": Row("ppo", PPO | LSTM | {"steps": 6_400}),
    "ppo-two-learners": Row("ppo", PPO | {"learners": 2, "envs_per_actor": 4}),
    "pqn": Row("pqn", PQN),
    "pqn-two-learners": Row("pqn", PQN | {"learners": 2, "envs_per_actor": 4}),
    "dqn": Row("dqn", DQN),
    "dqn-quantiles": Row("dqn", DQN | {"algorithm.quantiles": 4}),
    "apex-dqn": Row("apex-dqn", DQN),
    "gorila-dqn": Row("gorila-dqn", DQN),
    "r2d2": Row("r2d2", R2D2),
    "seed-r2d2": Row("seed-r2d2", R2D2),
    "ddpg": Row("ddpg", DDPG, continuous=True),
    "td3": Row("td3", DDPG, continuous=True),
    "apex-ddpg": Row("apex-ddpg", DDPG | WHOLE_TARGETS, continuous=True),
    "vtrace@sync": Row("vtrace@sync", ON_POLICY),
    "vtrace@a3c": Row("vtrace@a3c", ON_POLICY),
    "appo@sync": Row("appo@sync", ON_POLICY),
    "appo@a3c": Row("appo@a3c", ON_POLICY),
    "a2c@seed": Row("a2c@seed", ON_POLICY),
    "ppo@seed": Row("ppo@seed", PPO),
    "pqn@seed": Row("pqn@seed", PQN),
    "dqn@seed": Row("dqn@seed", DQN),
    "r2d2@single": Row("r2d2@single", R2D2),
    "r2d2@gorila": Row("r2d2@gorila", R2D2 | TWO_MEMORIES),
    "ddpg@seed": Row("ddpg@seed", DDPG, continuous=True),
    "ddpg@gorila": Row("ddpg@gorila", DDPG | {"steps": 3_600}, continuous=True),
    "td3@seed": Row("td3@seed", DDPG, continuous=True),
    "td3@apex": Row("td3@apex", DDPG, continuous=True),
    "dqn@offline": Row("dqn@offline", offline(DQN, 150)),
    "r2d2@offline": Row("r2d2@offline", offline(R2D2, 300)),
    "ddpg@offline": Row("ddpg@offline", offline(DDPG, 300), continuous=True),
    "td3@offline": Row("td3@offline", offline(DDPG, 300), continuous=True),
    "td3-bc": Row("td3-bc", offline(TD3_BC, 300), continuous=True),
    "rebrac": Row("rebrac", offline(REBRAC, 300), continuous=True),
    "iql": Row("iql", offline(IQL, 300), continuous=True),
    "iql-discrete": Row("iql", offline(IQL, 300)),
    "awac": Row("awac", offline(AWAC, 600), continuous=True),
    "cql": Row("cql", offline(SAC_LIKE, 300), continuous=True),
    "td3-bc@single": Row("td3-bc@single", TD3_BC, continuous=True),
    "iql@single": Row("iql@single", IQL, continuous=True),
    "awac@single": Row("awac@single", AWAC | {"steps": 3_600}, continuous=True),
    "cql@single": Row("cql@single", SAC_LIKE, continuous=True),
    "bc": Row("bc", offline(BC, 150)),
    "cql-dqn": Row("cql-dqn", offline(CQL, 250)),
    "cql-dqn@single": Row("cql-dqn@single", CQL),
    "cql-dqn@apex": Row("cql-dqn@apex", CQL),
}


@dataclass(frozen=True)
class Course:
    """Worlds that are learnt in one run."""

    env: str
    worlds: Mapping[str, World]
    settings: Settings


def courses_of(row: Row) -> dict[str, Course]:
    """What a system must learn, by name."""
    walks, kwargs = "tests.envs.exact_envs:walks", {"continuous": row.continuous}
    choice, worlds = ("slope", SLOPE) if row.continuous else ("bandit", BANDIT)
    courses = {
        "next-step": Course(walks, WALKS, {"env_options.kwargs": kwargs}),
        "same-step": Course(walks, WALKS, {"env_options.kwargs": kwargs | {"same_step": True}}),
        "choice": Course(f"tests.envs.exact_envs:{choice}", worlds, _choosing(row)),
    }
    if not _same_step_shows_something(row):
        del courses["same-step"]
    return courses


def _same_step_shows_something(row: Row) -> bool:
    """How an env resets is settled at the env boundary, and what comes after it are the actors of a topology and an
    algorithm: a row shows something new if it is the first of either. Data does not show how an env was reset."""
    earlier = list(takewhile(lambda other: other is not row, ROWS.values()))
    known = any(other.topology == row.topology for other in earlier) and any(
        other.learner == row.learner for other in earlier if not other.offline
    )
    return not row.offline and not known


def _choosing(row: Row) -> Settings:
    """Several steps of a policy that tries everything are not worth what the best is; after one the bootstrap is.

    With memory, which is slow, half the steps are enough; a policy that moves through the actions needs more of them.
    """
    one_step: Settings = {"algorithm.n_step": 1} if "algorithm.n_step" in row.settings else {}
    if row.system.startswith("pqn"):
        one_step = {"algorithm.q_lambda": 0.0}
    share = 1.5 if row.continuous else 0.5 if row.learner[1] else 1.0
    return one_step | {"steps": int(share * row.settings["steps"])}
