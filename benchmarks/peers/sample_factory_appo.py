"""Sample Factory's asynchronous PPO, timed; run by the python of `sample_factory.txt`."""

from __future__ import annotations

import ale_py  # noqa: F401  registers the ALE envs, in each worker process too
import gymnasium as gym
from measuring import Setting, Window, measure
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.envs.env_wrappers import ClipRewardEnv, NumpyObsWrapper
from sample_factory.train import make_runner

DEFAULTS = {"CartPole-v1": (2, 64), "ALE/Pong-v5": (2, 8)}
COMMON = """
    --experiment=run --algo=APPO --async_rl=True --serial_mode=False --device=cpu --worker_num_splits=2
    --rollout=32 --num_epochs=1 --num_batches_per_epoch=1 --use_rnn=False --normalize_input=False
    --summaries_use_frameskip=False --decorrelate_envs_on_one_worker=False
    --train_for_env_steps=1000000000000 --save_every_sec=100000 --save_best_every_sec=100000
"""
PER_ENV = {
    "CartPole-v1": "--batch_size=4096 --encoder_mlp_layers 64 64 --nonlinearity=tanh --reward_scale=0.1",
    "ALE/Pong-v5": """
        --batch_size=512 --encoder_conv_architecture=convnet_atari --encoder_conv_mlp_layers 512 --nonlinearity=relu
        --obs_scale=255.0
    """,
}


class CountIterations(AlgoObserver):
    """Counts what the learner has trained on, and ends the run once the window is full."""

    def __init__(self, window: Window) -> None:
        self.window = window

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        if self.window.observe(runner.env_steps.get(0, 0)):
            runner.cfg.train_for_env_steps = 0


def make_env(name: str, cfg: object = None, env_config: object = None, render_mode: str | None = None) -> gym.Env:
    if name == "CartPole-v1":
        return gym.make(name)
    # A third faster than Sample Factory's own recipe, which resizes colour frames before it greys them.
    env = gym.wrappers.AtariPreprocessing(gym.make(name, frameskip=1), frame_skip=4, screen_size=84)
    return NumpyObsWrapper(gym.wrappers.FrameStack(ClipRewardEnv(env), 4))


def train(setting: Setting, window: Window, scratch: str) -> None:
    register_env(setting.env, make_env)
    argv = f"--env={setting.env} --train_dir={scratch} {COMMON} {PER_ENV[setting.env]}".split()
    argv += [f"--num_workers={setting.workers}", f"--num_envs_per_worker={setting.envs}"]
    parser, _ = parse_sf_args(argv)
    _, runner = make_runner(parse_full_cfg(parser, argv))
    runner.register_observer(CountIterations(window))
    status = runner.init()
    if status == ExperimentStatus.SUCCESS:
        status = runner.run()
    if status != ExperimentStatus.SUCCESS:
        raise RuntimeError(f"sample factory ended with status {status}")


if __name__ == "__main__":
    measure("sample_factory", "sample-factory", DEFAULTS, train)
