"""PPO as people write it in a single file, after CleanRL's manner: torch, Gymnasium's SyncVectorEnv and nothing else.

Run by the python of `sb3.txt` as `WORK SEED STEPS [TARGET]`.
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import ppo_work as work
import torch
from torch import nn
from torch.distributions import Categorical


def layer(inputs: int, outputs: int, gain: float) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


def make_env():
    return gym.wrappers.RecordEpisodeStatistics(gym.make(work.ENV))


class Agent(nn.Module):
    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            layer(inputs, work.HIDDEN, 2**0.5), nn.Tanh(), layer(work.HIDDEN, work.HIDDEN, 2**0.5), nn.Tanh()
        )
        self.policy, self.value = layer(work.HIDDEN, actions, 0.01), layer(work.HIDDEN, 1, 1.0)

    def look(self, observation, action=None):
        features = self.body(observation)
        policy = Categorical(logits=self.policy(features))
        action = policy.sample() if action is None else action
        return action, policy.log_prob(action), policy.entropy(), self.value(features).squeeze(-1)


def main() -> None:
    result = work.result_descriptor()
    amount, seed, steps, target = work.arguments()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    np.random.seed(seed)
    curve = work.Curve(steps, target)
    same_step = gym.vector.AutoresetMode.SAME_STEP
    envs = gym.vector.SyncVectorEnv([make_env] * amount.envs, autoreset_mode=same_step)
    agent = Agent(envs.single_observation_space.shape[0], envs.single_action_space.n)
    optimizer = torch.optim.Adam(agent.parameters(), work.LEARNING_RATE, eps=work.EPSILON)
    shape = (amount.rollout, amount.envs)
    observations = torch.zeros(*shape, *envs.single_observation_space.shape)
    actions, log_probs, rewards, dones, values = (torch.zeros(shape) for _ in range(5))
    observation = torch.from_numpy(envs.reset(seed=seed)[0])
    done, seen = torch.zeros(amount.envs), 0
    while not curve.full:
        ended = []
        for t in range(amount.rollout):
            seen += amount.envs
            observations[t], dones[t] = observation, done
            with torch.no_grad():
                action, log_probs[t], _, values[t] = agent.look(observation)
            actions[t] = action
            fresh, reward, terminated, truncated, info = envs.step(action.numpy())
            over = terminated | truncated
            if over.any():
                ended += info["final_info"]["episode"]["r"][over].tolist()
            rewards[t] = torch.from_numpy(reward)
            observation, done = torch.from_numpy(fresh), torch.from_numpy(over).float()
        with torch.no_grad():
            following, going_on, last = agent.look(observation)[3], 1 - done, 0.0
            advantages = torch.zeros(shape)
            for t in reversed(range(amount.rollout)):
                delta = rewards[t] + work.DISCOUNT * following * going_on - values[t]
                advantages[t] = last = delta + work.DISCOUNT * work.LAMBDA * going_on * last
                following, going_on = values[t], 1 - dones[t]
            returns = advantages + values
        flat = [x.reshape(-1, *x.shape[2:]) for x in (observations, actions, log_probs, advantages, returns)]
        size = amount.batch // amount.minibatches
        for _ in range(amount.epochs):
            for rows in torch.randperm(len(flat[0])).split(size):
                x, a, before, advantage, goal = (part[rows] for part in flat)
                _, log_prob, entropy, value = agent.look(x, a)
                ratio = (log_prob - before).exp()
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                gain = torch.min(ratio * advantage, ratio.clamp(1 - work.CLIP, 1 + work.CLIP) * advantage)
                error = 0.5 * (value - goal).square().mean()
                loss = -gain.mean() + work.VALUE_COST * error - work.ENTROPY_COST * entropy.mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), work.LARGEST_NORM)
                optimizer.step()
        curve.observe(seen, ended)
    curve.print(result)


if __name__ == "__main__":
    main()
