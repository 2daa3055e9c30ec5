"""Which system learns the exact envs with which settings. A new system is one line of `ROWS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

FORGETS: Settings = {"optimizer.decay": 0.95}
"""Gradients shrink as values are found, and Adam divides by those of the last updates only."""
ON_POLICY: Settings = {**FORGETS, "steps": 2_400, "network.hidden_sizes": (64,)}
TWO_ACTORS: Settings = {"steps": 3_200}
"""Each of A3C's actors updates with its own unrolls."""
AS_THEY_ARE: Settings = {"algorithm.normalize_advantage": False}
"""Where no action is better than another, normalised advantages are noise, and move values that are found."""
APPO: Settings = {**ON_POLICY, **AS_THEY_ARE}
PPO: Settings = {
    **FORGETS, "steps": 4_000, "network.hidden_sizes": (64,), "algorithm.normalize_returns": False,
    "algorithm.epochs": 2, "algorithm.minibatches": 2,
}
PQN: Settings = {
    "steps": 2_400, "algorithm.epochs": 2, "algorithm.minibatches": 2, "algorithm.epsilon.end": 1.0,
    "network.layer_norm": False,
}
"""All actions are tried equally often. One-hot lights leave nothing to normalise."""
REPLAY: Settings = {
    "steps": 800, "batch_size": 32, "topology.replay.warm_up": 100, "topology.replay.samples_per_insert": 8.0,
    **FORGETS,
}
"""Worlds are small: an update more costs less than a step more."""
ANY_ACTION: Settings = {"algorithm.epsilon.schedule": "ladder", "algorithm.epsilon.base": 1.0}
"""All actions are tried equally often: a value for each of them can be asked for."""
DQN: Settings = {**REPLAY, **ANY_ACTION, "algorithm.n_step": 3, "algorithm.target_every": 20}
DDPG: Settings = {
    **REPLAY, "algorithm.n_step": 3, "algorithm.noise.sigma": 1.0, "algorithm.target_share": 0.1,
}
TD3: Settings = {**DDPG, "algorithm.smoothing": 0.1}
"""A slope's best action is at its bound, where noise makes it worse: by γ · 0.04 with this one."""
D4PG: Settings = {**DDPG, "algorithm.v_min": -10.0, "algorithm.v_max": 10.0, "algorithm.target_every": 1}
FAST_TD3: Settings = {**D4PG, "algorithm.noise.ladder": 1.0, "network.normalize": False}
"""One-hot lights leave nothing to normalise."""
CQL: Settings = {**DQN, "algorithm.alpha": 0.05, "optimizer.decay": 0.999}
"""So little shifts values by a third of the tolerance at most: by α (π − β) / β for data of a policy β."""
BC: Settings = {"batch_size": 64}
TD3_BC: Settings = {**TD3, "algorithm.alpha": 1e3, "network.normalize": False}
"""Values count alone: what stays near the data is tested by its loss. One-hot lights leave nothing to normalise."""
REBRAC: Settings = {
    **TD3, "algorithm.policy_penalty": 1e-4, "algorithm.critic_penalty": 1e-4, "network.layer_norm": False,
}
STOCHASTIC: Settings = {**REPLAY, "algorithm.n_step": 3, "algorithm.target_share": 0.1}
LARGER: Settings = {"steps": 1_200, "batch_size": 64, "topology.replay.samples_per_insert": 16.0}
IQL: Settings = {**STOCHASTIC, "algorithm.expectile": 0.999, "algorithm.beta": 100.0, **LARGER}
"""An expectile of all actions that is near the best one's value."""
AWAC: Settings = {**STOCHASTIC, "algorithm.awac_lambda": 0.03, "algorithm.largest_weight": 1e9}
LITTLE_ENTROPY: Settings = {"algorithm.temperature": 0.1, "algorithm.entropy_per_action": -4.0}
"""It adds next to nothing to values."""
SAC: Settings = {**STOCHASTIC, **LITTLE_ENTROPY}
CROSSQ: Settings = {
    **REPLAY, **LITTLE_ENTROPY, "algorithm.n_step": 3, "algorithm.critic_sizes": (64,), "algorithm.renorm_after": 50,
    "batch_size": 64, "topology.replay.samples_per_insert": 16.0,
}
"""Once moments correct batches, it learns the values that are asked for."""
SAC_LIKE: Settings = {**SAC, "algorithm.alpha": 0.001}
WHOLE_TARGETS: Settings = {"algorithm.target_every": 20, "algorithm.target_share": 1.0}
LSTM: Settings = {"network.core": "lstm", "network.core_size": 32, "optimizer.learning_rate": 0.03}
PPO_LSTM: Settings = {
    **PPO, **LSTM, **AS_THEY_ARE, "steps": 3_200, "network.hidden_sizes": (32,), "algorithm.epochs": 1,
}
R2D2: Settings = {
    **REPLAY, **ANY_ACTION, **LSTM, "algorithm.n_step": 2, "algorithm.target_every": 20, "algorithm.burn_in": 2,
    "algorithm.length": UNROLL, "algorithm.period": 2, "steps": 1_600, "topology.replay.samples_per_insert": 15.0,
    "topology.replay.priority_exponent": 0.3, "optimizer.decay": 0.999, "env_options.last_inputs": False,
}


