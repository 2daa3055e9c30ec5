"""Times the peers on this machine, each in its own environment and processes.

Prints a line per setting:

    python -m benchmarks.peers.run --env CartPole-v1 --seconds 20
    python -m benchmarks.peers.run --family dqn
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import HERE, PeerError, ensure_environment, peers_root
from benchmarks.peers.measuring import GRACE_SECONDS, Setting, kill, processes

WARMUP_SECONDS = 10.0
LINGER_SECONDS = 5.0
"""How long helpers of a finished run may take to end by themselves."""


@dataclass(frozen=True)
class Peer:
    """A script, and for each env the (workers, envs per worker) settings that are worth timing."""

    script: str
    settings: Mapping[str, Sequence[tuple[int, int]]]


ACTOR_CRITICS = {
    "rllib": Peer("rllib_impala.py", {"CartPole-v1": [(2, 64), (2, 128)], "ALE/Pong-v5": [(2, 8)]}),
    "sample_factory": Peer("sample_factory_appo.py", {"CartPole-v1": [(2, 64)], "ALE/Pong-v5": [(2, 8)]}),
    "sb3": Peer("sb3_ppo.py", {"CartPole-v1": [(1, 16), (1, 64), (1, 256)], "ALE/Pong-v5": [(1, 8)]}),
}
DQNS = {
    "rllib": Peer("rllib_dqn.py", {"CartPole-v1": [(1, 4), (1, 16)]}),
    "sb3": Peer("sb3_dqn.py", {"CartPole-v1": [(1, 4), (1, 16)]}),
    "tianshou": Peer("tianshou_dqn.py", {"CartPole-v1": [(1, 4), (1, 16)]}),
}
FAMILIES: Mapping[str, Mapping[str, Peer]] = {"actor-critic": ACTOR_CRITICS, "dqn": DQNS}


@dataclass(frozen=True)
class PeerResult:
    """Agent steps per second of one setting; `error` says in a sentence why there are none.

    Updates per second are 0 where nobody counts them.
    """

    peer: str
    env: str
    workers: int
    envs: int
    version: str = ""
    steps_per_second: float = 0.0
    updates_per_second: float = 0.0
    window_seconds: float = 0.0
    steps: int = 0
    error: str | None = None


def measure_peers(
    env: str, seconds: float, peers: Mapping[str, Peer] = ACTOR_CRITICS, warmup: float = WARMUP_SECONDS
) -> list[PeerResult]:
    """Every setting of every peer, one after the other; a peer that fails is a result with an error."""
    unknown = [name for name, peer in peers.items() if env not in peer.settings]
    if unknown:
        raise ValueError(f"no setting of {', '.join(unknown)} for env {env!r}; FAMILIES lists those that there are")
    # All installs come first: none runs beside a measurement.
    pythons = {name: python_or_error(name) for name in peers}
    return [
        _measure(name, peer.script, pythons[name], Setting(env, seconds, warmup, envs, workers))
        for name, peer in peers.items()
        for workers, envs in peer.settings[env]
    ]


def python_or_error(peer: str) -> Path | PeerError:
    """The peer's own python, or why there is none."""
    try:
        return ensure_environment(peer)
    except PeerError as error:
        return error


def _measure(peer: str, script: str, python: Path | PeerError, setting: Setting) -> PeerResult:
    try:
        if isinstance(python, PeerError):
            raise python
        return _run(peer, script, python, setting)
    except (PeerError, OSError, ValueError) as error:
        return PeerResult(peer, setting.env, setting.workers, setting.envs, error=str(error))


def _run(peer: str, script: str, python: Path, setting: Setting) -> PeerResult:
    command = [str(python), str(HERE / script), f"--env={setting.env}"]
    command += [f"--seconds={setting.seconds}", f"--warmup={setting.warmup}"]
    command += [f"--envs={setting.envs}", f"--workers={setting.workers}"]
    name = f"{Path(script).stem}-{setting.env.replace('/', '-')}-{setting.workers}x{setting.envs}.log"
    # The script gives up by itself at its deadline; this limit is for one that cannot.
    return PeerResult(**run_script(peer, command, name, setting.deadline + GRACE_SECONDS))


def run_script(peer: str, command: Sequence[str], log_name: str, deadline: float) -> dict[str, Any]:
    """What a peer's script prints as JSON; its other output goes to a log beside the environments."""
    log = peers_root() / "logs" / log_name
    log.parent.mkdir(parents=True, exist_ok=True)
    # Peers leave things in the home and temporary folders, so they get one that goes when they go.
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryFile() as stdout, log.open("wb") as stderr:
        process = subprocess.Popen(
            command,
            cwd=home,
            env={**os.environ, "HOME": home, "TMPDIR": home},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            process.wait(deadline)
        except subprocess.TimeoutExpired:
            raise PeerError(f"{peer} did not end within {deadline:.0f} s; see {log}") from None
        finally:
            _end(process)
        stdout.seek(0)
        lines = stdout.read().decode().splitlines()
    if process.returncode != 0 or len(lines) != 1:
        raise PeerError(f"{peer} exited with {process.returncode}: {_last_line(log)}; see {log}")
    result: dict[str, Any] = json.loads(lines[0])
    return result


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stops a script that still runs, and leaves nothing of its session behind."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(2 * GRACE_SECONDS)
    patience = time.monotonic() + LINGER_SECONDS
    while (session := processes(lambda _pid, _parent, session: session == process.pid)) and time.monotonic() < patience:
        time.sleep(0.1)
    kill(session)
    process.wait()


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"


def print_table(results: Sequence[PeerResult]) -> None:
    """One line per setting."""
    print(f"{'peer':<16}{'version':<10}{'workers × envs':<16}{'steps/s':>10}{'updates/s':>11}{'window':>10}")
    for result in results:
        row = f"{result.peer:<16}{result.version:<10}{f'{result.workers} × {result.envs}':<16}"
        rate = f"{result.steps_per_second:>10,.0f}{result.updates_per_second:>11,.0f}{result.window_seconds:>8.1f} s"
        print(row + (rate if result.error is None else f"  {result.error}"))


def main() -> int:
    """Prints the table; fails when a peer did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each timed window")
    parser.add_argument("--warmup", type=float, default=WARMUP_SECONDS, help="seconds of training before it")
    parser.add_argument("--family", choices=tuple(FAMILIES), default="actor-critic")
    parser.add_argument("--peers", nargs="+", help="some of the family; all by default")
    args = parser.parse_args()
    family = FAMILIES[args.family]
    unknown = [name for name in args.peers or () if name not in family]
    if unknown:
        parser.error(f"no {args.family} of {', '.join(unknown)}; use {', '.join(family)}")
    results = measure_peers(args.env, args.seconds, {name: family[name] for name in args.peers or family}, args.warmup)
    print_table(results)
    return int(any(result.error for result in results))


if __name__ == "__main__":
    sys.exit(main())
