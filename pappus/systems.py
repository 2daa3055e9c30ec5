"""Every named system: a topology, an algorithm, and defaults that work. And presets: what an env wants different."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pappus.algorithms.a2c import A2C, A2CConfig
from pappus.algorithms.appo import APPO, APPOConfig
from pappus.algorithms.ddpg import DDPG, DDPGConfig, NoiseConfig
from pappus.algorithms.dqn import DQN, DQNConfig
from pappus.algorithms.epsilon_greedy import EpsilonConfig
from pappus.algorithms.ppo import PPO, PPOConfig
from pappus.algorithms.r2d2 import R2D2, R2D2Config
from pappus.algorithms.vtrace import VTrace, VTraceConfig
from pappus.config import (
    EnvOptions,
    NetworkConfig,
    OptimizerConfig,
    ReplayConfig,
    RunConfig,
    load_file,
    override,
)
from pappus.core import Algorithm
from pappus.errors import UserError, closest
from pappus.topologies import a3c, apex, gorila, impala, seed, seed_replay, single, sync
from pappus.topologies.program import Program
from pappus.topologies.run import Run
from pappus.types import EnvSpec


@dataclass(frozen=True)
class System:
    """A topology and an algorithm that go together."""

    name: str
    purpose: str
    paper: str
    figure: str
    topology: Callable[[Run], Program]
    algorithm: Callable[[Any, EnvSpec, NetworkConfig], Algorithm]
    defaults: RunConfig


OFF_POLICY_OPTIMIZER = OptimizerConfig(anneal=False, clip_norm=10.0)
SEQUENCE_REPLAY = ReplayConfig(
    capacity=10_000, warm_up=100, samples_per_insert=4.0, priority_exponent=0.9, importance_exponent=0.6
)

SYSTEMS: dict[str, System] = {
    "dqn": System(
        name="dqn",
        purpose="one agent in one thread, the reference: discrete actions, small envs",
        paper="Mnih et al. 2015, Human-level control; with what Hessel et al. 2018 found to matter",
        figure=single.__doc__ or "",
        topology=single.single,
        algorithm=DQN,
        defaults=RunConfig(
            algorithm=DQNConfig(epsilon=EpsilonConfig("linear"), target_every=500), system="dqn",
            topology=single.SingleConfig(), batch_size=64, envs_per_actor=4,
            optimizer=OFF_POLICY_OPTIMIZER,
        ),
    ),
    "impala": System(
        name="impala",
        purpose="actors with slightly stale policies, learners that correct for it: the most steps per second",
        paper="Espeholt et al. 2018, IMPALA",
        figure=impala.__doc__ or "",
        topology=impala.impala,
        algorithm=VTrace,
        defaults=RunConfig(algorithm=VTraceConfig(), system="impala", topology=impala.ImpalaConfig()),
    ),
    "seed-vtrace": System(
        name="seed-vtrace",
        purpose="actors without networks, one inference server for all envs: large networks, actors anywhere",
        paper="Espeholt et al. 2019, SEED RL",
        figure=seed.__doc__ or "",
        topology=seed.seed,
        algorithm=VTrace,
        defaults=RunConfig(algorithm=VTraceConfig(), system="seed-vtrace", topology=seed.SeedConfig()),
    ),
    "appo": System(
        name="appo",
        purpose="IMPALA with PPO's clipped surrogate: as fast, and each update stays near the policy that acted",
        paper="Petrenko et al. 2020, Sample Factory; OpenAI 2018, Rapid",
        figure=impala.__doc__ or "",
        topology=impala.impala,
        algorithm=APPO,
        defaults=RunConfig(algorithm=APPOConfig(), system="appo", topology=impala.ImpalaConfig()),
    ),
    "seed-appo": System(
        name="seed-appo",
        purpose="the same with central inference: large networks, actors anywhere",
        paper="Espeholt et al. 2019, SEED RL; Petrenko et al. 2020, Sample Factory",
        figure=seed.__doc__ or "",
        topology=seed.seed,
        algorithm=APPO,
        defaults=RunConfig(algorithm=APPOConfig(), system="seed-appo", topology=seed.SeedConfig()),
    ),
    "a2c": System(
        name="a2c",
        purpose="workers that wait for each other, one update per batch: A3C without its asynchrony",
        paper="Mnih et al. 2016, Asynchronous Methods for Deep Reinforcement Learning; Wu et al. 2017",
        figure=sync.__doc__ or "",
        topology=sync.sync,
        algorithm=A2C,
        defaults=RunConfig(
            algorithm=A2CConfig(), system="a2c", topology=sync.SyncConfig(), envs_per_actor=32,
            unroll_length=16,
        ),
    ),
    "ppo": System(
        name="ppo",
        purpose="workers that wait for each other, each batch gone over several times: steady, few settings to find",
        paper="Schulman et al. 2017, Proximal Policy Optimization Algorithms",
        figure=sync.__doc__ or "",
        topology=sync.sync,
        algorithm=PPO,
        defaults=RunConfig(
            algorithm=PPOConfig(), system="ppo", topology=sync.SyncConfig(), envs_per_actor=16,
            unroll_length=128, network=NetworkConfig(activation="tanh"),
            optimizer=OptimizerConfig(learning_rate=2.5e-4, clip_norm=0.5),
        ),
    ),
    "ddpg": System(
        name="ddpg",
        purpose="one agent in one thread, the reference: continuous actions",
        paper="Lillicrap et al. 2016, Continuous control with deep reinforcement learning",
        figure=single.__doc__ or "",
        topology=single.single,
        algorithm=DDPG,
        defaults=RunConfig(
            algorithm=DDPGConfig(), system="ddpg", topology=single.SingleConfig(), batch_size=64,
            envs_per_actor=4, optimizer=OFF_POLICY_OPTIMIZER,
        ),
    ),
    "td3": System(
        name="td3",
        purpose="ddpg with replica critics, a slower policy and smoothed targets: continuous actions, the steadier choice",
        paper="Fujimoto et al. 2018, Addressing Function Approximation Error in Actor-Critic Methods",
        figure=single.__doc__ or "",
        topology=single.single,
        algorithm=DDPG,
        defaults=RunConfig(
            algorithm=DDPGConfig(twin=True, policy_delay=2, target_every=2, smoothing=0.2), system="td3",
            topology=single.SingleConfig(), batch_size=64, envs_per_actor=4,
            optimizer=OFF_POLICY_OPTIMIZER,
        ),
    ),
    "apex-ddpg": System(
        name="apex-ddpg",
        purpose="Ape-X for continuous actions: actors whose noise differs, one prioritized replay",
        paper="Horgan et al. 2018, Distributed Prioritized Experience Replay (Ape-X DPG)",
        figure=apex.__doc__ or "",
        topology=apex.apex,
        algorithm=DDPG,
        defaults=RunConfig(
            algorithm=DDPGConfig(
                n_step=5, target_every=100, target_share=1.0, action_gradient_clip=1.0, noise=NoiseConfig(sigma=0.3)
            ),
            system="apex-ddpg", topology=apex.ApexConfig(), batch_size=256, envs_per_actor=16,
            optimizer=OFF_POLICY_OPTIMIZER,
        ),
    ),
    "apex-dqn": System(
        name="apex-dqn",
        purpose="actors that explore to different degrees, one prioritized replay: discrete actions, few env steps",
        paper="Horgan et al. 2018, Distributed Prioritized Experience Replay",
        figure=apex.__doc__ or "",
        topology=apex.apex,
        algorithm=DQN,
        defaults=RunConfig(
            algorithm=DQNConfig(), system="apex-dqn", topology=apex.ApexConfig(), batch_size=512, envs_per_actor=16,
            optimizer=OptimizerConfig(anneal=False),
        ),
    ),
    "gorila-dqn": System(
        name="gorila-dqn",
        purpose="bundles of actor and learner, with a replay each or one for all, around sharded parameter servers",
        paper="Nair et al. 2015, Massively Parallel Methods for Deep Reinforcement Learning",
        figure=gorila.__doc__ or "",
        topology=gorila.gorila,
        algorithm=DQN,
        defaults=RunConfig(
            algorithm=DQNConfig(target_every=500), system="gorila-dqn", topology=gorila.GorilaConfig(), actors=2,
            batch_size=64, envs_per_actor=8, optimizer=OFF_POLICY_OPTIMIZER,
        ),
    ),
    "a3c": System(
        name="a3c",
        purpose="workers that learn from their own envs and change shared weights, with or without a lock",
        paper="Mnih et al. 2016, Asynchronous Methods for Deep Reinforcement Learning",
        figure=a3c.__doc__ or "",
        topology=a3c.a3c,
        algorithm=A2C,
        defaults=RunConfig(
            algorithm=A2CConfig(), system="a3c", topology=a3c.A3CConfig(), actors=2, envs_per_actor=8,
        ),
    ),
    "r2d2": System(
        name="r2d2",
        purpose="Ape-X with memory: recurrent networks that learn from replayed sequences",
        paper="Kapturowski et al. 2019, Recurrent Experience Replay in Distributed RL",
        figure=apex.__doc__ or "",
        topology=apex.apex,
        algorithm=R2D2,
        defaults=RunConfig(
            algorithm=R2D2Config(), system="r2d2",
            topology=apex.ApexConfig(replay=SEQUENCE_REPLAY),
            batch_size=64, envs_per_actor=16, env_options=EnvOptions(last_inputs=True),
            network=NetworkConfig(core="lstm"), optimizer=OFF_POLICY_OPTIMIZER,
        ),
    ),
    "seed-r2d2": System(
        name="seed-r2d2",
        purpose="R2D2 with central inference: large recurrent networks, actors anywhere",
        paper="Espeholt et al. 2019, SEED RL; Kapturowski et al. 2019",
        figure=seed_replay.__doc__ or "",
        topology=seed_replay.seed_replay,
        algorithm=R2D2,
        defaults=RunConfig(
            algorithm=R2D2Config(), system="seed-r2d2", topology=seed_replay.SeedReplayConfig(replay=SEQUENCE_REPLAY),
            batch_size=64, envs_per_actor=16, env_options=EnvOptions(last_inputs=True),
            network=NetworkConfig(core="lstm"), optimizer=OFF_POLICY_OPTIMIZER,
        ),
    ),
}


@dataclass(frozen=True)
class Preset:
    """Settings for some systems on envs whose id matches a pattern: only what differs from the defaults, and why."""

    systems: tuple[str, ...]
    envs: str
    settings: Mapping[str, Any]


VTRACE = ("impala", "seed-vtrace", "appo", "seed-appo")
SEEDS = ("seed-vtrace", "seed-appo")
DQNS = ("dqn", "apex-dqn", "gorila-dqn")
R2D2S = ("r2d2", "seed-r2d2")
DDPGS = ("ddpg", "td3", "apex-ddpg")

PRESETS: tuple[Preset, ...] = (
    # Returns of 500 steps at γ = 0.99 approach 100; a scale of 0.05 brings values to 5, where the value loss does not
    # drown the policy gradient. The entropy cost shrinks with the rewards: at 0.01 a solved policy, whose advantages
    # are nearly 0, is drawn back to chance until poles fall. Step sizes above 1e-3 solve it no sooner, and do not last.
    # An LSTM may take a million steps. a3c took all this over, and with eight times as many updates per step it needs a
    # third of the steps.
    Preset(
        (*VTRACE, "a3c", "a2c"), "CartPole-*",
        {"algorithm.reward_scale": 0.05, "algorithm.entropy_cost": 0.001, "steps": 2_000_000},
    ),
    Preset(VTRACE, "Acrobot-*", {"algorithm.reward_scale": 0.05, "optimizer.learning_rate": 3e-3}),
    # Costs of up to 16 a step over 200 steps; a horizon of 20 steps (γ = 0.95) spans a swing.
    Preset(
        VTRACE, "Pendulum-*",
        {
            "algorithm.reward_scale": 0.01, "algorithm.discount": 0.95, "algorithm.entropy_cost": 0.0,
            "optimizer.learning_rate": 3e-3, "steps": 3_000_000,
        },
    ),
    # A forward pass for few envs costs almost what one for many does: twice as many envs, in batches of IMPALA's size.
    Preset(SEEDS, "CartPole-*", {"envs_per_actor": 128, "batch_size": 64}),
    Preset(SEEDS, "Acrobot-*", {"envs_per_actor": 128, "batch_size": 64}),
    # 16 envs × 10 steps per update: small batches learn more per frame, and an emulator is slow enough to allow them.
    # The best of five settings tried on Pong with one seed each; benchmarks/RESULTS.md lists them.
    Preset(
        VTRACE, "ALE/*",
        {
            "envs_per_actor": 16, "unroll_length": 10, "algorithm.entropy_cost": 0.005, "steps": 10_000_000,
            "optimizer": {
                "name": "rmsprop", "learning_rate": 7e-4, "decay": 0.99, "momentum": 0.0, "epsilon": 1e-5,
                "clip_norm": 0.5,
            },
            "checkpoint.every_seconds": 300,
        },
    ),
    # Four times the usual step: so small a network bears it.
    Preset(("ppo",), "CartPole-*", {"optimizer.learning_rate": 1e-3, "steps": 500_000}),
    # A horizon of 10 steps (γ = 0.9) and many small updates, as for all tasks of torque.
    Preset(
        ("ppo",), "Pendulum-*",
        {
            "algorithm.discount": 0.9, "algorithm.epochs": 10, "algorithm.minibatches": 16,
            "algorithm.entropy_cost": 0.0, "optimizer.learning_rate": 1e-3, "optimizer.anneal": False,
            "evaluation.every_steps": 20_000, "steps": 300_000,
        },
    ),
    # The goal lies hundreds of steps away, and positions and speeds differ in size by ten.
    Preset(
        ("ppo",), "MountainCarContinuous-*",
        {
            "algorithm.discount": 0.999, "algorithm.epochs": 10, "algorithm.minibatches": 16, "unroll_length": 256,
            "network.normalize": True, "optimizer.learning_rate": 3e-4, "evaluation.every_steps": 20_000,
            "steps": 300_000,
        },
    ),
    # Landing well takes hundreds of steps, and eight numbers of different sizes.
    Preset(
        ("ppo",), "LunarLander-*",
        {
            "algorithm.discount": 0.999, "algorithm.gae_lambda": 0.98, "algorithm.minibatches": 16,
            "unroll_length": 256, "network.normalize": True, "optimizer.learning_rate": 1e-3,
            "evaluation.every_steps": 50_000, "steps": 1_000_000,
        },
    ),
    # With rewards of 1 and γ = 0.99 values approach 100: bootstraps over 5 steps and a target that follows every 100
    # updates get there in tens of thousands of steps. Training episodes explore, so only evaluations can show 475.
    Preset(
        DQNS, "CartPole-*",
        {
            "algorithm.n_step": 5, "algorithm.target_every": 100, "evaluation.every_steps": 5_000, "steps": 400_000,
        },
    ),
    Preset(("apex-dqn",), "CartPole-*", {"batch_size": 128}),
    # Episodes are short at first: so are sequences, or most would be padding.
    Preset(
        R2D2S, "*CartPole*",
        {
            "algorithm.burn_in": 5, "algorithm.length": 20, "algorithm.period": 10, "algorithm.target_every": 100,
            "batch_size": 32, "topology.replay.samples_per_insert": 8.0, "evaluation.every_steps": 5_000,
            "steps": 300_000,
        },
    ),
    # Grids of 10×10: batches as large as an update of so small a network is cheap for, each step used four times.
    Preset(
        ("apex-dqn",), "*minatar*",
        {
            "batch_size": 256, "optimizer.learning_rate": 5e-4, "algorithm.target_every": 1_000,
            "topology.replay.samples_per_insert": 4.0, "topology.replay.warm_up": 5_000,
            "evaluation.every_steps": 100_000, "evaluation.episodes": 30, "steps": 2_000_000,
        },
    ),
    # Small batches, as for ALE: on two cores they learn as much per second as those eight times as large, from half of
    # the steps. That is from one run each of 25 seconds on Breakout, and so is what follows: the first that learnt.
    Preset((*VTRACE, "a3c", "a2c"), "*minatar*", {"unroll_length": 10, "steps": 2_000_000}),
    Preset(("impala", "appo", "a2c"), "*minatar*", {"envs_per_actor": 16}),
    # Rewards are rare: most batches hold none, and to scale their advantages up would be to learn from noise.
    Preset(("appo", "seed-appo"), "*minatar*", {"algorithm.normalize_advantage": False}),
    Preset(SEEDS, "*minatar*", {"envs_per_actor": 64, "batch_size": 32}),
    Preset(("ppo",), "*minatar*", {"optimizer.learning_rate": 1e-3, "steps": 2_000_000}),
    # Step size and reuse of apex-dqn; the target follows every 500 updates, of which all bundles make many.
    Preset(
        ("gorila-dqn",), "*minatar*",
        {
            "optimizer.learning_rate": 5e-4, "topology.replay.samples_per_insert": 4.0,
            "evaluation.every_steps": 50_000, "steps": 1_000_000,
        },
    ),
    # Nothing has to be remembered for long: short sequences, in batches of which a core makes dozens a second, and a
    # target that follows as fast.
    Preset(
        R2D2S, "*minatar*",
        {
            "algorithm.burn_in": 5, "algorithm.length": 20, "algorithm.period": 10, "algorithm.target_every": 100,
            "batch_size": 16, "topology.replay.samples_per_insert": 2.0, "evaluation.every_steps": 50_000,
            "steps": 1_000_000,
        },
    ),
    # The paper's (appendix C) but for what two cores allow: fewer frames kept, smaller batches. Each item is drawn as
    # often as in the paper: 19 batches of 512 for 12,500 transitions a second.
    Preset(
        ("apex-dqn",), "ALE/*",
        {
            "batch_size": 128, "algorithm.head_size": 512, "topology.replay.capacity": 500_000,
            "topology.replay.warm_up": 20_000, "topology.replay.samples_per_insert": 0.78, "steps": 10_000_000,
            "optimizer": {
                "name": "rmsprop", "centered": True, "learning_rate": 2.5e-4, "decay": 0.95, "momentum": 0.0,
                "epsilon": 1.5e-7, "clip_norm": 40.0,
            },
            "checkpoint.every_seconds": 600,
        },
    ),
    # Costs of up to 16 a step: a tenth of them keeps values within what a network starts with.
    Preset(
        DDPGS, "Pendulum-*",
        {
            "algorithm.reward_scale": 0.1, "topology.replay.samples_per_insert": 64.0, "evaluation.every_steps": 2_000,
            "steps": 100_000,
        },
    ),
)


def find_system(name: str) -> System:
    """The system of that name."""
    if name not in SYSTEMS:
        raise UserError(f"unknown system {name!r}{closest(name, list(SYSTEMS))}; `pappus systems` lists them all")
    return SYSTEMS[name]


def presets_for(system: str, env: str) -> list[Preset]:
    """All presets that match, in their order."""
    return [preset for preset in PRESETS if system in preset.systems and fnmatch.fnmatch(env, preset.envs)]


def saved_config(directory: Path) -> RunConfig:
    """The resolved config of a run directory."""
    path = directory / "config.yaml"
    if not path.is_file():
        raise UserError(f"{str(directory)!r} is no run directory: it has no config.yaml; `ls runs` shows what there is")
    content = load_file(path)
    return override(find_system(str(content.get("system", ""))).defaults, content, str(path))
