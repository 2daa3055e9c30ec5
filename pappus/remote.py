"""`pappus actor`: envs here, learning elsewhere."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import socket
import sys
import time
from contextlib import closing
from pathlib import Path

from pappus.config import AlgorithmConfig, EnvOptions, RunConfig
from pappus.envs.vector import make_env
from pappus.errors import RunOver, UserError
from pappus.polling import readable
from pappus.roles.seed_actor import SeedActor
from pappus.settings import load_file, override
from pappus.telemetry.metrics import Sums
from pappus.telemetry.processes import on_ending, set_title
from pappus.transports.addresses import Address, check_files
from pappus.transports.grpc_request_client import GrpcRequestClient, Identity
from pappus.trust import RUN_FILE, asked_by, check_trust

REPORT_SECONDS = 5.0
METRICS_SECONDS = 1.0
"""How often the run is told what the envs measured."""


class RemoteActor:
    """A SEED actor in its own process, connected to a run that listens."""

    def __init__(
        self, address: Address, env: str, envs: int, env_groups: int, seed: int, identity: Identity,
        options: EnvOptions, patience: float = 60.0, max_steps: int = 0,
    ) -> None:
        if env_groups < 1 or envs < 1 or envs % env_groups:
            raise UserError(f"--env-groups {env_groups} does not divide --envs {envs}; use --envs 32 --env-groups 2")
        size = envs // env_groups
        self._max_steps = max_steps
        made = [make_env(env, size, seed + group, options) for group in range(env_groups)]
        self._request_client = GrpcRequestClient(address, made[0].spec, env_groups, size, identity, patience, _say)
        self._actor = SeedActor(identity.name, made, self._request_client)
        self._stopped = False
        self._measured, self._told = Sums(), 0.0
        self._request_client.measured = self._metrics_due
        self.steps = 0

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> RemoteActor:
        for name in ("seed", "steps", "patience"):
            if not (getattr(arguments, name) or 0) >= 0:
                raise UserError(f"{name}={getattr(arguments, name)} must not be negative")
        check_files(arguments.token_file, arguments.certificate, arguments.key, arguments.authority, "--")
        name = arguments.name or f"{socket.gethostname()}:{os.getpid()}"
        identity = Identity(name, arguments.token_file, arguments.authority, arguments.certificate, arguments.key)
        seed = secrets.randbits(31) if arguments.seed is None else arguments.seed
        return cls(
            Address.parse(arguments.connect), arguments.env, arguments.envs, arguments.env_groups, seed, identity,
            env_options(arguments.config, arguments.trust), arguments.patience, arguments.steps,
        )

    def run(self) -> int:
        """Step until told to stop, or until the run is over; the exit code."""
        set_title("actor")
        with on_ending(self._stop), closing(self):
            try:
                self._act()
            except RunOver as end:
                _say(str(end))
        _say(f"left after {self.steps:,} steps")
        return 0

    def _act(self) -> None:
        reported, counted = time.monotonic(), 0
        while not self._stopped and not (self._max_steps and self.steps >= self._max_steps):
            self._step()
            now = time.monotonic()
            if now - reported >= REPORT_SECONDS:
                _say(f"{self.steps:,} steps, {(self.steps - counted) / (now - reported):,.0f} steps/s")
                reported, counted = now, self.steps

    def _step(self) -> None:
        port = self._actor.step()
        if port is None:
            report = self._actor.metrics.drain()
            self.steps += int(report["counts"].get("env_steps", 0))
            for name, (total, count) in report["means"].items():
                self._measured.add(name.removeprefix("env/"), total, count)
            return
        self._request_client.check()
        if readable([port.fileno()], 0.5):
            port.clear()

    def _metrics_due(self) -> dict[str, tuple[float, float]]:
        """What the envs measured, now and then; nothing in between."""
        now = time.monotonic()
        if now - self._told < METRICS_SECONDS:
            return {}
        self._told = now
        return self._measured.take()

    def _stop(self, number: signal.Signals) -> None:
        self._stopped = True

    def close(self) -> None:
        self._request_client.close()
        self._actor.close()


def env_options(config: str | None, trust: bool = False) -> EnvOptions:
    """The env options of a config file, or the defaults. That of a run may name code (`trust.py`)."""
    if config is None:
        return EnvOptions()
    options = load_file(Path(config)).get("env_options", {})
    plain = RunConfig(AlgorithmConfig())
    found = override(plain, {"env_options": options}, config)
    if Path(config).name == RUN_FILE and not trust:
        check_trust(f"file {config!r}", asked_by(found, plain))
    return found.env_options


def _say(text: str) -> None:
    print(f"pappus actor: {text}", file=sys.stderr, flush=True)


