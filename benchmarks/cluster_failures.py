"""What happens when parts of a cluster die: a run on three nodes of this machine, whose parts are killed with -9.

    python -m benchmarks.cluster_failures                                      # impala: node, learner; about 4 minutes
    python -m benchmarks.cluster_failures --system apex-dqn --kill node learner replay
    python -m benchmarks.cluster_failures --kill actor node agent registry

The first node has driver, learner and all others; the actors are on two more. `node` kills the raylet of one of them,
and `--away` seconds later starts another with the same resources. The gap is the longest time without an update after
the kill, `back after` the time until as many actors as before (or the killed role) are there again; of a learner, the
steps since the checkpoint that it went on from are lost. More than 30 s of either is TOO LONG. What ends a run (the
registry) shows how it ends, and how long that takes.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.architecture_runs import Row
from benchmarks.ray_nodes import RayNodes, ray_nodes, rows_of
from benchmarks.throughput import provenance

TOO_LONG = 30.0
START_SECONDS = 120.0
FOREVER = 10**12
CHECKPOINT_SECONDS = 10.0
ENV = "CartPole-v1"
WHATS = ("node", "actor", "learner", "replay", "inference", "node_agent", "registry")


@dataclass
class Finding:
    """What came of one kill."""

    what: str
    gap: float
    back: float | None
    """None if it did not come back in the time."""
    lost: float
    """Steps that were made again."""
    before: float
    after: float
    """Mean returns of training episodes."""
    remark: str = ""

    @property
    def verdict(self) -> str:
        """Whether anything took too long."""
        late = self.back is None or max(self.gap, self.back) > TOO_LONG
        return self.remark or ("TOO LONG" if late else "ok")


class Training:
    """One `pappus train` on the cluster, which nothing ends but us."""

    def __init__(self, nodes: RayNodes, system: str, actors: int, words: Sequence[str], directory: Path) -> None:
        self.nodes, self._directory, self._actors = nodes, directory, actors
        command = [
            sys.executable, "-m", "pappus", "train", system, "--env", ENV, "--steps", str(FOREVER),
            "--checkpoint.every-seconds", str(CHECKPOINT_SECONDS), "--run-dir", str(directory), "--actors", str(actors),
            *nodes.place(system, ENV), *words,
        ]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def rows(self) -> list[Row]:
        """What is logged of the training so far."""
        return [row for row in rows_of(self._directory) if row["step"] > 0 and "charts/updates" in row]

    def log(self) -> list[str]:
        """Lines of log.txt."""
        return (self._directory / "log.txt").read_text().splitlines()

    def saved(self) -> bool:
        """Whether there is a checkpoint of something learnt."""
        found = (self._directory / "checkpoints").glob("step-*")
        return any(path.name.removeprefix("step-").lstrip("0").isdigit() for path in found)

    def actors(self) -> int:
        """Roles that step envs and live."""
        return sum(kind_of(name) in ("actor", "bundle", "worker") for name in self.nodes.roles())

    def complete(self) -> bool:
        """Whether all actors are there."""
        return self.actors() == self._actors

    def until(self, holds: Callable[[], bool], seconds: float) -> float | None:
        """Seconds until something holds; None if it does not in the time, or the run is over before."""
        began = time.monotonic()
        while time.monotonic() < began + seconds and self.process.poll() is None:
            if holds():
                return time.monotonic() - began
            time.sleep(0.05)
        return None

    def stop(self) -> int:
        """Ctrl-C; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def kind_of(process: str) -> str:
    """`actor` for `actor-3`."""
    return process.rstrip("0123456789").removesuffix("-")


def kill_node(training: Training, arguments: argparse.Namespace) -> Finding:
    """A far node goes, and later another one comes."""
    before, killed = training.rows(), time.time()
    node = training.nodes.far[0]
    mine = sum(one.node == node.node_ip_address for one in training.nodes.roles().values())
    training.nodes.kill(node)
    time.sleep(arguments.away)
    alone = training.actors()
    training.nodes.add()
    back = training.until(training.complete, 2 * TOO_LONG)
    time.sleep(arguments.rest)
    what = f"node {node.node_ip_address} with {mine} processes; {alone} actors went on for {arguments.away:g} s"
    return found(training, what, before, killed, back)


