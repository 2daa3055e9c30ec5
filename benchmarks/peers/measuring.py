"""What the peers' scripts share: their arguments, the timed window, the one line they print, and a sure way out.

Imported by each peer's own python, so standard library only.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from types import FrameType

STARTUP_SECONDS = 120.0
"""Allowance for imports, worker processes and the first training iteration."""
GRACE_SECONDS = 15.0
"""How long a peer may take to shut itself down before its processes are killed."""
KILL_SECONDS = 5.0
"""How long the system may take to end what was killed."""
JANITORS = (b"resource_tracker", b"torch_shm_manager")
"""Processes that unlink the shared memory of others once those have gone, and then end by themselves."""
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Setting:
    """What to run: `envs` is per worker, times are in seconds."""

    env: str
    seconds: float
    warmup: float
    envs: int
    workers: int

    @property
    def deadline(self) -> float:
        """Seconds after which a run is stuck; a slow iteration may overshoot warm-up and window, hence the factor."""
        return STARTUP_SECONDS + 2.0 * (self.warmup + self.seconds)


class Window:
    """The steady part of a run: opens `warmup` seconds after the first count, closes `seconds` later.

    Both ends fall on counts, so the window holds whole training iterations.
    """

    def __init__(self, warmup: float, seconds: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._warmup, self._seconds, self._clock = warmup, seconds, clock
        self._trained_since: float | None = None
        self._opened: tuple[float, int, int] | None = None
        self.elapsed, self.steps, self.updates = 0.0, 0, 0

    @property
    def full(self) -> bool:
        return self._opened is not None and self.elapsed >= self._seconds

    def observe(self, total_steps: int, total_updates: int = 0) -> bool:
        """Takes how many agent steps were learned from so far, and in how many updates where that is of interest.

        Says whether the window is full.
        """
        if self.full:
            return True
        now = self._clock()
        if self._trained_since is None:
            self._trained_since = now
        if self._opened is not None:
            opened, steps, updates = self._opened
            self.elapsed, self.steps, self.updates = now - opened, total_steps - steps, total_updates - updates
        elif now - self._trained_since >= self._warmup:
            self._opened = now, total_steps, total_updates
        return self.full


def measure(
    peer: str,
    package: str,
    defaults: Mapping[str, tuple[int, int]],
    train: Callable[[Setting, Window, str], None],
) -> None:
    """Runs `train(setting, window, scratch folder)` until the window is full, and prints the result.

    `defaults` maps an env to (workers, envs).
    """
    setting = _parse(defaults)
    # Peers and their workers print where they like: stdout is kept for the result and everything else joins stderr.
    result_fd = os.dup(1)
    os.dup2(2, 1)
    window = Window(setting.warmup, setting.seconds)
    # The folder goes last: a worker that is killed late must not write into it anew.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch, _bounded(setting.deadline):
        train(setting, window, scratch)
        if not window.full:
            raise RuntimeError(f"{peer} stopped after {window.elapsed:.1f} s of a window of {setting.seconds:.1f} s")
    result = {
        "peer": peer,
        "version": version(package),
        **{key: value for key, value in asdict(setting).items() if key in ("env", "envs", "workers")},
        "steps_per_second": round(window.steps / window.elapsed, 1),
        "updates_per_second": round(window.updates / window.elapsed, 1),
        "window_seconds": round(window.elapsed, 3),
        "steps": window.steps,
    }
    os.write(result_fd, (json.dumps(result) + "\n").encode())


def processes(selected: Callable[[int, int, int], bool]) -> list[int]:
    """Ids of the living processes for which `selected(pid, parent, session)` holds."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, _, rest = stat.read_text().partition(" (")
        except OSError:  # it ended while we looked
            continue
        state, parent, _, session = rest.rpartition(") ")[2].split()[:4]
        if state not in "ZX" and selected(int(pid), int(parent), int(session)):
            found.append(int(pid))
    return found


def kill(pids: list[int]) -> None:
    """SIGKILL, to those that are still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _parse(defaults: Mapping[str, tuple[int, int]]) -> Setting:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", choices=sorted(defaults), default="CartPole-v1")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the timed window")
    parser.add_argument("--warmup", type=float, default=10.0, help="seconds of training before it")
    parser.add_argument("--envs", type=int, help="per worker")
    parser.add_argument("--workers", type=int)
    args = parser.parse_args()
    workers, envs = defaults[args.env]
    return Setting(args.env, args.seconds, args.warmup, args.envs or envs, args.workers or workers)


@contextmanager
def _bounded(deadline: float) -> Iterator[None]:
    """No process started inside outlives a failure, an interrupt or the deadline."""
    # Orphaned grandchildren become our children, so that walking down from here finds every process.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, _terminate)
    timer = _abort_after(deadline, f"no result after {deadline:.0f} s")
    try:
        yield
    except BaseException:
        _kill_descendants()
        raise
    finally:
        timer.cancel()


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    _abort_after(GRACE_SECONDS, f"did not shut down within {GRACE_SECONDS:.0f} s")
    sys.exit(128 + signal.SIGTERM)


def _abort_after(seconds: float, why: str) -> threading.Timer:
    def abort() -> None:
        print(f"aborted: {why}", file=sys.stderr, flush=True)
        _kill_descendants()
        os._exit(1)

    timer = threading.Timer(seconds, abort)
    timer.daemon = True
    timer.start()
    return timer


def _kill_descendants() -> None:
    patience = time.monotonic() + KILL_SECONDS
    while (pids := _descendants()) and time.monotonic() < patience:
        kill(pids)
        time.sleep(0.02)


def _descendants() -> list[int]:
    family = {os.getpid()}
    while children := processes(lambda pid, parent, _session: parent in family and pid not in family):
        family.update(children)
    return [pid for pid in family - {os.getpid()} if not _is_janitor(pid)]


def _is_janitor(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return any(name in command for name in JANITORS)
