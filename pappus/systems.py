"""Every algorithm, every topology, and the systems that have names of their own.

`find_system` takes a name (`impala`), a pair (`ppo@seed`) or a system of your own (`my_module:my_system`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pappus.actions import continuous_only, one_choice_only
from pappus.algorithms.a2c import A2C, A2CConfig
from pappus.algorithms.appo import APPO, APPOConfig
from pappus.algorithms.awac import AWAC, AWACConfig
from pappus.algorithms.bc import BC, BCConfig
from pappus.algorithms.cql import CQL, CQLConfig
from pappus.algorithms.cql_dqn import CQLDQN, CQLDQNConfig
from pappus.algorithms.crossq import CrossQ, CrossQConfig
from pappus.algorithms.d4pg import D4PG, D4PGConfig
from pappus.algorithms.ddpg import DDPG, DDPGConfig, NoiseConfig
from pappus.algorithms.dqn import DQN, DQNConfig
from pappus.algorithms.iql import IQL, IQLConfig
from pappus.algorithms.ppo import PPO, PPOConfig
from pappus.algorithms.pqn import PQN, PQNConfig
from pappus.algorithms.r2d2 import R2D2, R2D2Config
from pappus.algorithms.rebrac import ReBRAC, ReBRACConfig
from pappus.algorithms.sac import SAC, SACConfig
from pappus.algorithms.td3_bc import TD3BC, TD3BCConfig
from pappus.algorithms.vtrace import VTrace, VTraceConfig
from pappus.config import RunConfig
from pappus.errors import UserError, closest
from pappus.imports import imported
from pappus.names import PAIRS, check_system, registered_systems, run_file
from pappus.settings import load_file, override
from pappus.system import AlgorithmSpec, System, Topology
from pappus.topologies import a3c, apex, gorila, impala, offline, seed, seed_replay, seed_sync, single, sync
from pappus.trust import REACHES, asked_by, check_trust, system_asked

Value = TypeVar("Value", AlgorithmSpec, Topology, System)

OFF_POLICY = {"optimizer.anneal": False, "optimizer.clip_norm": 10.0}
DATA_TABLE = {"capacity": 0, "warm_up": 0, "samples_per_insert": 8.0}
"""A table of data is as large as the data, whatever the algorithm takes online."""
CONTROL = {
    "batch_size": 256, "network.hidden_sizes": (256, 256), "topology.replay.sampler": "uniform",
    "topology.replay.samples_per_insert": 256.0,
    "optimizer": {"learning_rate": 3e-4, "anneal": False, "epsilon": 1e-8, "clip_norm": 1e6},
}
"""What papers on continuous control have in common: one update per step where there are envs, and no clipping."""
ONLINE_CONTROL = {**CONTROL, "topology.replay.capacity": 1_000_000}
DATA_FIRST = ("offline", "single", "apex")
"""Topologies of methods that learn from data, and go on online."""
DATA_FIRST_IN_ONE = ("offline", "single")
"""The same in one thread: one update per step leaves nothing for more actors to do."""
APEX_SIZES = {"envs_per_actor": 16, "batch_size": 256}


def _by_name(*values: Value) -> dict[str, Value]:
    return {value.name: value for value in values}


ALGORITHMS: dict[str, AlgorithmSpec] = _by_name(
    AlgorithmSpec(
        "vtrace", VTrace, VTraceConfig(), corrects_for_lag=True, purpose="actor-critic that corrects for stale actors"
    ),
    AlgorithmSpec("appo", APPO, APPOConfig(), corrects_for_lag=True, purpose="V-trace with PPO's clipped surrogate"),
    AlgorithmSpec("a2c", A2C, A2CConfig(), purpose="advantage actor-critic"),
    AlgorithmSpec(
        "ppo", PPO, PPOConfig(), several_epochs=True,
        settings={
            "envs_per_actor": 16, "unroll_length": 128, "network.activation": "tanh",
            "optimizer.learning_rate": 2.5e-4, "optimizer.clip_norm": 0.5,
        },
        purpose="clipped surrogate, several epochs per batch",
    ),
    AlgorithmSpec(
        "pqn", PQN, PQNConfig(), refusal=one_choice_only, several_epochs=True,
        settings={
            "envs_per_actor": 32, "unroll_length": 32, "network.layer_norm": True, "optimizer.name": "radam",
            "optimizer.learning_rate": 2.5e-4, "optimizer.clip_norm": 10.0,
        },
        purpose="Q(λ) without replay or target network, several epochs per batch; discrete actions",
    ),
    AlgorithmSpec(
        "dqn", DQN, DQNConfig(), refusal=one_choice_only, learns_from_replay=True, settings=OFF_POLICY,
        purpose="double, dueling, n-step Q-learning; discrete actions",
    ),
    AlgorithmSpec(
        "r2d2", R2D2, R2D2Config(), refusal=one_choice_only, learns_from_replay=True,
        settings={
            **OFF_POLICY, "batch_size": 64, "env_options.last_inputs": True, "network.core": "lstm",
            "topology.replay": {
                "capacity": 10_000, "warm_up": 100, "samples_per_insert": 4.0, "priority_exponent": 0.9,
                "importance_exponent": 0.6,
            },
        },
        purpose="recurrent Q-learning from replayed sequences; discrete actions",
    ),
    AlgorithmSpec(
        "ddpg", DDPG, DDPGConfig(), refusal=continuous_only, learns_from_replay=True,
        settings={
            **ONLINE_CONTROL, "batch_size": 64, "topology.replay.samples_per_insert": 64.0,
            "network.hidden_sizes": (400, 300), "optimizer.learning_rate": 1e-3,
        },
        purpose="deterministic policy gradient; continuous actions",
    ),
    AlgorithmSpec(
        "td3", DDPG, DDPGConfig(twin=True, policy_delay=2, target_every=2, smoothing=0.2), learns_from_replay=True,
        updates_all_weights=False, refusal=continuous_only, settings=ONLINE_CONTROL,
        purpose="DDPG with twin critics, delayed policy and smoothed targets; continuous actions",
    ),
    AlgorithmSpec(
        "d4pg", D4PG, D4PGConfig(), refusal=continuous_only, learns_from_replay=True,
        settings={**ONLINE_CONTROL, "network.hidden_sizes": (400, 300), "optimizer.learning_rate": 1e-4},
        purpose="DDPG whose critic learns the distribution of returns, over five steps; continuous actions",
    ),
    AlgorithmSpec(
        "fast-td3", D4PG,
        D4PGConfig(
            n_step=1, twin=True, policy_delay=2, smoothing=0.001, target_every=1, target_share=0.1, atoms=101,
            v_min=-250.0, v_max=250.0, noise=NoiseConfig(sigma=0.4, ladder=0.0025, spread="even"),
        ),
        learns_from_replay=True, updates_all_weights=False, refusal=continuous_only,
        settings={  # two updates for a step of 16 envs
            **ONLINE_CONTROL, "batch_size": 1_024, "topology.replay.samples_per_insert": 128.0,
            "network.normalize": True,
        },
        purpose="TD3 with distributional critics, for many envs and large batches; continuous actions",
    ),
    AlgorithmSpec(
        "sac", SAC, SACConfig(), refusal=continuous_only, learns_from_replay=True, settings=ONLINE_CONTROL,
        purpose="stochastic policy, twin critics, and a temperature that is learnt; continuous actions",
    ),
    AlgorithmSpec(
        "crossq", CrossQ, CrossQConfig(), refusal=continuous_only, learns_from_replay=True, updates_all_weights=False,
        settings={**ONLINE_CONTROL, "optimizer.learning_rate": 1e-3, "optimizer.momentum": 0.5},
        purpose="SAC with batch-renormalised, wide critics and no target network; continuous actions",
    ),
    AlgorithmSpec(
        "bc", BC, BCConfig(), learns_from_replay=True, topologies=("offline",),
        settings={**OFF_POLICY, "batch_size": 100},
        purpose="behaviour cloning: does what the data do; any actions",
    ),
    AlgorithmSpec(
        "cql-dqn", CQLDQN, CQLDQNConfig(), refusal=one_choice_only, learns_from_replay=True, topologies=DATA_FIRST,
        settings=OFF_POLICY,
        purpose="DQN that holds down values of actions that the data do not show; discrete actions",
    ),
    AlgorithmSpec(
        "td3-bc", TD3BC, TD3BCConfig(), refusal=continuous_only, learns_from_replay=True, updates_all_weights=False,
        topologies=DATA_FIRST_IN_ONE, settings={**CONTROL, "network.normalize": True},
        purpose="TD3 that stays near the data's actions; continuous actions",
    ),
    AlgorithmSpec(
        "rebrac", ReBRAC, ReBRACConfig(), refusal=continuous_only, learns_from_replay=True, updates_all_weights=False,
        topologies=("offline",),
        settings={
            **CONTROL, "batch_size": 1024, "network.hidden_sizes": (256, 256, 256), "network.layer_norm": True,
            "optimizer.learning_rate": 1e-3,
        },
        purpose="TD3+BC with penalties of its own for policy and critics; continuous actions",
    ),
    AlgorithmSpec(
        "iql", IQL, IQLConfig(), learns_from_replay=True, topologies=DATA_FIRST_IN_ONE, settings=CONTROL,
        purpose="values of the data's best actions by expectiles, and a policy that clones these actions",
    ),
    AlgorithmSpec(
        "awac", AWAC, AWACConfig(), learns_from_replay=True, topologies=DATA_FIRST_IN_ONE, settings=CONTROL,
        purpose="clones actions by how much better than the policy they are",
    ),
    AlgorithmSpec(
        "cql", CQL, CQLConfig(), refusal=continuous_only, learns_from_replay=True, topologies=DATA_FIRST_IN_ONE,
        settings=CONTROL,
        purpose="SAC whose values are held down where there is no data; continuous actions",
    ),
)


TOPOLOGIES: dict[str, Topology] = _by_name(
    Topology(
        "single", apex.apex, single.SingleConfig(), {"envs_per_actor": 4, "batch_size": 64}, replay=True,
        figure=single.__doc__ or "",
    ),
    Topology("sync", sync.sync, sync.SyncConfig(), replay=False),
    Topology("impala", impala.impala, impala.ImpalaConfig(), replay=False, lags=True),
    Topology(
        "seed", seed.seed, seed.SeedConfig(), replay=False, lags=True,
        variants=(
            Topology("seed", seed_sync.seed_sync, seed_sync.SeedSyncConfig(), replay=False),
            Topology("seed", seed_replay.seed_replay, seed_replay.SeedReplayConfig(), APEX_SIZES, replay=True),
        ),
    ),
    Topology(
        "a3c", a3c.a3c, a3c.A3CConfig(), {"envs_per_actor": 8}, replay=False, refusal=a3c.refusal
    ),
    Topology("apex", apex.apex, apex.ApexConfig(), APEX_SIZES, replay=True),
    Topology(
        "gorila", gorila.gorila, gorila.GorilaConfig(), {"envs_per_actor": 8, "batch_size": 64},
        replay=True, refusal=gorila.refusal,
    ),
    Topology(
        "offline", offline.offline, offline.OfflineConfig(), {"batch_size": 256, "steps": 100_000},
        {"topology.replay": DATA_TABLE}, replay=True,
    ),
)


def _named(name: str, purpose: str, paper: str, settings: Mapping[str, Any] | None = None) -> System:
    algorithm, topology = PAIRS[name].split("@")
    return System(
        ALGORITHMS[algorithm], TOPOLOGIES[topology], name, settings or {}, purpose=purpose, paper=paper, found_as=name
    )


SYSTEMS: dict[str, System] = _by_name(
    _named(
        "impala", "most steps per second: actors lag behind, and the learner corrects for it",
        "Espeholt et al. 2018, IMPALA",
    ),
    _named(
        "seed-vtrace", "central inference: large networks, actors without one, anywhere",
        "Espeholt et al. 2019, SEED RL",
    ),
    _named(
        "appo", "IMPALA with PPO's clipped surrogate",
        "Petrenko et al. 2020, Sample Factory; OpenAI 2018, Rapid",
    ),
    _named(
        "seed-appo", "the same with central inference",
        "Espeholt et al. 2019, SEED RL; Petrenko et al. 2020, Sample Factory",
    ),
    _named(
        "ppo", "synchronous rollouts, several epochs per batch: steady, few settings to tune",
        "Schulman et al. 2017, Proximal Policy Optimization Algorithms",
    ),
    _named(
        "pqn", "Q-learning from fresh batches of many envs: no replay, no target network",
        "Gallici et al. 2024, Simplifying Deep Temporal Difference Learning",
    ),
    _named(
        "a2c", "synchronous rollouts, one update per batch: A3C without its asynchrony",
        "Mnih et al. 2016, Asynchronous Methods for Deep Reinforcement Learning; Wu et al. 2017",
        {"envs_per_actor": 32, "unroll_length": 16},
    ),
    _named(
        "a3c", "workers that compute gradients on their own envs and update shared weights",
        "Mnih et al. 2016, Asynchronous Methods for Deep Reinforcement Learning",
    ),
    _named(
        "apex-dqn", "many actors, one prioritized replay: few env steps, discrete actions",
        "Horgan et al. 2018, Distributed Prioritized Experience Replay",
        {"batch_size": 512, "optimizer.clip_norm": 40.0},
    ),
    _named(
        "apex-ddpg", "the same for continuous actions",
        "Horgan et al. 2018, Distributed Prioritized Experience Replay (Ape-X DPG)",
        {
            "algorithm": {
                "n_step": 5, "target_every": 100, "target_share": 1.0, "action_gradient_clip": 1.0, "noise.sigma": 0.3,
            },
            "batch_size": 256, "topology.replay": {"sampler": "prioritized", "samples_per_insert": 8.0},
        },
    ),
    _named(
        "r2d2", "Ape-X with memory: recurrent networks, replayed sequences",
        "Kapturowski et al. 2019, Recurrent Experience Replay in Distributed RL",
    ),
    _named(
        "seed-r2d2", "R2D2 with central inference",
        "Espeholt et al. 2019, SEED RL; Kapturowski et al. 2019", {"batch_size": 64},
    ),
    _named(
        "gorila-dqn", "bundles of actor, replay and learner around sharded parameter servers",
        "Nair et al. 2015, Massively Parallel Methods for Deep Reinforcement Learning",
        {"algorithm.target_every": 500},
    ),
    _named(
        "dqn", "one agent in one thread, discrete actions: the reference",
        "Mnih et al. 2015, Human-level control; with what Hessel et al. 2018 found to matter",
        {"algorithm": {"epsilon.schedule": "linear", "target_every": 500}},
    ),
    _named(
        "ddpg", "one agent in one thread, continuous actions: the reference",
        "Lillicrap et al. 2016, Continuous control with deep reinforcement learning",
    ),
    _named(
        "td3", "DDPG with twin critics, a delayed policy and smoothed targets: the steadier choice",
        "Fujimoto et al. 2018, Addressing Function Approximation Error in Actor-Critic Methods",
    ),
    _named(
        "d4pg", "DDPG with a distributional critic and n-step returns",
        "Barth-Maron et al. 2018, Distributed Distributional Deterministic Policy Gradients",
    ),
    _named(
        "apex-d4pg", "the same with actors beside the learner, as the paper has it",
        "Barth-Maron et al. 2018, Distributed Distributional Deterministic Policy Gradients",
        {"topology.replay.samples_per_insert": 32.0},
    ),
    _named(
        "fast-td3", "continuous control with hundreds of envs and batches of tens of thousands, on a GPU",
        "Seo et al. 2025, FastTD3: Simple, Fast, and Capable Reinforcement Learning for Humanoid Control",
    ),
    _named(
        "sac", "the default choice for continuous actions: explores by itself, one update per step",
        "Haarnoja et al. 2018, Soft Actor-Critic Algorithms and Applications",
    ),
    _named(
        "apex-sac", "the same with many actors: sooner where an env is slow",
        "Haarnoja et al. 2018; Horgan et al. 2018, Distributed Prioritized Experience Replay",
    ),
    _named(
        "crossq", "fewer env steps than SAC, for larger updates: wide critics with batch norms, no target network",
        "Bhatt et al. 2024, CrossQ: Batch Normalization in Deep Reinforcement Learning",
    ),
    _named(
        "apex-crossq", "the same with many actors",
        "Bhatt et al. 2024; Horgan et al. 2018, Distributed Prioritized Experience Replay",
    ),
    _named("bc", "imitate the policies behind a data set: the baseline", "Pomerleau 1988, ALVINN"),
    _named(
        "filtered-bc", "imitate the tenth of the episodes with the highest returns",
        "Chen et al. 2021, Decision Transformer (there: 10 %BC)", {"topology.best": 0.1},
    ),
    _named(
        "cql-dqn", "Q-learning from a data set, discrete actions",
        "Kumar et al. 2020, Conservative Q-Learning for Offline Reinforcement Learning", {"batch_size": 256},
    ),
    _named(
        "td3-bc", "control from data, the simplest: TD3 that stays near the data's actions",
        "Fujimoto and Gu 2021, A Minimalist Approach to Offline Reinforcement Learning",
    ),
    _named(
        "rebrac", "control from data: TD3+BC with larger networks, layer norms and two penalties",
        "Tarasov et al. 2023, Revisiting the Minimalist Approach to Offline Reinforcement Learning",
    ),
    _named(
        "iql", "any actions, from data that mixes good and bad: asks for no action that is not in it",
        "Kostrikov et al. 2021, Offline Reinforcement Learning with Implicit Q-Learning",
    ),
    _named(
        "awac", "any actions, from data and then online: clones what is better than the policy",
        "Nair et al. 2020, AWAC: Accelerating Online Reinforcement Learning with Offline Datasets",
    ),
    _named(
        "cql", "control from data, cautiously: values are held down where there is none",
        "Kumar et al. 2020, Conservative Q-Learning for Offline Reinforcement Learning",
    ),
)


def find_system(text: str | System) -> System:
    """A named system, a pair ALGORITHM@TOPOLOGY, your own `module:name`, one that an installed package registers
    (entry points of the group `pappus.systems`), or the value itself."""
    if isinstance(text, System):
        return text
    if text in SYSTEMS:
        return SYSTEMS[text]
    if text.startswith("python:"):
        raise UserError(
            f"system {text.removeprefix('python:')!r} was given as a Python value; pass it again from Python "
            "(system=…), or train it as module:name"
        )
    if "@" in text:
        return _pair(text)
    if ":" in text:
        return replace(_imported(text, System, "system"), found_as=text)
    registered = registered_systems()
    if text in registered:
        return replace(_imported(registered[text], System, "system"), found_as=text)
    check_system(text)
    raise AssertionError(f"system {text!r} has a name and is not there")


def _pair(text: str) -> System:
    algorithm, _, topology = text.rpartition("@")
    system = System(
        _of(ALGORITHMS, algorithm, AlgorithmSpec, "algorithm"), _of(TOPOLOGIES, topology, Topology, "topology"),
        found_as=text,
    )
    return next((named for named in SYSTEMS.values() if named.pair == text), system)


def _of(known: Mapping[str, Value], name: str, kind: type[Value], what: str) -> Value:
    if name in known:
        return known[name]
    if ":" in name:
        return _imported(name, kind, what)
    raise UserError(f"unknown {what} {name!r}{closest(name, list(known))}; there are {', '.join(known)}")


def _imported(text: str, kind: type[Value], what: str) -> Value:
    value = imported(text, f"{what} ")
    if not isinstance(value, kind):
        raise UserError(f"{what} {text!r} is a {type(value).__name__}, not a pappus.{kind.__name__}")
    return value


def saved_config(
    directory: Path, system: System | None = None, *, trust: bool = False, without: Collection[str] = tuple(REACHES)
) -> tuple[System, RunConfig]:
    """The system and the resolved config of a run directory; `system` where it was given as a Python value. Without
    `trust`, `UserError` where it asks for what this user did not ask for here (`trust.py`), except by settings that the
    caller does `without`."""
    path = run_file(directory)
    content, source = load_file(path), f"run {str(directory)!r}"
    if system is None and not trust:
        check_trust(source, system_asked(str(content.get("system", ""))))
    found = system or find_system(str(content.get("system", "")))
    config = override(found.defaults, content, str(path))
    if not config.mixes_data:  # runs of older versions name a share without data
        config = replace(config, data_share=None)
    if not trust:
        check_trust(source, asked_by(config, found.defaults, (*without, *(["system"] if system else []))))
    return found, config
