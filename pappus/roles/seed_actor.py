"""The actor of SEED: steps envs and requests actions. It holds no network and records nothing."""

from __future__ import annotations

from collections.abc import Sequence

from pappus.core import EnvGroup, RequestClient, Waitable
from pappus.envs.vector import VectorEnv
from pappus.roles.role import Role
from pappus.telemetry.env_timer import EnvTimer
from pappus.types import Nest, Request, Timestep, leaves_of


class SeedActor(Role):
    """env ──timestep──▶ env group ──action──▶ env, for several env groups: one is stepped while the others wait."""

    def __init__(self, name: str, envs: Sequence[VectorEnv], request_client: RequestClient) -> None:
        super().__init__(name)
        self._request_client = request_client
        self._env_groups = list(zip(request_client.env_groups, envs, strict=True))
        self._step_envs = [self.metrics.time(EnvTimer(env.step)) for env in envs]
        self._unopened = list(self._env_groups)
        for env in envs:
            self.metrics.measure(env.take_metrics)

    def step(self) -> Waitable | None:
        """One step of every env group whose actions are there, or the port that all wait for."""
        if self._unopened:
            before, self._unopened = self._unopened, [pair for pair in self._unopened if not self._open(*pair)]
            return None if len(self._unopened) < len(before) else self._request_client
        progress = False
        for (env_group, env), step_envs in zip(self._env_groups, self._step_envs, strict=True):
            action = env_group.reply()
            if action is not None:
                self._send(env_group, step_envs(action))
                self.metrics.count("env_steps", env.num_envs)
                progress = True
        return None if progress else self._request_client

    def _open(self, env_group: EnvGroup, env: VectorEnv) -> bool:
        opened = env_group.open()
        if opened:
            self._send(env_group, env.reset())
        return opened

    def _send(self, env_group: EnvGroup, timestep: Timestep) -> None:
        write_request(env_group.request, timestep)
        env_group.send()

    def save(self) -> Nest | None:
        """The envs' states; requests in flight lie in the transport. None where envs cannot be snapshotted."""
        snapshots = [env.snapshot() for _, env in self._env_groups]
        if None in snapshots:
            self.afresh = self._env_groups[snapshots.index(None)][1].no_snapshot()
            return None
        return {"envs": snapshots, "unopened": [self._env_groups.index(pair) for pair in self._unopened]}

    def load(self, state: Nest) -> None:
        """Go on with the requests in flight."""
        unopened = state.get("unopened", [])
        self._unopened = [self._env_groups[i] for i in unopened]
        for i, ((_, env), snapshot) in enumerate(zip(self._env_groups, state["envs"], strict=True)):
            if i not in unopened:  # one that was not reset begins with its seed
                env.reset()
                env.restore(snapshot)

    def close(self) -> None:
        for _, env in self._env_groups:
            env.close()


def write_request(request: Request, timestep: Timestep) -> None:
    """Write what the envs show into a request, in place."""
    for into, leaf in zip(leaves_of(request.observation), leaves_of(timestep.observation), strict=True):
        into[...] = leaf
    request.first[:] = timestep.first
    request.reward[:] = timestep.reward
    request.discount[:] = timestep.discount
    request.valid[:] = timestep.valid
    request.episode_length[:] = 0
    if timestep.episodes is not None:
        returns, lengths, envs = timestep.episodes
        request.episode_return[envs] = returns
        request.episode_length[envs] = lengths
