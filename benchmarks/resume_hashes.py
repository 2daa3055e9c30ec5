"""Are inline runs resumed to the bit? Stops every system at random rounds and compares the hashes of all state.

    python -m benchmarks.resume_hashes [--stops 20] [--cases dqn impala …] [--seed 1] [--json FILE]

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
from typing import Any, NamedTuple

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
    "steps": 400, "batch_size": 8, "topology.replay.capacity": 150, "topology.replay.warm_up": 40,
    "topology.replay.samples_per_insert": 3.0, "topology.replay.tolerance": 4.0,
}
MANY: Settings = {**REPLAY, "actors": 2, "topology.refresh_every": 30}
CROSSQ: Settings = {"algorithm.critic_sizes": (16, 16), "algorithm.renorm_after": 30}
"""Moments begin to correct batches in the middle of the run."""
R2D2: Settings = {
    **REPLAY, "actors": 2, "network.core": "lstm", "network.core_size": 8, "algorithm.burn_in": 2,
    "algorithm.length": 6, "algorithm.period": 3, "topology.replay.capacity": 60, "topology.replay.warm_up": 10,
}
UNROLLS: Settings = {"steps": 900, "actors": 3, "batch_size": 6}
"""Two of three actors feed each batch: whose turn it is must be remembered."""
EPOCHS: Settings = {"steps": 600, "actors": 2, "algorithm.epochs": 2, "algorithm.minibatches": 2}
SEED: Settings = {"topology.env_groups": 1}
OFFLINE: Settings = {"steps": 40, "batch_size": 8}


class Case(NamedTuple):
    """A system, and the settings that make it small."""

    system: str
    env: str
    settings: Settings


SYSTEMS: dict[str, Case] = {
    case.system: case for case in (
        Case("impala", "CartPole-v1", {**UNROLLS, "network.core": "lstm", "network.core_size": 8}),
        Case("appo", "CartPole-v1", UNROLLS),
        Case("seed-vtrace", "CartPole-v1", {**UNROLLS, **SEED}),
        Case("seed-appo", "Pendulum-v1", {**UNROLLS, **SEED}),
        Case("ppo", "CartPole-v1", EPOCHS),
        Case("ppo@seed", "CartPole-v1", {**EPOCHS, **SEED}),
        Case("pqn", "CartPole-v1", EPOCHS),
        Case("a2c", "Pendulum-v1", {"steps": 900, "actors": 2}),
        Case("a3c", "CartPole-v1", {"steps": 900, "actors": 3}),
        Case("apex-dqn", "CartPole-v1", {**MANY, "algorithm.n_step": 3}),
        *(Case(name, "Pendulum-v1", MANY) for name in ("apex-ddpg", "apex-d4pg", "fast-td3", "apex-sac")),
        Case("apex-crossq", "Pendulum-v1", {**MANY, **CROSSQ}),
        Case("r2d2", "CartPole-v1", {**R2D2, "topology.refresh_every": 30}),
        Case("seed-r2d2", "CartPole-v1", {**R2D2, **SEED}),
        Case("gorila-dqn", "CartPole-v1", {**MANY, "topology.shards": 2}),
        Case("dqn", "CartPole-v1", REPLAY),
        *(Case(name, "Pendulum-v1", REPLAY) for name in ("ddpg", "td3", "d4pg", "sac")),
        Case("crossq", "Pendulum-v1", {**REPLAY, **CROSSQ}),
        *(Case(name, "CartPole-v1", OFFLINE) for name in ("bc", "filtered-bc", "cql-dqn")),
        *(Case(name, "Pendulum-v1", OFFLINE) for name in ("td3-bc", "rebrac", "iql", "awac", "cql")),
    )
}
"""Every system."""
VARIANTS: dict[str, Case] = {
    "impala, 2 learners": Case("impala", "CartPole-v1", {**UNROLLS, "learners": 2, "actors": 4}),
    "ppo, 2 learners": Case("ppo", "CartPole-v1", {**EPOCHS, "learners": 2, "envs_per_actor": 4}),
    "seed-vtrace, 2 groups": Case("seed-vtrace", "CartPole-v1", {
        **UNROLLS, "envs_per_actor": 4, "batch_size": 8, "topology.env_groups": 2,
    }),
    "a3c, serialised": Case("a3c", "CartPole-v1", {
        "steps": 900, "actors": 3, "topology.updates": "serialised", "topology.shards": 2,
    }),
    "gorila-dqn, central": Case("gorila-dqn", "CartPole-v1", {**MANY, "topology.replay_memory": "central"}),
    "apex-dqn, and data": Case("apex-dqn", "CartPole-v1", {**MANY, "data_share": 0.5}),
    "dqn, evaluated": Case("dqn", "CartPole-v1", {**REPLAY, "evaluation.every_steps": 100}),
    "dqn, by rank": Case("dqn", "CartPole-v1", {
        **REPLAY, "topology.replay.sampler": "max_heap", "topology.replay.remover": "uniform",
    }),
}
"""What systems can be made of beside their defaults."""
CASES: dict[str, Case] = {**SYSTEMS, **VARIANTS}


class Stopped:
    """One system, in one go and in parts."""

    def __init__(self, name: str, folder: Path) -> None:
        self._system, self._env, own = CASES[name]
        self._folder, self._settings = folder, {**COMMON, **own}
        if PAIRS.get(self._system, "").endswith("@offline") or "data_share" in own:
            self._settings["data"] = str(data_set(folder, self._env))
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
            summary = execute(config, config.env, run, system=system, until=until).summary.to_dict()
            if summary["resumed"] != "exact" or not summary.get("accounts", {}).get("balanced", True):
                return [str(summary["resumed"]), str(summary.get("accounts"))]
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
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    print(f"{'system':<22} {'rounds':>7} {'stops':>6} {'equal':>6}  seconds")
    for name in arguments.cases:
        began, draw = time.monotonic(), random.Random(f"{arguments.seed} {name}")
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            stopped = Stopped(name, Path(folder))
            stops = sorted(draw.sample(range(1, stopped.rounds), min(arguments.stops, stopped.rounds - 1)))
            wrong = {stop: found for stop in stops if (found := stopped.differences(stop))}
        rows.append({"system": name, "rounds": stopped.rounds, "stops": len(stops), "equal": len(stops) - len(wrong)})
        print(
            f"{name:<22} {stopped.rounds:>7} {len(stops):>6} {len(stops) - len(wrong):>6}  "
            f"{time.monotonic() - began:.0f}", flush=True,
        )
        for stop, found in wrong.items():
            print(f"    stopped after {stop} rounds: {', '.join(found)}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"pappus": pappus.__version__, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
