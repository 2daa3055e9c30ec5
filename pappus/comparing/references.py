"""References for normalised scores: a low and a high return per env, which become 0 and 1."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pappus.errors import UserError
from pappus.settings import load_file
from pappus.types import Array


@dataclass(frozen=True)
class Reference:
    """Returns that count as 0 and as 1, and where they are from."""

    low: float
    high: float
    origin: str

    def normalised(self, returns: Array) -> Array:
        return (returns - self.low) / (self.high - self.low)


HUMAN = "random play and a human tester, as DeepMind published them"
GOAL = "random play (1,000 episodes) and the return at which Gymnasium calls it solved"

ATARI = """
Alien 227.8 7127.7 | Amidar 5.8 1719.5 | Assault 222.4 742.0 | Asterix 210.0 8503.3 | Asteroids 719.1 47388.7
Atlantis 12850.0 29028.1 | BankHeist 14.2 753.1 | BattleZone 2360.0 37187.5 | BeamRider 363.9 16926.5
Berzerk 123.7 2630.4 | Bowling 23.1 160.7 | Boxing 0.1 12.1 | Breakout 1.7 30.5 | Centipede 2090.9 12017.0
ChopperCommand 811.0 7387.8 | CrazyClimber 10780.5 35829.4 | Defender 2874.5 18688.9 | DemonAttack 152.1 1971.0
DoubleDunk -18.6 -16.4 | Enduro 0.0 860.5 | FishingDerby -91.7 -38.7 | Freeway 0.0 29.6 | Frostbite 65.2 4334.7
Gopher 257.6 2412.5 | Gravitar 173.0 3351.4 | Hero 1027.0 30826.4 | IceHockey -11.2 0.9 | Jamesbond 29.0 302.8
Kangaroo 52.0 3035.0 | Krull 1598.0 2665.5 | KungFuMaster 258.5 22736.3 | MontezumaRevenge 0.0 4753.3
MsPacman 307.3 6951.6 | NameThisGame 2292.3 8049.0 | Phoenix 761.4 7242.6 | Pitfall -229.4 6463.7 | Pong -20.7 14.6
PrivateEye 24.9 69571.3 | Qbert 163.9 13455.0 | Riverraid 1338.5 17118.0 | RoadRunner 11.5 7845.0
Robotank 2.2 11.9 | Seaquest 68.4 42054.7 | Skiing -17098.1 -4336.9 | Solaris 1236.3 12326.7
SpaceInvaders 148.0 1668.7 | StarGunner 664.0 10250.0 | Surround -10.0 6.5 | Tennis -23.8 -8.3
TimePilot 3568.0 5229.2 | Tutankham 11.4 167.6 | UpNDown 533.4 11693.2 | Venture 0.0 1187.5
VideoPinball 16256.9 17667.9 | WizardOfWor 563.5 4756.5 | YarsRevenge 3092.9 54576.9 | Zaxxon 32.5 9173.3
"""
"""Game, random, human: raw scores of games of at most 30 minutes, after up to 30 no-ops (Mnih et al. 2015)."""

KNOWN: dict[str, Reference] = {
    "CartPole-v1": Reference(22.2, 475.0, GOAL),
    "Acrobot-v1": Reference(-499.1, -100.0, GOAL),
    "MountainCar-v0": Reference(-200.0, -110.0, GOAL),
    "MountainCarContinuous-v0": Reference(-33.3, 90.0, GOAL),
}
for _entry in ATARI.replace("\n", "|").split("|"):
    if _entry.strip():
        _game, _low, _high = _entry.split()
        KNOWN[f"ALE/{_game}-v*"] = Reference(float(_low), float(_high), HUMAN)


def references(asked: str) -> dict[str, Reference]:
    """What `--reference` means: `known` ones, `none`, or those of a YAML file before the known ones."""
    if asked == "known":
        return KNOWN
    return {} if asked == "none" else {**_of_file(Path(asked)), **KNOWN}


def reference_of(env: str, known: Mapping[str, Reference]) -> Reference | None:
    """The first reference whose name is the env's, or a pattern of it."""
    return next((one for pattern, one in known.items() if fnmatch.fnmatchcase(env, pattern)), None)


def _of_file(path: Path) -> dict[str, Reference]:
    found = {}
    for env, pair in load_file(path).items():
        entry = f"reference {str(path)!r}: {env}: {pair!r}"
        if not isinstance(pair, dict) or set(pair) != {"low", "high"}:
            raise UserError(f"{entry} must be the two returns that count as 0 and 1, such as {{low: 20, high: 475}}")
        numbers = [value for value in pair.values() if isinstance(value, int | float) and not isinstance(value, bool)]
        if len(numbers) < 2 or not all(map(math.isfinite, numbers)) or pair["low"] == pair["high"]:
            raise UserError(f"{entry} must be two different numbers")
        found[str(env)] = Reference(float(pair["low"]), float(pair["high"]), str(path))
    return found