def offline(settings: Settings, updates: int) -> Settings:
    """The same from data: nobody explores, and a step is an update."""
    kept = {name: value for name, value in settings.items() if not name.startswith("topology.replay")}
    return {**kept, "steps": updates, "evaluation.every_steps": updates}


SLOWLY: Settings = {"optimizer.decay": 0.99, "steps": 1_600}
"""Each of two bundles steps a network that the other one changes, too."""
FRESH_STATES: Settings = {"topology.refresh_every": 1}
"""A stored state is worth what the network was that made it: actors look for new weights at every step."""
TWO_MEMORIES: Settings = {
    **FRESH_STATES, "steps": 2_800, "topology.replay.warm_up": 30, "topology.replay.samples_per_insert": 20.0,
    "optimizer.learning_rate": 0.02, "optimizer.momentum": 0.5, "algorithm.rescaling": 1.0,
}
"""Each bundle warms its own memory up. Gradients that come late work as momentum does. By default a value of 4 is
rescaled to its root, whose error counts four times."""


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
    def carrier(self) -> tuple[str, Callable[..., Any]]:
        """Its topology, and what builds the variant of it that carries its algorithm."""
        return self.topology, find_system(self.system).topology.build

    @property
    def learner(self) -> tuple[str, bool]:
        """The name of its algorithm, and whether its network has memory."""
        return find_system(self.system).algorithm.name, "network.core" in self.settings

    @property
    def actors(self) -> int:
        """What `auto` chooses on a machine with two cores, so that a row learns the same on all of them."""
        return 0 if self.offline else 2 if self.topology in ("a3c", "gorila") or "learners" in self.settings else 1

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
    "impala-lstm": Row("impala", ON_POLICY | LSTM | {"steps": 4_800}),
    "seed-vtrace": Row("seed-vtrace", ON_POLICY),
    "seed-vtrace-beside": Row("seed-vtrace", ON_POLICY | {"topology.inference_in": "learner"}),
    "a2c": Row("a2c", ON_POLICY),
    "a3c": Row("a3c", ON_POLICY | TWO_ACTORS),
    "a3c-serialised": Row("a3c", ON_POLICY | TWO_ACTORS | {"topology.updates": "serialised"}),
    "appo": Row("appo", APPO),
    "seed-appo": Row("seed-appo", APPO),
    "ppo": Row("ppo", PPO),
    "ppo-lstm": Row("ppo", PPO_LSTM),
    "ppo-two-learners": Row("ppo", PPO | {"learners": 2, "envs_per_actor": 4}),
    "pqn": Row("pqn", PQN),
    "pqn-two-learners": Row("pqn", PQN | {"learners": 2, "envs_per_actor": 4}),
    "dqn": Row("dqn", DQN),
    "dqn-quantiles": Row("dqn", DQN | {"algorithm.quantiles": 4}),
    "apex-dqn": Row("apex-dqn", DQN),
    "gorila-dqn": Row("gorila-dqn", DQN | SLOWLY),
    "dqn@seed": Row("dqn@seed", DQN),
    "r2d2": Row("r2d2", R2D2 | FRESH_STATES),
    "seed-r2d2": Row("seed-r2d2", R2D2),
    "ddpg": Row("ddpg", DDPG, continuous=True),
    "td3": Row("td3", TD3, continuous=True),
    "apex-ddpg": Row("apex-ddpg", DDPG | WHOLE_TARGETS, continuous=True),
    "d4pg": Row("d4pg", D4PG, continuous=True),
    "apex-d4pg": Row("apex-d4pg", D4PG | WHOLE_TARGETS, continuous=True),
    "d4pg@seed": Row("d4pg@seed", D4PG, continuous=True),
    "d4pg@gorila": Row("d4pg@gorila", D4PG | SLOWLY, continuous=True),
    "d4pg@offline": Row("d4pg@offline", offline(D4PG, 200), continuous=True),
    "fast-td3": Row("fast-td3", FAST_TD3, continuous=True),
    "fast-td3@single": Row("fast-td3@single", FAST_TD3, continuous=True),
    "fast-td3@seed": Row("fast-td3@seed", FAST_TD3, continuous=True),
    "fast-td3@offline": Row("fast-td3@offline", offline(FAST_TD3, 200), continuous=True),
    "sac": Row("sac", SAC, continuous=True),
    "apex-sac": Row("apex-sac", SAC, continuous=True),
    "sac@seed": Row("sac@seed", SAC, continuous=True),
    "sac@gorila": Row("sac@gorila", SAC | SLOWLY, continuous=True),
    "sac@offline": Row("sac@offline", offline(SAC, 200), continuous=True),
    "crossq": Row("crossq", CROSSQ, continuous=True),
    "apex-crossq": Row("apex-crossq", CROSSQ, continuous=True),
    "crossq@seed": Row("crossq@seed", CROSSQ, continuous=True),
    "crossq@offline": Row("crossq@offline", offline(CROSSQ, 300), continuous=True),
    "vtrace@sync": Row("vtrace@sync", ON_POLICY),
    "vtrace@a3c": Row("vtrace@a3c", ON_POLICY | TWO_ACTORS),
    "appo@sync": Row("appo@sync", APPO),
    "appo@a3c": Row("appo@a3c", APPO | TWO_ACTORS),
    "a2c@seed": Row("a2c@seed", ON_POLICY),
    "ppo@seed": Row("ppo@seed", PPO),
    "pqn@seed": Row("pqn@seed", PQN),
    "pqn@seed-ahead": Row("pqn@seed", PQN | {"topology.ahead": 1}),
    "r2d2@single": Row("r2d2@single", R2D2),
    "r2d2@gorila": Row("r2d2@gorila", R2D2 | TWO_MEMORIES),
    "ddpg@seed": Row("ddpg@seed", DDPG, continuous=True),
    "ddpg@gorila": Row("ddpg@gorila", DDPG | SLOWLY, continuous=True),
    "td3@seed": Row("td3@seed", TD3, continuous=True),
    "td3@apex": Row("td3@apex", TD3, continuous=True),
    "dqn@offline": Row("dqn@offline", offline(DQN, 150)),
    "r2d2@offline": Row("r2d2@offline", offline(R2D2, 200)),
    "ddpg@offline": Row("ddpg@offline", offline(DDPG, 200), continuous=True),
    "td3@offline": Row("td3@offline", offline(TD3, 200), continuous=True),
    "td3-bc": Row("td3-bc", offline(TD3_BC, 200), continuous=True),
    "rebrac": Row("rebrac", offline(REBRAC, 200), continuous=True),
    "iql": Row("iql", offline(IQL, 300) | {"batch_size": 128}, continuous=True),
    "iql-discrete": Row("iql", offline(IQL, 250) | {"batch_size": 32}),
    "awac": Row("awac", offline(AWAC, 300), continuous=True),
    "cql": Row("cql", offline(SAC_LIKE, 150), continuous=True),
    "td3-bc@single": Row("td3-bc@single", TD3_BC, continuous=True),
    "iql@single": Row("iql@single", IQL, continuous=True),
    "awac@single": Row("awac@single", AWAC, continuous=True),
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
    known = any(other.carrier == row.carrier for other in earlier) and any(
        other.learner == row.learner for other in earlier if not other.offline
    )
    return not row.offline and not known


def _choosing(row: Row) -> Settings:
    """Several steps of a policy that tries everything are not worth what the best is; after one the bootstrap is.

    With memory, which is slow, half the steps are enough. A policy that moves through the actions needs more of them,
    and larger ones; one that draws actions sees enough of them with more envs. Advantages say something here.
    """
    settings: Settings = {"algorithm.n_step": 1} if "algorithm.n_step" in row.settings else {}
    if row.system.startswith("pqn"):
        settings |= {"algorithm.q_lambda": 0.0}
    if row.system.startswith("ppo"):
        settings |= {"envs_per_actor": 2 * row.settings.get("envs_per_actor", COMMON["envs_per_actor"])}
    if row.continuous:
        settings |= {"optimizer.learning_rate": 0.04}
    if "algorithm.normalize_advantage" in row.settings:
        settings |= {"algorithm.normalize_advantage": True}
    share = 1.5 if row.continuous else 0.5 if row.learner[1] and not row.system.startswith("ppo") else 1.0
    return settings | {"steps": int(share * row.settings["steps"])}
