"""Are inline runs resumed to the bit? Stops every system at random rounds and compares the hashes of all state.

    python -m benchmarks.resume_hashes [--stops 20] [--systems dqn impala …] [--seed 1] [--json FILE]

A run in one go gives the hashes of weights, optimizers, tables, random states, envs and queues at its end. Every stop
interrupts the same run after a random number of rounds, as Ctrl-C does, and resumes it: at its end all hashes must be
the same. Networks and tables are small, so that tables are full, items give way and episodes end within a second.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import pappus
from pappus.api import configure, execute
from pappus.names import PAIRS
from pappus.play import Playing, play
from pappus.systems import saved_config
from pappus.telemetry.checkpoint import HASHES, ROUNDS, CheckpointStore, read_manifest

Settings = dict[str, Any]
COMMON: Settings = {
    "runtime": "inline", "evaluation.episodes": 1, "envs_per_actor": 3, "unroll_length": 5,
    "network.hidden_sizes": (8,), "checkpoint.every_seconds": 3600.0, "checkpoint.keep_last": 1,
}
REPLAY: Settings = {
    "steps": 600, "batch_size": 8, "topology.replay.capacity": 150, "topology.replay.warm_up": 40,
    "topology.replay.samples_per_insert": 3.0, "topology.replay.tolerance": 4.0,
}
MANY: Settings = {**REPLAY, "actors": 2, "topology.refresh_every": 30}
R2D2: Settings = {
    **MANY, "network.core": "lstm", "network.core_size": 8, "algorithm.burn_in": 2, "algorithm.length": 6,
    "algorithm.period": 3, "topology.replay.capacity": 60, "topology.replay.warm_up": 10,
}
UNROLLS: Settings = {"steps": 900, "actors": 3, "batch_size": 6}
"""Two of three actors feed each batch: whose turn it is must be remembered."""
EPOCHS: Settings = {"steps": 900, "actors": 2, "algorithm.epochs": 2, "algorithm.minibatches": 2}
SEED: Settings = {"topology.env_groups": 1}
OFFLINE: Settings = {"steps": 60, "batch_size": 8}
CASES: dict[str, tuple[str, Settings]] = {
    "impala": ("CartPole-v1", {**UNROLLS, "network.core": "lstm", "network.core_size": 8}),
    "appo": ("CartPole-v1", UNROLLS),
    "seed-vtrace": ("CartPole-v1", {**UNROLLS, **SEED}),
    "seed-appo": ("Pendulum-v1", {**UNROLLS, **SEED}),
    "ppo": ("CartPole-v1", EPOCHS),
    "ppo@seed": ("CartPole-v1", {**EPOCHS, **SEED}),
    "pqn": ("CartPole-v1", EPOCHS),
    "a2c": ("Pendulum-v1", {"steps": 900, "actors": 2}),
    "a3c": ("CartPole-v1", {"steps": 900, "actors": 3}),
    "apex-dqn": ("CartPole-v1", {**MANY, "algorithm.n_step": 3}),
    "apex-ddpg": ("Pendulum-v1", MANY),
    "r2d2": ("CartPole-v1", R2D2),
    "seed-r2d2": ("CartPole-v1", {**R2D2, **SEED, "topology.refresh_every": None}),
    "gorila-dqn": ("CartPole-v1", {**MANY, "topology.shards": 2}),
    "dqn": ("CartPole-v1", REPLAY),
    "ddpg": ("Pendulum-v1", REPLAY),
    "td3": ("Pendulum-v1", REPLAY),
    "bc": ("CartPole-v1", OFFLINE),
    "filtered-bc": ("CartPole-v1", OFFLINE),
    "cql-dqn": ("CartPole-v1", OFFLINE),
    "td3-bc": ("Pendulum-v1", OFFLINE),
    "rebrac": ("Pendulum-v1", OFFLINE),
    "iql": ("Pendulum-v1", OFFLINE),
    "awac": ("Pendulum-v1", OFFLINE),
    "cql": ("Pendulum-v1", OFFLINE),
}
"""The env and what is small, by system."""
OF_DATA = [name for name, pair in PAIRS.items() if pair.endswith("@offline")]


class Stopped:
    """One system, in one go and in parts."""

    def __init__(self, system: str, folder: Path, settings: Settings | None = None) -> None:
        """`settings` replace some of its own."""
        env, own = CASES[system]
        given = {**COMMON, **own, **(settings or {})}
        self._settings = {name: value for name, value in given.items() if value is not None}
        if system in OF_DATA:
            self._settings["data"] = str(data_set(folder, env))
        self._system, self._folder, self._env = system, folder, env
        self.rounds, self.hashes = self._ends(self._run("whole"))

    def _run(self, name: str, until: int | None = None) -> Path:
        config = configure(self._system, self._env, {**self._settings, "run_dir": str(self._folder / name)})
        return execute(config, config.env, until=until).directory

    @staticmethod
    def _ends(run: Path) -> tuple[int, dict[str, str]]:
        checkpoint = CheckpointStore(run / "checkpoints").latest()
        assert checkpoint is not None
        metadata = read_manifest(checkpoint)["metadata"]
        return metadata[ROUNDS], metadata[HASHES]

    def differences(self, *stops: int) -> list[str]:
        """The roles whose state is another one at the end of a run that was stopped after so many rounds."""
        name = f"stopped-{'-'.join(map(str, stops))}"
        run = self._run(name, stops[0])
        for until in (*stops[1:], None):
            system, config = saved_config(run, trust=True)
            summary = execute(config, config.env, run, system=system, until=until).summary
            if summary.to_dict()["resumed"] != "exact":
                return [str(summary.to_dict()["resumed"])]
        rounds, hashes = self._ends(run)
        roles = sorted(hashes.keys() | self.hashes.keys())
        wrong = [role for role in roles if hashes.get(role) != self.hashes.get(role)]
        return wrong if rounds == self.rounds else [f"{rounds} rounds instead of {self.rounds}", *wrong]


def data_set(folder: Path, env: str) -> Path:
    """Some episodes of a random policy, recorded once."""
    path = folder / f"data-{env}"
    if not path.exists():
        play(Playing("random", path, env=env, episodes=12 if env == "CartPole-v1" else 2))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--stops", type=int, default=20)
    parser.add_argument("--systems", nargs="*", default=list(CASES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    print(f"{'system':<14} {'rounds':>7} {'stops':>6} {'equal':>6}  seconds")
    for system in arguments.systems:
        began, draw = time.monotonic(), random.Random(f"{arguments.seed} {system}")
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            stopped = Stopped(system, Path(folder))
            stops = sorted(draw.sample(range(1, stopped.rounds), min(arguments.stops, stopped.rounds - 1)))
            wrong = {stop: found for stop in stops if (found := stopped.differences(stop))}
        rows.append({"system": system, "rounds": stopped.rounds, "stops": len(stops), "equal": len(stops) - len(wrong)})
        print(
            f"{system:<14} {stopped.rounds:>7} {len(stops):>6} {len(stops) - len(wrong):>6}  "
            f"{time.monotonic() - began:.0f}", flush=True,
        )
        for stop, found in wrong.items():
            print(f"    stopped after {stop} rounds: {', '.join(found)}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"pappus": pappus.__version__, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
