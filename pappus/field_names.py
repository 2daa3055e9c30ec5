"""What Stable-Baselines3, CleanRL, RLlib and Sample Factory call things: who writes their names is told ours."""

from __future__ import annotations

from collections.abc import Collection

OPTIONS = {
    # the run
    "total-timesteps": "steps", "timesteps": "steps", "total-steps": "steps", "train-for-env-steps": "steps",
    "max-steps": "steps", "num-env-steps": "steps", "stop-timesteps": "steps", "train-for-seconds": "seconds",
    "env-id": "env", "env-name": "env", "environment": "env", "game": "env",
    "n-envs": "envs", "num-envs": "envs", "num-envs-per-worker": "envs-per-actor",
    "num-envs-per-env-runner": "envs-per-actor", "num-workers": "actors", "num-env-runners": "actors",
    "num-rollout-workers": "actors", "n-actors": "actors", "num-learners": "learners", "num-gpus": "device",
    "cuda": "device", "gpu": "device", "train-dir": "run-dir", "log-dir": "run-dir", "logdir": "run-dir",
    "output-dir": "run-dir", "exp-name": "run-dir", "experiment": "run-dir", "save-path": "run-dir",
    "tensorboard-log": "log", "track": "log", "with-wandb": "log", "wandb": "log", "logger": "log", "load": "init-from",
    "callbacks": "callback", "stop-reward": "target-return", "reward-threshold": "target-return",
    "eval-freq": "evaluation.every-steps", "evaluation-interval": "evaluation.every-steps",
    "eval-episodes": "evaluation.episodes", "n-eval-episodes": "evaluation.episodes",
    "save-freq": "checkpoint.every-seconds", "checkpoint-freq": "checkpoint.every-seconds",
    "save-every-sec": "checkpoint.every-seconds",
    # batches
    "batch": "batch-size", "train-batch-size": "batch-size", "train-batch-size-per-learner": "batch-size",
    "sgd-minibatch-size": "algorithm.minibatches", "minibatch-size": "algorithm.minibatches",
    "num-minibatches": "algorithm.minibatches", "num-batches-per-epoch": "algorithm.minibatches",
    "n-steps": "unroll-length", "num-steps": "unroll-length", "rollout": "unroll-length",
    "rollout-length": "unroll-length", "rollout-fragment-length": "unroll-length", "n-epochs": "algorithm.epochs",
    "update-epochs": "algorithm.epochs", "num-epochs": "algorithm.epochs", "num-sgd-iter": "algorithm.epochs",
    # the optimizer
    "lr": "optimizer.learning-rate", "learning-rate": "optimizer.learning-rate", "alpha-lr": "optimizer.learning-rate",
    "max-grad-norm": "optimizer.clip-norm", "grad-clip": "optimizer.clip-norm", "anneal-lr": "optimizer.anneal",
    "lr-schedule": "optimizer.anneal", "adam-eps": "optimizer.epsilon", "optimizer-type": "optimizer.name",
    # the network
    "net-arch": "network.hidden-sizes", "hidden-size": "network.hidden-sizes", "hidden-sizes": "network.hidden-sizes",
    "fcnet-hiddens": "network.hidden-sizes", "encoder-mlp-layers": "network.hidden-sizes", "policy": "network.torso",
    "use-rnn": "core", "use-lstm": "core", "rnn-type": "core", "rnn-size": "network.core-size",
    "lstm-cell-size": "network.core-size", "nonlinearity": "network.activation", "activation-fn": "network.activation",
    "normalize-input": "network.normalize", "norm-obs": "network.normalize", "custom-model": "network.factory",
    # the algorithm
    "gamma": "algorithm.discount", "discount": "algorithm.discount", "gae": "algorithm.gae-lambda",
    "gae-lambda": "algorithm.gae-lambda", "lambda": "algorithm.gae-lambda", "lam": "algorithm.gae-lambda",
    "td-lambda": "algorithm.q-lambda", "ent-coef": "algorithm.entropy-cost", "entropy-coeff": "algorithm.entropy-cost",
    "exploration-loss-coeff": "algorithm.entropy-cost", "entropy-cost": "algorithm.entropy-cost",
    "vf-coef": "algorithm.baseline-cost", "vf-loss-coeff": "algorithm.baseline-cost",
    "value-loss-coeff": "algorithm.baseline-cost", "clip-range": "algorithm.clip", "clip-coef": "algorithm.clip",
    "clip-param": "algorithm.clip", "ppo-clip-ratio": "algorithm.clip", "clip-range-vf": "algorithm.value-clip",
    "ppo-clip-value": "algorithm.value-clip", "norm-adv": "algorithm.normalize-advantage",
    "normalize-advantage": "algorithm.normalize-advantage", "target-kl": "algorithm.target-kl",
    "normalize-returns": "algorithm.normalize-returns", "reward-scale": "algorithm.reward-scale",
    "vtrace-rho": "algorithm.rho-clip", "vtrace-c": "algorithm.c-clip", "n-step": "algorithm.n-step",
    "dueling": "algorithm.dueling", "double-q": "algorithm.double", "epsilon": "algorithm.epsilon.end",
    "exploration-final-eps": "algorithm.epsilon.end", "end-e": "algorithm.epsilon.end",
    "exploration-initial-eps": "algorithm.epsilon.start", "start-e": "algorithm.epsilon.start",
    "exploration-fraction": "algorithm.epsilon.steps", "tau": "algorithm.target-share",
    "polyak": "algorithm.target-share", "target-update-interval": "algorithm.target-every",
    "target-network-frequency": "algorithm.target-every", "target-network-update-freq": "algorithm.target-every",
    "policy-delay": "algorithm.policy-delay", "policy-frequency": "algorithm.policy-delay",
    "exploration-noise": "algorithm.noise.sigma", "action-noise": "algorithm.noise.sigma",
    # replay
    "buffer-size": "topology.replay.capacity", "replay-size": "topology.replay.capacity",
    "replay-buffer-capacity": "topology.replay.capacity", "capacity": "topology.replay.capacity",
    "learning-starts": "topology.replay.warm-up", "train-freq": "topology.replay.samples-per-insert",
    "gradient-steps": "topology.replay.samples-per-insert", "training-intensity": "topology.replay.samples-per-insert",
    # envs
    "env-kwargs": "env-options.kwargs", "env-config": "env-options.kwargs",
    "frame-stack": "env-options.atari.frame-stack", "env-framestack": "env-options.atari.frame-stack",
    "frame-skip": "env-options.atari.frame-skip", "env-frameskip": "env-options.atari.frame-skip",
    "clip-rewards": "env-options.atari.clip-rewards", "reward-clip": "env-options.atari.clip-rewards",
    "terminal-on-life-loss": "env-options.atari.life-loss-ends-episode",
    "repeat-action-probability": "env-options.atari.sticky-actions", "noop-max": "env-options.atari.noop-max",
}
"""Our option for each name of theirs, both with dashes."""

