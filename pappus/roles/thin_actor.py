"""The actor of SEED: it steps envs and asks for actions. It holds no network and keeps no experience."""

from __future__ import annotations

from collections.abc import Sequence

from pappus.core import Caller, Lane, Waitable
from pappus.envs.vector import VectorEnv
from pappus.roles.role import Role
from pappus.types import Nest, Request, Timestep, leaves_of


class ThinActor(Role):
    """env ──timestep──▶ lane ──action──▶ env, for several lanes: one is stepped while the others wait."""

    def __init__(self, name: str, envs: Sequence[VectorEnv], caller: Caller) -> None:
        super().__init__(name)
        self._caller = caller
        self._lanes = list(zip(caller.lanes, envs, strict=True))
        self._unopened = list(self._lanes)

    def step(self) -> Waitable | None:
        """One step of every lane whose actions are there, or the port that all wait for."""
        if self._unopened:
            before, self._unopened = self._unopened, [pair for pair in self._unopened if not self._open(*pair)]
            return None if len(self._unopened) < len(before) else self._caller
        progress = False
        for lane, env in self._lanes:
            action = lane.reply()
            if action is not None:
                self._send(lane, env.step(action))
                self.metrics.count("env_steps", env.num_envs)
                progress = True
        return None if progress else self._caller

    def _open(self, lane: Lane, env: VectorEnv) -> bool:
        opened = lane.open()
        if opened:
            self._send(lane, env.reset())
        return opened

    def _send(self, lane: Lane, timestep: Timestep) -> None:
        write_request(lane.request, timestep)
        lane.send()

    def save(self) -> Nest | None:
        """The envs' states; requests in flight lie in the transport. None where envs cannot be snapshotted."""
        snapshots = [env.snapshot() for _, env in self._lanes]
        if self._unopened or any(snapshot is None for snapshot in snapshots):
            return None
        return {"envs": snapshots}

    def load(self, state: Nest) -> None:
        """Go on with the requests in flight."""
        for (_, env), snapshot in zip(self._lanes, state["envs"], strict=True):
            env.reset()
            env.restore(snapshot)
        self._unopened = []

    def close(self) -> None:
        for _, env in self._lanes:
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
