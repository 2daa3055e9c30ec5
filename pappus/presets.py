"""Settings for particular envs: only what differs from a system's defaults, and why."""

from __future__ import annotations

from pappus.evidence import Evidence
from pappus.evidence_table import EVIDENCE
from pappus.names import PAIRS
from pappus.system import Preset, System

CORRECTED = ("vtrace@*", "appo@*")
"""Algorithms that correct for actors that lag behind."""
CENTRAL = ("vtrace@seed", "appo@seed")
ONLINE_FIRST = tuple(
    f"{name}@offline" for name in ("dqn", "r2d2", "ddpg", "td3", "d4pg", "fast-td3", "sac", "crossq")
)
"""What was made for online replay, and has presets for that."""

LOCOMOTION = ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Humanoid")
"""Bodies of MuJoCo that learn to walk or run."""

PRESETS: tuple[Preset, ...] = (
    # Returns of 500 steps at γ = 0.99 approach 100; a scale of 0.05 brings values to 5, where the value loss does not
    # drown the policy gradient. The entropy cost shrinks with the rewards: at 0.01 a solved policy, whose advantages
    # are nearly 0, is drawn back to chance until poles fall. Step sizes above 1e-3 solve it no sooner, and do not last.
    # An LSTM may take a million steps. a3c took all this over, and with eight times as many updates per step it needs a
    # third of the steps.
    Preset((*CORRECTED, "a2c@*"), "CartPole-*", {
        "algorithm.reward_scale": 0.05, "algorithm.entropy_cost": 0.001, "steps": 2_000_000,
    }),
    Preset(CORRECTED, "Acrobot-*", {"algorithm.reward_scale": 0.05, "optimizer.learning_rate": 3e-3}),
    # Costs of up to 16 a step over 200 steps; a horizon of 20 steps (γ = 0.95) spans a swing.
    Preset(CORRECTED, "Pendulum-*", {
        "algorithm.reward_scale": 0.01, "algorithm.discount": 0.95, "algorithm.entropy_cost": 0.0,
        "optimizer.learning_rate": 3e-3, "steps": 3_000_000,
    }),
    # A forward pass for few envs costs almost what one for many does: twice as many envs, in batches of IMPALA's size.
    Preset(CENTRAL, "CartPole-*", {"envs_per_actor": 128, "batch_size": 64}),
    Preset(CENTRAL, "Acrobot-*", {"envs_per_actor": 128, "batch_size": 64}),
    # 16 envs × 10 steps per update: small batches learn more per frame, and an emulator is slow enough to allow them.
    # The best of five settings tried on Pong with one seed each; benchmarks/RESULTS.md lists them. More actors make
    # more updates of this size: updates of 240 unrolls leave Pong at −19 after 5.7 M steps. They have fewer envs each,
    # so that the policy lags by as many updates as with four actors.
    Preset(CORRECTED, "ALE/*", {
        "envs_per_actor": 16, "max_envs": 64, "batch_size": 16, "unroll_length": 10, "algorithm.entropy_cost": 0.005,
        "steps": 10_000_000,
        "optimizer": {
            "name": "rmsprop", "learning_rate": 7e-4, "decay": 0.99, "momentum": 0.0, "epsilon": 1e-5,
            "clip_norm": 0.5,
        },
        "checkpoint.every_seconds": 300,
    }),
    # On a GPU updates are cheap and envs are the bottleneck, so each step is used sixteen times: 16 updates from 48
    # unrolls, long enough that most hold a point of Pong. `seed-appo` is at 19.9 after 1.05 M steps; shorter unrolls or
    # smaller batches with as many updates per step stand at −17 then.
    Preset(CORRECTED, "ALE/*", {
        "batch_size": 48, "unroll_length": 64, "queue_size": 3, "algorithm.epochs": 16, "algorithm.trace_lambda": 0.95,
        "algorithm.entropy_cost": 0.01,
        "optimizer": {
            "name": "adam", "learning_rate": 5e-4, "decay": 0.999, "momentum": 0.9, "epsilon": 1e-5, "clip_norm": 0.5,
        },
    }, on_gpu=True),
    # On a GPU box the envs are the bottleneck, so each step is used eight times: 64 updates of 960 steps per batch of
    # 7,680. That many updates at this step size raise Pong to 18 from 1.1 M steps, half of them to −17. The number of
    # envs is that of all actors: more actors make the same batches sooner.
    Preset(("ppo@sync", "a2c@sync", "pqn@sync"), "ALE/*", {}, on_gpu=True, topology="seed"),
    Preset(("ppo@seed",), "ALE/*", {
        "envs": 120, "unroll_length": 64, "algorithm.epochs": 8, "algorithm.minibatches": 8, "steps": 10_000_000,
        "optimizer.learning_rate": 5e-4, "checkpoint.every_seconds": 300,
    }),
    # The paper's sizes: 30 minibatches of 128 steps. ε falls sooner, as a run of minutes is short. Pong is at 12 after
    # 1 M steps.
    Preset(("pqn@seed",), "ALE/*", {
        "envs": 120, "unroll_length": 32, "algorithm.minibatches": 30, "algorithm.epsilon.steps": 300_000,
        "steps": 10_000_000, "checkpoint.every_seconds": 300,
    }),
    # A wall of bricks rewards every hit: four epochs are at 235 after 2.2 M steps, two at 59. A lost life costs.
    Preset(("pqn@seed",), "ALE/Breakout-*", {
        "algorithm.epochs": 4, "env_options.atari.life_loss_ends_episode": True,
    }),
    # Small batches, 30 envs × 5 steps: an emulator is slow enough for actors of two envs each.
    # Not yet shown to win.
    Preset(("a2c@sync", "a2c@seed"), "ALE/*", {
        "envs": 30, "unroll_length": 5, "steps": 10_000_000, "checkpoint.every_seconds": 300,
        "optimizer": {
            "name": "rmsprop", "learning_rate": 7e-4, "decay": 0.99, "momentum": 0.0, "epsilon": 1e-5,
            "clip_norm": 0.5,
        },
    }),
    # Four times the usual step: so small a network bears it.
    Preset(("ppo@*",), "CartPole-*", {"optimizer.learning_rate": 1e-3, "steps": 500_000}),
    # Four epochs, long unrolls and λ near 1, as the paper's for this task, at ten times its step size. ε = 0.05 still
    # reaches 475.
    Preset(("pqn@*",), "CartPole-*", {
        "unroll_length": 64, "optimizer.learning_rate": 1e-3, "steps": 500_000,
        "algorithm": {"q_lambda": 0.95, "epochs": 4, "minibatches": 16, "epsilon.end": 0.05},
    }),
    # A horizon of 10 steps (γ = 0.9) and many small updates, as for all tasks of torque.
    Preset(("ppo@*",), "Pendulum-*", {
        "algorithm.discount": 0.9, "algorithm.epochs": 10, "algorithm.minibatches": 16,
        "algorithm.entropy_cost": 0.0, "optimizer.learning_rate": 1e-3, "optimizer.anneal": False,
        "evaluation.every_steps": 20_000, "steps": 300_000,
    }),
    # The goal lies hundreds of steps away, and positions and speeds differ in size by ten.
    Preset(("ppo@*",), "MountainCarContinuous-*", {
        "algorithm.discount": 0.999, "algorithm.epochs": 10, "algorithm.minibatches": 16, "unroll_length": 256,
        "network.normalize": True, "optimizer.learning_rate": 3e-4, "evaluation.every_steps": 20_000,
        "steps": 300_000,
    }),
    # Landing well takes hundreds of steps, and eight numbers of different sizes.
    Preset(("ppo@*",), "LunarLander-*", {
        "algorithm.discount": 0.999, "algorithm.gae_lambda": 0.98, "algorithm.minibatches": 16,
        "unroll_length": 256, "network.normalize": True, "optimizer.learning_rate": 1e-3,
        "evaluation.every_steps": 50_000, "steps": 1_000_000,
    }),
    # The paper's sizes, with eight envs side by side: ten epochs of 32 minibatches with 64 steps each. Positions and
    # speeds differ in size by ten and more.
    *(
        Preset(("ppo@*",), f"{body}-*", {
            "envs_per_actor": 8, "unroll_length": 256, "algorithm.epochs": 10, "algorithm.minibatches": 32,
            "algorithm.entropy_cost": 0.0, "network.normalize": True, "optimizer.learning_rate": 3e-4,
            "steps": 1_000_000,
        })
        for body in LOCOMOTION
    ),
    # A return of R over 1,000 steps makes an action worth about R / 10 at γ = 0.99. With a tenth of the rewards that is
    # 130 for 13,000, the most that is reported; D4PG's atoms reach 150, those of FastTD3 250. Neither was tried yet.
    *(Preset(("d4pg@*", "fast-td3@*"), f"{body}-*", {"algorithm.reward_scale": 0.1}) for body in LOCOMOTION),
    # What its authors' code has for tasks of the control suite, which are the nearest ones to these.
    *(
        Preset(("fast-td3@*",), f"{body}-*", {
            "algorithm": {"n_step": 3, "smoothing": 0.1, "noise.ladder": 0.25},
        })
        for body in LOCOMOTION
    ),
    # The paper's sizes: two updates for a step of 128 envs are 2 × 32,768 / 128 = 512 samples per insert. Ten million
    # steps are 156,000 updates. A core draws 75 such batches of HalfCheetah a second, which are 4,800 steps;
    # eight actors of 16 envs, on 16 cores, make several times as many. Not yet tried on a GPU.
    *(
        Preset(("fast-td3@apex",), f"{body}-*", {
            "device": "cuda", "precision": "bfloat16", "envs": 128, "batch_size": 32_768, "steps": 10_000_000,
            "network.hidden_sizes": (512, 256, 128), "algorithm.critic_sizes": (1_024, 512, 256),
            "topology.replay.samples_per_insert": 512.0,
        }, on_gpu=True)
        for body in LOCOMOTION
    ),
    # An update of its critics is 30 billion multiplications and additions: three a second on two cores. Not yet tried
    # on a GPU.
    *(Preset(("crossq@apex",), f"{body}-*", {"device": "cuda"}, on_gpu=True) for body in LOCOMOTION),
    # With rewards of 1 and γ = 0.99 values approach 100: bootstraps over 5 steps and a target that follows every 100
    # updates get there in tens of thousands of steps. Training episodes explore, so only evaluations can show 475.
    Preset(("dqn@*",), "CartPole-*", {
        "algorithm.n_step": 5, "algorithm.target_every": 100, "evaluation.every_steps": 5_000, "steps": 400_000,
    }),
    Preset(("dqn@apex",), "CartPole-*", {"batch_size": 128}),
    # Episodes are short at first: so are sequences, or most would be padding.
    Preset(("r2d2@*",), "*CartPole*", {
        "algorithm.burn_in": 5, "algorithm.length": 20, "algorithm.period": 10, "algorithm.target_every": 100,
        "batch_size": 32, "topology.replay.samples_per_insert": 8.0, "evaluation.every_steps": 5_000,
        "steps": 300_000,
    }),
    # Grids of 10×10: batches as large as an update of so small a network is cheap for, each step used four times.
    Preset(("dqn@apex",), "*minatar*", {
        "batch_size": 256, "optimizer.learning_rate": 5e-4, "algorithm.target_every": 1_000,
        "topology.replay.samples_per_insert": 4.0, "topology.replay.warm_up": 5_000,
        "evaluation.every_steps": 100_000, "evaluation.episodes": 30, "steps": 2_000_000,
    }),
    # Small batches, as for ALE: on two cores they learn as much per second as those eight times as large, from half of
    # the steps. That is from one run each of 25 seconds on Breakout, and so is what follows: the first that learnt.
    Preset((*CORRECTED, "a2c@*"), "*minatar*", {"unroll_length": 10, "steps": 2_000_000}),
    Preset(("vtrace@impala", "appo@impala", "a2c@sync"), "*minatar*", {"envs_per_actor": 16}),
    # Rewards are rare: most batches hold none, and to scale their advantages up would be to learn from noise.
    Preset(("appo@*",), "*minatar*", {"algorithm.normalize_advantage": False}),
    Preset(CENTRAL, "*minatar*", {"envs_per_actor": 64, "batch_size": 32}),
    Preset(("ppo@*",), "*minatar*", {"optimizer.learning_rate": 1e-3, "steps": 2_000_000}),
    # Step size and reuse of apex-dqn; the target follows every 500 updates, of which all bundles make many.
    Preset(("dqn@gorila",), "*minatar*", {
        "optimizer.learning_rate": 5e-4, "topology.replay.samples_per_insert": 4.0,
        "evaluation.every_steps": 50_000, "steps": 1_000_000,
    }),
    # Nothing has to be remembered for long: short sequences, in batches of which a core makes dozens a second, and a
    # target that follows as fast.
    Preset(("r2d2@*",), "*minatar*", {
        "algorithm.burn_in": 5, "algorithm.length": 20, "algorithm.period": 10, "algorithm.target_every": 100,
        "batch_size": 16, "topology.replay.samples_per_insert": 2.0, "evaluation.every_steps": 50_000,
        "steps": 1_000_000,
    }),
    # Each item is drawn eight times, ten times as often as in the paper, whose 360 actors make up for it.
    Preset(("dqn@apex", "dqn@seed"), "ALE/*", {
        "batch_size": 256, "algorithm.head_size": 512, "algorithm.target_every": 1_000,
        "topology.replay.capacity": 500_000, "topology.replay.warm_up": 20_000,
        "topology.replay.samples_per_insert": 8.0, "optimizer.learning_rate": 2e-4, "optimizer.epsilon": 1e-5,
        "optimizer.clip_norm": 40.0, "steps": 10_000_000, "checkpoint.every_seconds": 600,
    }),
    # Half of the paper's sequences and burn-in. On a GPU `r2d2` is at 19 on Pong after 2.2 M steps and 293 s;
    # `seed-r2d2` on half of one at 7.8 after 400 s.
    Preset(("r2d2@apex", "r2d2@seed", "r2d2@single"), "ALE/*", {
        "algorithm.burn_in": 20, "algorithm.length": 40, "algorithm.period": 20, "algorithm.head_size": 512,
        "algorithm.target_every": 500, "topology.replay.capacity": 25_000, "topology.replay.warm_up": 1_000,
        "topology.replay.samples_per_insert": 16.0, "optimizer.learning_rate": 2.5e-4, "optimizer.epsilon": 1e-5,
        "optimizer.clip_norm": 40.0, "steps": 10_000_000, "checkpoint.every_seconds": 600,
    }),
    # Costs of up to 16 a step: a tenth of them keeps values within what a network starts with. Small networks in small
    # batches are enough, and ten times as fast; errors differ in size while it is learnt to swing up.
    Preset(("ddpg@*", "td3@*", "d4pg@*", "fast-td3@*"), "Pendulum-*", {
        "algorithm.reward_scale": 0.1, "evaluation.every_steps": 2_000, "steps": 100_000,
        "network.hidden_sizes": (64, 64), "optimizer": {"learning_rate": 1e-3, "clip_norm": 10.0},
        "topology.replay": {"capacity": 100_000, "sampler": "prioritized", "samples_per_insert": 64.0},
    }),
    Preset(("ddpg@single", "td3@single", "d4pg@single"), "Pendulum-*", {"batch_size": 64}),
    Preset(("fast-td3@*",), "Pendulum-*", {"batch_size": 256}),
    Preset(("sac@*", "crossq@*"), "Pendulum-*", {
        "algorithm.reward_scale": 0.1, "evaluation.every_steps": 2_000, "steps": 100_000,
        "network.hidden_sizes": (64, 64), "optimizer.learning_rate": 1e-3, "topology.replay.capacity": 100_000,
    }),
    Preset(("sac@single", "crossq@single"), "Pendulum-*", {
        "batch_size": 128, "topology.replay.samples_per_insert": 128.0,
    }),
    # Its critics are wider than its policy, as in the paper, where they have eight times as many units.
    Preset(("crossq@*",), "Pendulum-*", {"algorithm.critic_sizes": (256, 256)}),
    # Values approach 100, as online; a target that follows every 2,500 updates would take a quarter of a million. One
    # that follows every 20 lets them grow beyond bounds: to 300 after 20,000 updates.
    Preset(("cql-dqn@*",), "CartPole-*", {"algorithm.target_every": 100}),
    # Step sizes of DQN on grids and, as d3rlpy's, on Atari.
    Preset(("cql-dqn@*", "bc@*"), "*minatar*", {"optimizer.learning_rate": 5e-4}),
    Preset(("cql-dqn@*",), "*minatar*", {"algorithm.target_every": 1_000}),
    Preset(("cql-dqn@*",), "ALE/*", {
        "batch_size": 32, "optimizer.learning_rate": 6.25e-5, "algorithm.target_every": 8_000,
        "checkpoint.every_seconds": 300,
    }),
    Preset(("td3-bc@*", "rebrac@*", "iql@*", "awac@*", "cql@*"), "Pendulum-*", {"algorithm.reward_scale": 0.1}),
    # The conservative term grows with values, the squared error with their square: a tenth of the rewards takes a tenth
    # of the paper's α. With all of it the policy stays at what the data earned.
    Preset(("cql@*",), "Pendulum-*", {"algorithm.alpha": 0.5}),
    # Steps from data are updates, whatever an env takes online.
    Preset(ONLINE_FIRST, "*", {"steps": 100_000, "evaluation.every_steps": 0}),
    # Several steps of others' actions are not worth what the greedy policy would get: the bootstrap comes after one. A
    # step size that falls keeps what was found; one that does not lost it between evaluations.
    Preset(("dqn@offline",), "CartPole-*", {
        "algorithm.n_step": 1, "algorithm.target_every": 500, "batch_size": 128, "steps": 15_000,
        "optimizer.learning_rate": 5e-4, "optimizer.anneal": True,
    }),
)


def presets_for(system: System, env: str) -> list[Preset]:
    """All presets that match, in their order; a system's own come last."""
    matching = [preset for preset in (*PRESETS, *system.presets) if preset.matches(system.pair, env)]
    return [preset for preset in matching if system.on_gpu or not preset.on_gpu]


def evidence_for(preset: Preset) -> list[Evidence]:
    """The runs that were made with a preset, be it among others. Where a GPU has a preset of its own, runs on a GPU say
    nothing of the other one."""
    found = []
    for one in EVIDENCE:
        pair = PAIRS.get(one.system, one.system)
        own = any(other.on_gpu and other.settings and other.matches(pair, one.env) for other in PRESETS)
        if preset.matches(pair, one.env) and (preset.on_gpu == one.on_gpu or (one.on_gpu and not own)):
            found.append(one)
    return found


def evidence_on(system: System, env: str) -> list[Evidence]:
    """The runs of a system on an env with all presets that apply here."""
    return [
        one for one in EVIDENCE
        if PAIRS.get(one.system, one.system) == system.pair and one.env == env and one.on_gpu == system.on_gpu
    ]