def kill_role(training: Training, what: str, arguments: argparse.Namespace) -> Finding:
    """One process goes; Ray starts it again."""
    victim = next((one for one in training.nodes.processes() if kind_of(one.name) == what), None)
    if victim is None:
        raise SystemExit(f"this system has no {what}; it has {', '.join(sorted(training.nodes.roles()))}")
    before, living, killed = training.rows(), len(training.nodes.roles()), time.time()
    os.kill(victim.pid, signal.SIGKILL)

    def again() -> bool:
        processes = training.nodes.processes()
        successors = [one for one in processes if one.name == victim.name and one.pid != victim.pid]
        near = what != "node_agent" or any(one.node == victim.node for one in successors)
        return bool(successors) and near and len(training.nodes.roles()) == living and training.complete()

    back = training.until(again, 2 * TOO_LONG)
    time.sleep(arguments.rest if training.process.poll() is None else 0.0)
    return found(training, f"{victim.name} on {victim.node}", before, killed, back)


def found(training: Training, what: str, before: Sequence[Row], killed: float, back: float | None) -> Finding:
    """What the run's own files say of the time since."""
    after = [row for row in training.rows() if row["time"] > killed]
    finding = Finding(what, gap(before, after, killed), back, lost(before, after), returns(before), returns(after))
    if training.process.poll() is not None:
        took = (after[-1]["time"] if after else killed) - killed
        finding.remark = f"the run ended, exit code {training.process.returncode}, last line after {took:.1f} s"
    return finding


def gap(before: Sequence[Row], after: Sequence[Row], killed: float) -> float:
    """The longest time without an update, from the kill to now; a count that falls is no update."""
    pairs = itertools.pairwise([*before[-1:], *after])
    progress = [row["time"] for last, row in pairs if row["charts/updates"] > last["charts/updates"]]
    times = [killed, *progress, after[-1]["time"] if after else killed]
    return max(later - earlier for earlier, later in itertools.pairwise(times))


def lost(before: Sequence[Row], after: Sequence[Row]) -> float:
    """Steps by which the count fell."""
    counts = [row["step"] for row in (*before[-1:], *after)]
    return max([0.0, *(then - now for then, now in itertools.pairwise(counts))])


def returns(rows: Sequence[Row]) -> float:
    """The newest mean return."""
    known = [row["charts/episodic_return"] for row in rows if row.get("charts/episodic_return") is not None]
    return known[-1] if known else float("nan")


def fail(nodes: RayNodes, what: str, arguments: argparse.Namespace, directory: Path) -> tuple[Finding, int, list[str]]:
    """A run of its own for one kill."""
    training = Training(nodes, arguments.system, arguments.actors, arguments.options, directory)
    try:
        steady = training.until(lambda: training.saved() and training.complete(), START_SECONDS)
        if steady is None:
            nan, code = float("nan"), training.process.poll()
            why = f"only {training.actors()} actors, or no checkpoint" if code is None else f"exit code {code}"
            finding = Finding(what, nan, None, nan, nan, nan, f"not killed: the run did not begin ({why})")
        else:
            time.sleep(arguments.rest)
            finding = kill_node(training, arguments) if what == "node" else kill_role(training, what, arguments)
    finally:
        code = training.stop()
    return finding, code, training.log()


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", default="impala")
    parser.add_argument("--kill", nargs="+", choices=WHATS, default=["node", "learner"])
    parser.add_argument("--actors", type=int, default=4)
    parser.add_argument("--away", type=float, default=15.0, help="seconds before a lost node is replaced")
    parser.add_argument("--rest", type=float, default=8.0, help="seconds of training before each kill and after it")
    parser.add_argument("options", nargs="*", help="of `pappus train`, behind --")
    arguments = parser.parse_args(words)
    table = Table(title=f"{arguments.system}, {arguments.actors} actors on two far nodes, everything killed with -9")
    for column in ("killed", "longest gap s", "back after s", "steps lost", "return before", "return at the end", ""):
        table.add_column(column, justify="left" if column in ("killed", "") else "right")
    bad = 0
    for what in arguments.kill:
        with tempfile.TemporaryDirectory() as parent, ray_nodes(3) as nodes:
            finding, code, log = fail(nodes, what, arguments, Path(parent) / "run")
        back = f"{finding.back:.1f}" if finding.back is not None else "never"
        table.add_row(
            finding.what, f"{finding.gap:.1f}", back, f"{finding.lost:,.0f}", f"{finding.before:.1f}",
            f"{finding.after:.1f}", finding.verdict,
        )
        bad += finding.verdict != "ok"
        print(f"{what}: exit code {code} after Ctrl-C (130 is right); the log's last lines:", *log[-8:], sep="\n    ")
    console = Console(width=150)
    console.print(table)
    console.print(provenance())
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
