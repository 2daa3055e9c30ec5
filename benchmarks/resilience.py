"""Does a run survive its parts, and does it stay the same size?

    python -m benchmarks.resilience kill --seconds 60      kill -9 on a random one of three actors every two seconds
    python -m benchmarks.resilience memory --seconds 600   MiB per minute of every process, by a straight line
    python -m benchmarks.resilience join                   actors join over the wire and leave, 100 times at random
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from pappus.telemetry.processes import resident_bytes

KILL_EVERY = 2.0


def server_of(main: int) -> int:
    """The process that the roles' processes are forked from."""
    listing = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listing.splitlines()[1:]]
    return next(int(row[0]) for row in rows if int(row[1]) == main and "forkserver" in row[2])


def processes(main: int) -> dict[str, int]:
    """The processes of a run, by role."""
    listing = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listing.splitlines()[1:]]
    servers = {row[0] for row in rows if int(row[1]) == main}
    return {row[2].removeprefix("pappus ").strip(): int(row[0]) for row in rows if row[1] in servers}


def start(directory: Path, *words: str, system: str = "impala") -> subprocess.Popen[bytes]:
    """An endless training."""
    env = ["--env", "CartPole-v1", "--steps", str(10**12)]
    command = [sys.executable, "-m", "pappus", "train", system, *env, *words]
    training = subprocess.Popen([*command, "--run-dir", str(directory)], stdout=subprocess.DEVNULL)
    while not rows_of(directory) and training.poll() is None:
        time.sleep(0.1)
    return training


def rows_of(directory: Path) -> list[dict[str, float]]:
    """What is logged so far."""
    path = directory / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [row for row in map(json.loads, lines) if row["step"] > 0]


def stop(training: subprocess.Popen[bytes], pids: set[int]) -> None:
    """Ctrl-C, and what is left afterwards."""
    training.send_signal(signal.SIGINT)
    code = training.wait(60)
    time.sleep(1)
    left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    print(f"exit code {code}; processes left: {len(left)}; files in /dev/shm: {len(os.listdir('/dev/shm'))}")


def kill(seconds: float) -> None:
    """Kill actors and time their return."""
    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent) / "run"
        training = start(directory, "--actors", "3", "--envs-per-actor", "32", "--optimizer.learning-rate", "1e-3")
        deadline, away, pids = time.monotonic() + seconds, [], set()
        while time.monotonic() < deadline:
            found = processes(training.pid)
            pids |= set(found.values())
            name = random.choice([role for role in found if role.startswith("actor")])
            os.kill(found[name], signal.SIGKILL)
            died = time.monotonic()
            while processes(training.pid).get(name, found[name]) == found[name]:
                time.sleep(0.01)
            away.append(time.monotonic() - died)
            time.sleep(max(0.0, died + KILL_EVERY - time.monotonic()))
        rows = rows_of(directory)
        print(f"{len(away)} kills; back after {np.mean(away):.2f} s on average, {max(away):.2f} s at most")
        print(f"steps {rows[-1]['step']:,.0f}; mean return first {rows[0].get('charts/episodic_return', 0):.1f}, "
              f"last {rows[-1]['charts/episodic_return']:.1f}")
        stop(training, pids)


def join(times: int, at_once: int = 3) -> None:
    """Actors come and go, some of them without farewell; every step is trained on or counted as dropped."""
    with tempfile.TemporaryDirectory() as parent:
        directory, address = Path(parent) / "run", f"unix:{parent}/wire"
        words = ["--listen", address, "--envs-per-actor", "32", "--optimizer.learning-rate", "1e-3"]
        training = start(directory, *words, system="seed-vtrace")
        before = sizes_of(training.pid)
        rng, actors, joined, killed = random.Random(1), list[subprocess.Popen[bytes]](), 0, 0
        while joined < times or actors:
            if joined < times and len(actors) < at_once:
                envs = str(rng.choice([1, 4, 8, 16]))
                command = [sys.executable, "-m", "pappus", "actor", "--connect", address, "--env", "CartPole-v1"]
                command += ["--envs", envs, "--env-groups", "1"]
                actors.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
                joined += 1
            time.sleep(rng.uniform(0.2, 0.8))
            if len(actors) == at_once or joined == times:
                leaving = actors.pop(rng.randrange(len(actors)))
                signal_number = rng.choice([signal.SIGINT, signal.SIGKILL])
                killed += signal_number == signal.SIGKILL
                leaving.send_signal(signal_number)
                leaving.wait()
        time.sleep(3)  # until the last departure is logged
        rows, after = rows_of(directory), sizes_of(training.pid)
        print(f"{joined} actors joined and left, {killed} of them killed")
        print(f"mean return first {rows[0].get('charts/episodic_return', 0):.1f}, "
              f"last {rows[-1]['charts/episodic_return']:.1f}; envs at the end {rows[-1]['inference/envs']:.0f}")
        for name, (size, files) in after.items():
            print(f"{name:12s} {before[name][0]:8.1f} → {size:8.1f} MiB, descriptors {before[name][1]} → {files}")
        stop(training, set(processes(training.pid).values()))
        summary = json.loads((directory / "summary.json").read_text())
        print(f"accounts: {summary['accounts']}")


def sizes_of(main: int) -> dict[str, tuple[float, int]]:
    """MiB and open descriptors of every process of a run."""
    watched = {"main": main, "forkserver": server_of(main), **processes(main)}
    return {
        name: ((resident_bytes(pid) or 0) / 2**20, len(os.listdir(f"/proc/{pid}/fd"))) for name, pid in watched.items()
    }


def memory(seconds: float, system: str, words: list[str]) -> None:
    """The slope of every process's memory, the first fifth left out as warm-up."""
    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent) / "run"
        training = start(directory, "--optimizer.no-anneal", *words, system=system)
        watched = {"main": training.pid, "forkserver": server_of(training.pid), **processes(training.pid)}
        times, sizes = [], []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            times.append(time.monotonic() / 60)
            sizes.append([(resident_bytes(pid) or 0) / 2**20 for pid in watched.values()])
            time.sleep(2)
        warm = len(times) // 5
        minutes, table = np.array(times[warm:]), np.array(sizes[warm:])
        for name, column in zip(watched, table.T, strict=True):
            slope = np.polyfit(minutes - minutes[0], column, 1)[0]
            print(f"{name:12s} {column[0]:8.1f} MiB → {column[-1]:8.1f} MiB   slope {slope:+.3f} MiB/min")
        steps = rows_of(directory)[-1]["step"]
        print(f"over the last {minutes[-1] - minutes[0]:.1f} of {seconds / 60:.0f} min; {steps:,.0f} steps")
        stop(training, set(watched.values()) - {training.pid})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["kill", "memory", "join"])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--system", default="impala", help="whose memory is watched")
    parser.add_argument("options", nargs="*", help="options of `pappus train`, behind --")
    arguments = parser.parse_args()
    if arguments.what == "kill":
        kill(arguments.seconds)
    elif arguments.what == "join":
        join(100)
    else:
        memory(arguments.seconds, arguments.system, arguments.options)


if __name__ == "__main__":
    main()
