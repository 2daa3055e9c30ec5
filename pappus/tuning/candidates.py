"""What tuning may choose, and which of it leaves learning as it is."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import log2
from typing import Any

from pappus.config import RunConfig
from pappus.errors import UserError
from pappus.settings import override
from pappus.tuning.allowed import Allowed
from pappus.tuning.model import Shape
from pappus.validation import validate_settings

GROWTH = 4
"""By how much whatever is allowed may change."""
USUAL_LAG, REPLAY_LAG = 2.0, 8.0
"""Without permission a policy may lag by twice as many updates as the preset's; with replay by so many in any case."""
MORE_ENVS = 4
"""Without permission there are so many times the preset's envs at most: with replay each explores in its own way."""
OTHER_KIND = 6.0
"""As far from each other as this many steps of a factor of two are one thread and processes, for example."""
MOST_ENVS = 1024
"""Of one actor."""
WAITING_ACTORS = 16
"""Actors for each core where envs wait: each is a process."""
MOST_ACTORS = 64


@dataclass(frozen=True, order=True)
class Setting:
    """Everything that tuning chooses."""

    actors: int
    envs: int
    """Of each actor."""
    runtime: str
    threads: int = 0
    """For the envs of an actor that are stepped one by one; 0: its own."""
    groups: int = 0
    """Env groups, with central inference; 0: not that."""
    inference_in: str = ""
    learners: int = 1
    batch_size: int = 0
    per_insert: float = 0.0
    """Samples per inserted item; 0: as it is."""

    def settings(self) -> dict[str, Any]:
        """As a config file has them. Envs per actor that are given replace what says how many there are in all."""
        found: dict[str, Any] = {
            "actors": self.actors, "envs_per_actor": self.envs, "runtime": self.runtime, "learners": self.learners,
            "batch_size": self.batch_size,
        }
        found |= {"env_options.threads": self.threads} if self.threads else {}
        found |= {"topology.env_groups": self.groups} if self.groups else {}
        found |= {"topology.inference_in": self.inference_in} if self.inference_in else {}
        return found | ({"topology.replay.samples_per_insert": self.per_insert} if self.per_insert else {})

    def words(self, fixed: Collection[str]) -> list[str]:
        """As options beside those that fix some of it."""
        given = {*fixed, *(["envs_per_actor"] if "envs" in fixed else [])}
        options = {name.replace("_", "-"): value for name, value in self.settings().items() if name not in given}
        return [word for name, value in options.items() for word in (f"--{name}", str(value))]

    def applied(self, config: RunConfig) -> RunConfig:
        """The config with this."""
        return override(config, self.settings())

    def __str__(self) -> str:
        envs = f"{self.envs} env{'s' * (self.envs > 1)}"
        words = [f"{self.actors} × {envs}", "one thread" if self.runtime == "inline" else "processes"]
        words += [f"{self.threads} env threads"] if self.threads else []
        words += [f"{self.groups} env group{'s' * (self.groups > 1)}"] if self.groups else []
        words += ["inference in the learner"] if self.inference_in == "learner" else []
        words += [f"{self.learners} learners"] if self.learners > 1 else []
        return ", ".join(words)

    def distance(self, other: Setting) -> float:
        """How little measuring one says of the other: steps of a factor of two."""
        sizes = [
            (self.actors, other.actors), (self.envs, other.envs), (self.learners, other.learners),
            (max(1, self.batch_size), max(1, other.batch_size)),
        ]
        kinds = [
            (self.runtime, other.runtime), (bool(self.threads), bool(other.threads)), (self.groups, other.groups),
            (self.inference_in, other.inference_in),
        ]
        doublings = sum(abs(log2(one / another)) for one, another in sizes)
        return doublings + OTHER_KIND * sum(one != another for one, another in kinds)


def learns_alone(config: RunConfig) -> bool:
    """Whether an actor makes updates of what its own envs did, whatever batch size is given."""
    one, two = (replace(config, batch_size=0, learners=1, actors=actors) for actors in (1, 2))
    return one.topology.items_per_update(one) == two.topology.items_per_update(two)


def setting_of(config: RunConfig, replays: bool) -> Setting:
    """What a fitted config has chosen."""
    topology = config.topology
    alone = not replays and learns_alone(config)
    return Setting(
        config.actors, config.envs_per_actor, "inline" if config.inline else "local", config.env_options.threads,
        getattr(topology.settled(config), "env_groups", 0), getattr(topology, "inference_in", ""), config.learners,
        0 if alone else topology.items_per_update(config) // config.learners,
    )


def shape_of(setting: Setting, config: RunConfig) -> Shape:
    """A setting as the model sees it; `config` has it applied."""
    central = bool(setting.groups)
    lockstep = config.topology.takes_turns(config) or config.topology.waits_for_all_actors
    return Shape(
        setting.actors, setting.envs, setting.runtime == "inline", bool(setting.threads), central,
        max(1, setting.groups), lockstep, setting.learners, config.topology.items_per_update(config),
        config.unroll_length,
    )


