"""A simulator of its own making, no Gymnasium anywhere: land softly, with a rocket that is on or off.

    pappus serve seed-vtrace --env-spec clients/python/lander.yaml --listen 127.0.0.1:5000
    python clients/python/lander.py 127.0.0.1:5000
"""

from __future__ import annotations

import random
import sys

import grpc
from pappus_client import Client, RunOver, Step

GRAVITY, THRUST, SECONDS = -1.6, 3.2, 0.2
OBSERVATION = {"observation": ("float32", [3])}
SOFT = 1.0
"""Metres per second that the legs bear."""


class Lander:
    """Falls from 8 to 12 metres; returns lie between −1 (crash) and 1 (soft landing with all fuel left)."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._begin()

    def _begin(self) -> None:
        self.height, self.speed, self.fuel = self._rng.uniform(8, 12), self._rng.uniform(-1, 0), 1.0
        self.over = False

    def step(self, action: int) -> Step:
        """Burn or fall for a fifth of a second."""
        if self.over:
            self._begin()
            return Step(self.observe(), "first")
        burning = action == 1 and self.fuel > 0
        self.fuel -= 0.01 if burning else 0.0
        self.speed += (GRAVITY + THRUST * burning) * SECONDS
        self.height += self.speed * SECONDS
        self.over = self.height <= 0 or self.height > 20
        if not self.over:
            return Step(self.observe())
        soft = self.height <= 0 and self.speed > -SOFT
        return Step(self.observe(), "terminated", self.fuel if soft else -1.0, {"soft": float(soft)})

    def observe(self) -> list[float]:
        """Everything in units of about one."""
        return [self.height / 10, self.speed / 5, self.fuel]


def main(address: str, landers: int = 32, seed: int = 1) -> None:
    """Play until interrupted or until the run is over."""
    fleet = [Lander(random.Random(1000 * seed + i)) for i in range(landers)]
    client = Client(address, OBSERVATION, ("int64", []), landers, name="lander", patience=5.0)
    actions = client.act([Step(lander.observe(), "first") for lander in fleet])
    while True:
        actions = client.act([lander.step(action) for lander, action in zip(fleet, actions, strict=True)])


if __name__ == "__main__":
    try:
        main(*sys.argv[1:2])
    except RunOver as end:
        print(f"lander: {end}")
    except grpc.RpcError as error:
        sys.exit(f"lander: {error.details()}")