SYSTEMS = {
    "tqc": ("sac", "continuous actions, learnt from replay"),
    "ddqn": ("dqn", "it is double by default"), "double-dqn": ("dqn", "it is double by default"),
    "dueling-dqn": ("dqn", "with --algorithm.dueling"), "qr-dqn": ("dqn", "with --algorithm.quantiles"),
    "qrdqn": ("dqn", "with --algorithm.quantiles"), "c51": ("dqn", "with --algorithm.quantiles"),
    "iqn": ("dqn", "with --algorithm.quantiles"), "rainbow": ("apex-dqn", "prioritized, double, dueling, n steps"),
    "apex": ("apex-dqn", "discrete actions; apex-ddpg: continuous ones"), "ape-x": ("apex-dqn", "discrete actions"),
    "v-trace": ("impala", "V-trace on IMPALA's topology"), "vtrace": ("impala", "V-trace on IMPALA's topology"),
    "seed": ("seed-vtrace", "V-trace with central inference"), "seed-rl": ("seed-vtrace", "central inference"),
    "ppo2": ("ppo", ""), "trpo": ("ppo", "its successor"), "recurrent-ppo": ("ppo", "with --core lstm"),
    "ppo-lstm": ("ppo", "with --core lstm"), "maskable-ppo": ("ppo", "masks are found in the observation or info"),
    "a2c-ppo": ("ppo", ""), "reinforce": ("a2c", "policy gradient with a baseline"), "gorila": ("gorila-dqn", ""),
    "marwil": ("awac", "learning from data by weighted imitation"), "crr": ("awac", "weighted imitation"),
    "10%-bc": ("filtered-bc", "imitation of the best episodes"), "discrete-cql": ("cql-dqn", "discrete actions"),
}
"""Our nearest system for each name of theirs, and what to know about it."""


def our_option(name: str, known: Collection[str]) -> str:
    """What to say of an option with a name of theirs, dotted or not; empty for other names. `known` are ours here."""
    found = OPTIONS.get(name.rpartition(".")[2].replace("_", "-").lower(), "")
    if not found:
        return ""
    called = f"; did you mean {found!r}, as it is called here?"
    return called if found in known else f"; it is called {found!r} in systems that have it, and this one has not"


def our_system(name: str) -> str:
    """`; did you mean 'td3' (continuous actions, …)?`, or empty."""
    system, about = SYSTEMS.get(name.replace("_", "-").lower(), ("", ""))
    return f"; did you mean {system!r}{f' ({about})' if about else ''}?" if system else ""
