"""What every DQN does in the comparison, ours among them: one update of 64 transitions for every 4 env steps.

What else there is to choose is as in our preset for CartPole: two layers of 64 with relu, 5-step targets, a table of
100,000 transitions. Imported by each peer's own python, so standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from measuring import Setting

DEFAULTS = {"CartPole-v1": (1, 4)}
BATCH, STEPS_PER_UPDATE = 64, 4
HIDDEN = [64, 64]
N_STEP = 5
CAPACITY, WARM_UP = 100_000, 1_000
TARGET_EVERY = 100
"""Updates between two copies to the target network."""
ALPHA, BETA = 0.6, 0.4
LEARNING_RATE = 1e-3


def updates_per_round(setting: Setting) -> int:
    """Updates that follow one step of every env, which is the least that a vector env can make."""
    if setting.envs % STEPS_PER_UPDATE or setting.workers != 1:
        raise ValueError(
            f"workers={setting.workers} with envs={setting.envs}: use 1 and a multiple of {STEPS_PER_UPDATE}"
        )
    return setting.envs // STEPS_PER_UPDATE