@dataclass(frozen=True)
class Space:
    """What there is to choose from on a machine."""

    reference: RunConfig
    """What learning is compared with: the preset with what its user gave, fitted to this machine."""
    cores: int
    replays: bool
    """Whether it learns from replay."""
    waits: bool = False
    """Whether its envs wait for something outside."""
    one_by_one: bool = False
    """Whether its envs are stepped one by one, so that threads can step them."""
    fixed: Collection[str] = ()
    """Settings that the user gave, which stay."""
    allowed: Collection[Allowed] = ()

    def settings(self) -> list[Setting]:
        """All that can run and leave learning as it is, as far as nothing else is allowed; in order."""
        return sorted(one for one in set(self._all()) if self._can_run(one))

    def _all(self) -> Iterator[Setting]:
        reference = self.reference
        start = setting_of(reference, self.replays)
        yield start
        for actors, learners, runtime, inference_in, items in product(
            self._actors(), self._learners(), self._runtimes(), self._inference(start), self.items()
        ):
            for envs, groups, per_insert in product(self._envs(actors, items), self._groups(start), self._inserts()):
                batch = 0 if self._worker_batch else items // learners
                for threads in self._threads(envs):
                    yield Setting(
                        actors, envs, runtime, threads, groups, inference_in, learners, batch, per_insert
                    )

    @property
    def _worker_batch(self) -> bool:
        return not self.replays and learns_alone(self.reference)

    def _actors(self) -> list[int]:
        if "actors" in self.fixed or self.reference.topology.actors_train:
            return [self.reference.actors]
        most = min(MOST_ACTORS, max(4, (WAITING_ACTORS if self.waits else 2) * self.cores))
        doubled = [1 << i for i in range(most.bit_length()) if 1 << i <= most]
        return sorted({*doubled, *(n for n in (self.cores - 2, self.cores - 1, self.cores) if n > 0)})

    def _learners(self) -> list[int]:
        reference = self.reference
        many = reference.topology.many_learners and not self.replays and reference.device == "cpu" and self.cores >= 8
        if "learners" in self.fixed or not many:
            return [reference.learners]
        return [n for n in (1, 2, 4) if 4 * n <= self.cores]

    def _runtimes(self) -> list[str]:
        if "runtime" in self.fixed and self.reference.runtime != "auto":
            return [self.reference.runtime]
        return ["local"] if self.reference.device != "cpu" else ["inline", "local"]

    def _inference(self, start: Setting) -> list[str]:
        if not start.inference_in or start.inference_in != "auto":
            return [start.inference_in]
        return ["process", "learner"] if self.reference.device == "cpu" else ["auto"]

    def _groups(self, start: Setting) -> list[int]:
        return [1, 2] if start.groups and "topology.env_groups" not in self.fixed else [start.groups]

    def items(self) -> list[int]:
        """Sizes of an update, the reference's first."""
        reference = self.reference
        items = reference.topology.items_per_update(reference)
        return [items, *([2 * items, GROWTH * items] if "batch" in self.allowed else [])]

    def _inserts(self) -> list[float]:
        replay = getattr(self.reference.topology, "replay", None)
        if replay is None or "updates" not in self.allowed:
            return [0.0]
        return [0.0, replay.samples_per_insert / 2, replay.samples_per_insert / GROWTH]

    def _envs(self, actors: int, items: int) -> list[int]:
        if {"envs_per_actor", "envs"} & set(self.fixed):
            total = self.reference.envs
            return [total // actors] if total else [self.reference.envs_per_actor]
        if self._worker_batch and not self.replays:
            return [items]
        doubled = [1 << i for i in range(MOST_ENVS.bit_length())]
        share = [items // actors] if items % actors == 0 and items >= actors else []
        return sorted({*doubled, *share, self.reference.envs_per_actor})

    def _threads(self, envs: int) -> list[int]:
        given = self.reference.env_options.threads
        if given or "env_options.threads" in self.fixed or not (self.waits and self.one_by_one) or envs == 1:
            return [given]
        return [0, envs]

    def _can_run(self, setting: Setting) -> bool:
        """Whether there can be such a run, and it learns as the reference does, or as is allowed."""
        try:
            config = setting.applied(self.reference)
            validate_settings(config)
        except UserError:
            return False
        return self._learns_alike(config)

    def _learns_alike(self, config: RunConfig) -> bool:
        reference = self.reference
        items, as_before = (one.topology.items_per_update(one) for one in (config, reference))
        if items != as_before and not ("batch" in self.allowed and items <= GROWTH * as_before):
            return False
        envs, before = (one.actors * one.envs_per_actor for one in (config, reference))
        lag, usual = config.topology.policy_lag(config), reference.topology.policy_lag(reference)
        most, more = max(USUAL_LAG * usual, REPLAY_LAG if self.replays else 0.0), "lag" in self.allowed
        if envs > MORE_ENVS * before * (GROWTH if more else 1):
            return False
        return lag <= most * (GROWTH / USUAL_LAG if more else 1.0)


def with_defaults(config: RunConfig, plain: RunConfig, fixed: Collection[str]) -> RunConfig:
    """`config` with what tuning chooses taken from `plain`, but for what its user fixed: learning is compared with
    that. A batch size that a file gives stays: it is learning, and not speed; so do actors that train."""
    names = ("actors", "envs", "envs_per_actor", "max_envs", "runtime", "learners")
    stays = {*fixed, *(["actors"] if config.topology.actors_train else [])}
    config = replace(config, **{name: getattr(plain, name) for name in names if name not in stays})
    deeper = ("env_options.threads", "topology.env_groups", "topology.inference_in")
    values = {name: value_of(plain, name) for name in deeper if name not in fixed}
    return override(config, {name: value for name, value in values.items() if value is not None})


def value_of(config: RunConfig, name: str) -> Any:
    """A setting by its dotted name; None where there is none."""
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part, None)
    return value
