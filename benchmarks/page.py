"""What does the page of a run cost it?

    python -m benchmarks.page
    python -m benchmarks.page --runtime inline --seconds 240
    python -m benchmarks.page --file runs/…

For a few seconds a run looks at itself, serves its page and sends events to a client; for as long it does nothing of
that, and so on in turn within one run: runs differ from each other by more than what is looked for. The first figure
compares the env steps of neighbouring stretches, with the standard error over all pairs. The second, what the threads
of the page compute as a share of one core, is all that they can take from anybody; what a look takes is in the third.
With `--file`, how long it takes to write the page of a run, and how large it is.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any
from urllib.request import urlopen

import pappus
from benchmarks.hooks import InTurn
from pappus.page import serving
from pappus.page.folder import OneRun
from pappus.page.following import MOST_METRICS, FollowedRun
from pappus.page.running import MOST_AT_END, RunPage
from pappus.page.server import PageServer

CLIENT = "--client"


class Looks:
    """`RunPage.update` in every second stretch, and how long it took."""

    def __init__(self, in_turn: InTurn) -> None:
        self._in_turn, self._update = in_turn, RunPage.update
        self.seconds: list[float] = []

    def update(self, page: RunPage, phase: Any, scalars: Mapping[str, float]) -> None:
        if self._in_turn.passes(time.time()) or phase == "over":
            began = time.perf_counter()
            self._update(page, phase, scalars)
            self.seconds.append(time.perf_counter() - began)


class Threads:
    """What the threads of the server compute."""

    def __init__(self) -> None:
        self.seconds, self._lock = 0.0, threading.Lock()
        for name in ("process_request_thread", "_look", "serve_forever"):
            setattr(PageServer, name, self._counted(getattr(PageServer, name)))

    def _counted(self, work: Any) -> Any:
        def counted(*arguments: Any) -> None:
            try:
                work(*arguments)
            finally:
                with self._lock:
                    self.seconds += time.thread_time()

        return counted


def read_events(url: str, in_turn: InTurn) -> None:
    """A browser that follows the run in every second stretch; it ends with the server."""
    while True:
        if not in_turn.passes(time.time()):
            time.sleep(0.05)
            continue
        try:
            with urlopen(f"{url}events", timeout=30) as events:
                while in_turn.passes(time.time()) and events.readline():
                    pass
        except OSError:
            return


def file_cost(run: Path) -> None:
    for what, most in (("at its end", MOST_AT_END), ("by pappus page", MOST_METRICS)):
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(3):
                began = time.perf_counter()
                serving.write_page(OneRun(FollowedRun(run, most)), Path(folder) / "page.html")
                seconds = time.perf_counter() - began
            size = (Path(folder) / "page.html").stat().st_size
        print(f"the page of {run}, written {what}, takes {1e3 * seconds:.0f} ms and {size / 2**20:.2f} MiB")


def main() -> None:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", default="impala")
    parser.add_argument("--runtime", default="local")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--stretch", type=float, default=4.0)
    parser.add_argument("--file", help="run directory whose page is written")
    parser.add_argument(CLIENT, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    in_turn = InTurn(arguments.stretch)
    if arguments.file:
        return file_cost(Path(arguments.file))
    if arguments.client:
        return read_events(arguments.client, in_turn)
    looks, threads, clients = Looks(in_turn), Threads(), list[subprocess.Popen[bytes]]()
    RunPage.update = lambda page, phase, scalars: looks.update(page, phase, scalars)  # type: ignore[method-assign]
    command = [sys.executable, "-m", "benchmarks.page", "--stretch", str(arguments.stretch), CLIENT]
    serving.tell = lambda url: clients.append(subprocess.Popen([*command, url]))
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        result = pappus.train(
            arguments.system, "CartPole-v1", {"evaluation.episodes": 1}, runtime=arguments.runtime,
            seconds=arguments.seconds, steps=10**10, run_dir=Path(folder) / "run", page=True,
        )
        learning = result.metrics["step"] > 0
        ratios = in_turn.ratios(result.metrics["time"][learning], result.metrics["step"][learning])
    for client in clients:
        client.wait()
    logs = [math.log(ratio) for ratio in ratios]
    middle, error = math.exp(mean(logs)), stdev(logs) / math.sqrt(len(logs))
    print(f"{len(ratios)} pairs of {arguments.stretch:g} s, load {load:.1f} → {os.getloadavg()[0]:.1f}")
    print(f"speed with / without: geometric mean {middle:.3f} ± {error:.3f}, median {median(ratios):.3f}")
    print(f"the page's threads compute {100 * 2 * threads.seconds / result.summary.wall_seconds:.2f} % of a core")
    print(f"a look takes {1e3 * median(looks.seconds):.2f} ms in the median of {len(looks.seconds)}")


if __name__ == "__main__":
    main()
