"""Data that is larger than the memory that its table may take: does the learner wait, and does memory grow?

    python -m benchmarks.offline_streaming [--rows wide|frames] [--times 4] [--seconds 60]

A synthetic set of wide vectors (512 numbers) or frames (84 × 84) is written, `times` as large as the limit, and
streamed by `dqn@offline` in processes. Printed every few seconds: updates/s, the shares of their time that learner
and reader wait for replay, and that they are ready and the machine has no core for them, what the reader reads, the
resident memory of all processes, and how many seconds requests for batches have waited for new data so far.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from gymnasium import spaces

import pappus
from pappus.data.dataset import DatasetWriter, open_dataset
from pappus.data.episode import Episode
from pappus.envs.spaces import action_converter, observation_converter
from pappus.types import EnvSpec

LIMIT = {"wide": 32 << 20, "frames": 64 << 20}
LENGTH = 500
"""Steps of an episode."""
ACTIONS = 4


def observation_space(rows: str) -> spaces.Box:
    if rows == "frames":
        return spaces.Box(0, 255, (84, 84), np.uint8)
    return spaces.Box(-np.inf, np.inf, (512,), np.float32)


def write_set(directory: Path, rows: str, nbytes: int) -> None:
    """Noise, as many episodes as make so many bytes."""
    space, choices, rng = observation_space(rows), spaces.Discrete(ACTIONS), np.random.default_rng(0)
    action, to_env_action = action_converter(choices)
    spec = EnvSpec(observation_converter(space, action)[0], action)

    def episodes() -> Iterator[Episode]:
        for _ in range(max(1, nbytes // (LENGTH * spec.observation.nbytes))):
            shown = rng.integers(0, 255, (LENGTH + 1, *space.shape)).astype(space.dtype)
            reward = rng.normal(size=LENGTH).astype(np.float32)
            yield Episode(shown, rng.integers(0, ACTIONS, LENGTH), reward, False, True)

    DatasetWriter(directory, spec, space, choices).add(episodes(), to_env_action)


def lines_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", choices=sorted(LIMIT), default="wide")
    parser.add_argument("--times", type=float, default=4.0, help="size of the set, in memory limits")
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    limit = LIMIT[arguments.rows]
    with tempfile.TemporaryDirectory() as folder:
        data, run = Path(folder) / "data", Path(folder) / "run"
        write_set(data, arguments.rows, int(arguments.times * limit))
        found = open_dataset(data)
        print(f"{found.num_episodes} episodes, {found.num_steps:,} steps; the table may take {limit >> 20} MiB")
        summary = pappus.train(
            "dqn@offline", data=data, steps=10_000_000, seconds=arguments.seconds, run_dir=run, runtime="local",
            **{"topology.memory": f"{limit >> 20}MiB", "batch_size": 128},
        ).summary
        show(lines_of(run), summary.steps_per_second)


def shares(line: dict[str, Any], role: str, width: int) -> str:
    """Of its time, how much a role waits for replay, and how much it is ready to run and the machine has no core."""
    waits, queued = (100 * line.get(f"{role}/waiting_for_{what}", 0.0) for what in ("replay", "a_core"))
    return f"{waits:{width}.1f} %  {queued:9.1f} %"


def show(lines: list[dict[str, Any]], updates: float) -> None:
    """A line every tenth of the run, and the means of its second half."""
    trained = [line for line in lines if line.get("charts/SPS")]
    print("   s   updates/s   learner waits   has no core   reader waits   has no core   read steps/s  MiB   data late")
    for line in trained[:: max(1, len(trained) // 10)]:
        memory = sum(value for name, value in line.items() if name.startswith("memory/"))
        print(
            f"{line['time'] - lines[0]['time']:4.0f}  {line['charts/SPS']:10.0f}  "
            f"{shares(line, 'learner', 12)}  {shares(line, 'reader', 11)}  "
            f"{line.get('reader/steps_read_per_second', 0.0):13.0f}  {memory:4.0f}  "
            f"{line.get('replay/samples_waited', 0.0):9.2f} s"
        )
    late = trained[len(trained) // 2 :]
    waits = fmean(line.get("learner/waiting_for_replay", 0.0) for line in late)
    first, last = late[0], late[-1]
    waited = last["replay/samples_waited"] - first["replay/samples_waited"]
    print(
        f"{updates:.0f} updates/s; in the second half the learner waits {100 * waits:.1f} % of its time, and requests "
        f"for batches waited {100 * waited / (last['time'] - first['time']):.1f} % of it for new data"
    )


if __name__ == "__main__":
    main()
