"""Stable-Baselines3's PPO, learning; run by the python of `sb3.txt` as `WORK SEED STEPS [TARGET]`."""

from __future__ import annotations

import ppo_work as work
import torch
from sb3_ppo import Torso
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger


class Observe(BaseCallback):
    """Looks where a rollout starts: every step before it has been learned from."""

    def __init__(self, curve: work.Curve) -> None:
        super().__init__()
        self.curve, self.returns = curve, []

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            self.curve.observe(self.num_timesteps, self.returns)
            self.returns = []

    def _on_step(self) -> bool:
        self.returns += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        return not self.curve.full


def main() -> None:
    result = work.result_descriptor()
    amount, seed, steps, target = work.arguments()
    torch.set_num_threads(1)
    curve = work.Curve(steps, target)
    model = PPO(
        "MlpPolicy",
        make_vec_env(work.ENV, amount.envs, seed=seed),
        learning_rate=work.LEARNING_RATE,
        n_steps=amount.rollout,
        batch_size=amount.batch // amount.minibatches,
        n_epochs=amount.epochs,
        gamma=work.DISCOUNT,
        gae_lambda=work.LAMBDA,
        clip_range=work.CLIP,
        ent_coef=work.ENTROPY_COST,
        vf_coef=work.VALUE_COST / 2,  # of the whole squared error
        max_grad_norm=work.LARGEST_NORM,
        policy_kwargs={"features_extractor_class": Torso, "net_arch": [], "optimizer_kwargs": {"eps": work.EPSILON}},
        seed=seed,
        device="cpu",
    )
    model.set_logger(Logger(folder=None, output_formats=[]))
    # A rollout more: the last one is seen where the next would start.
    model.learn(total_timesteps=steps + amount.batch, callback=Observe(curve))
    curve.print(result)


if __name__ == "__main__":
    main()
