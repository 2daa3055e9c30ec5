"""Data sets to learn from, made by runs of our own: random, replay, medium, expert.

    python -m benchmarks.offline_data cartpole DIR           # or pendulum, hopper, halfcheetah, breakout

One run is recorded until its policy is mediocre: `replay` is all that it saw, `medium` its last policy. A longer run
gives `expert`. For Hopper and HalfCheetah the first run is SAC's, as the sets of D4RL are: what PPO sees of them in
200,000 steps is too poor to tell methods apart. MuJoCo's envs need `pip install "pappus[mujoco]"`, MinAtar's Breakout
`pip install minatar`.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ON_POLICY = (
    "ppo --envs-per-actor 8 --unroll-length 256 --algorithm.epochs 10 --algorithm.minibatches 32 "
    "--algorithm.entropy-cost 0 --network.normalize true --optimizer.learning-rate 3e-4"
)
"""PPO for MuJoCo, with the settings of its paper: its steps are cheap where many are needed."""


class Sets(NamedTuple):
    """How the sets of an env are made. Every set has about as many steps as `replay`."""

    env: str
    system: str
    """Which trains, with its options."""
    steps: int
    """Of the recorded run."""
    expert_steps: int
    random: int
    """Episodes of the sets that are played."""
    medium: int
    expert: int
    play: str = ""
    """How `medium` is played: a greedy policy of few actions shows too little."""
    expert_system: str = ""
    """Another one for the expert."""


SETS = {
    "cartpole": Sets("CartPole-v1", "dqn", 20_000, 150_000, 450, 80, 20, "--epsilon 0.15", "ppo"),
    "pendulum": Sets("Pendulum-v1", "td3", 8_000, 20_000, 40, 40, 40),
    "hopper": Sets("Hopper-v5", "sac", 60_000, 600_000, 2_700, 150, 60, "--sample", ON_POLICY),
    "halfcheetah": Sets("HalfCheetah-v5", "sac", 60_000, 1_000_000, 60, 60, 60, "--sample", ON_POLICY),
    "breakout": Sets(
        "benchmarks.minatar:breakout", "apex-dqn", 200_000, 1_000_000, 5_000, 1_200, 300, "--epsilon 0.15"
    ),
}


def pappus(words: str) -> None:
    """One command; its report goes to the terminal."""
    subprocess.run([sys.executable, "-m", "pappus", *shlex.split(words)], check=True)


def main() -> None:
    if len(sys.argv) != 3 or sys.argv[1] not in SETS:
        raise SystemExit(__doc__)
    sets, folder = SETS[sys.argv[1]], Path(sys.argv[2])
    learnt, solved = (shlex.quote(str(folder / name)) for name in ("run-medium", "run-expert"))
    target = {name: shlex.quote(str(folder / name)) for name in ("random", "replay", "medium", "expert")}
    pappus(f"train {sets.system} --env {sets.env} --steps {sets.steps} --run-dir {learnt} --record {target['replay']}")
    system = sets.expert_system or sets.system
    pappus(f"train {system} --env {sets.env} --steps {sets.expert_steps} --run-dir {solved}")
    pappus(f"data record --policy random --env {sets.env} --episodes {sets.random} --out {target['random']}")
    medium = f"--policy {learnt} {sets.play} --episodes {sets.medium}"
    pappus(f"data record {medium} --out {target['medium']}")
    pappus(f"data record --policy {solved} --episodes {sets.expert} --out {target['expert']}")


if __name__ == "__main__":
    main()
