"""Training on items of replay, mostly with a target network (Ape-X, R2D2, DQN, DDPG; in Gorila with parameter
servers).

    replay ──batch──▶ loss ──▶ one update, and new priorities back to replay; the target network follows the weights

Its steps are the actors' env steps, to which the table's rate limiter ties its updates. An offline learner has no
actors: its steps are its updates.
"""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Sequence as Sequences
from typing import Any

import numpy as np
import torch

from pappus.core import ItemSource, ReplayAlgorithm, ReplayArrayLoss, StepTotal, Waitable
from pappus.experience import SMALLEST_PRIORITY, ItemBatch, Sequence, TargetUpdates
from pappus.networks.flat import FlatParameters
from pappus.networks.many_mlps import multiply_in_half
from pappus.networks.modules import RunningMoments
from pappus.roles.blame import part_of, to_blame
from pappus.roles.device_rows import DeviceRows, keep_large
from pappus.roles.gradient_step import Computed, GradientStep
from pappus.roles.learner import Trained, Training
from pappus.types import Array, Nest, leaves_of, map_leaves

INFO_UPDATES = 200
"""Updates between two reports of the table's counts."""
AGE_UPDATES = 8
"""Updates between two looks at the ages of priorities; a mean needs no more."""
MOMENT_UPDATES = 1_000
"""The first updates, all of which count their observations into the network's running moments, if it keeps some; later
every tenth does."""


class ReplayTraining(Training):
    """One update per batch. Where gradients are applied elsewhere, the newest weights are read before every batch."""

    replays = True

    def __init__(
        self, algorithm: ReplayAlgorithm, source: ItemSource, counted: StepTotal | None, gradient: GradientStep,
        capacity: int, keeps_rows: bool = False,
    ) -> None:
        """`capacity` is that of the table. Where nobody counts env steps, an update is a step. `keeps_rows`: large
        observations are kept on the device, as far as there is memory for them."""
        self._algorithm, self._source, self._counted, self._gradient = algorithm, source, counted, gradient
        self._device = gradient.settings.device
        self.target: TargetNetwork | None = None
        if (follows := algorithm.target_updates) is not None:
            self.target = TargetNetwork(algorithm, follows, gradient.flat, self._device, gradient.settings.precision)
        self._later: Any = gradient.network if self.target is None else self.target.network
        """The network that says what later observations are worth."""
        self._capacity, self._service, self._until_info = capacity, 0, 0
        self._staleness = PriorityStaleness(capacity)
        self._drawn: Any = None
        self._items: Any = None
        self._weight = self._priority = torch.zeros(0, device=self._device)
        has_moments = any(isinstance(module, RunningMoments) for module in gradient.network.modules())
        self._keeps_moments = has_moments and getattr(gradient.network, "moments_from_replay", False)
        self._found: Array = np.zeros(0)
        """New priorities of the present batch."""
        self._rows = DeviceRows(self._device, gradient.metrics.event)
        if keeps_rows and gradient.accelerator.real:
            keep_large(source, gradient.accelerator.free_memory(), gradient.metrics.event)
        self._on_arrays: ReplayArrayLoss | None = gradient.array_loss(
            algorithm, gradient.network, self._later
        )

    def take(self) -> Waitable | None:
        if self._gradient.channel is not None:
            version = self._gradient.channel.read(self._gradient.flat.values.detach().numpy())
            if self.target is not None:
                self.target.follow_version(version)
        batch = self._source.take()
        if batch is None:
            return self._source
        self._drawn = batch
        self._load(batch)
        return None

    def train(self) -> Generator[Waitable | None, None, Trained]:
        """Make one update, alone: it never waits."""
        gradient, delays = self._gradient, self._algorithm.part_delays
        rests = [gradient.updates % every > 0 for every in delays]
        kind = sum(rest << i for i, rest in enumerate(rests))  # updates of other parts of the network
        if self._keeps_moments and (gradient.updates < MOMENT_UPDATES or gradient.updates % 10 == 0):
            gradient.network.observe(map_leaves(lambda leaf: leaf.unsqueeze(0), self._items.observation))
        computed, priority = self._computed(kind)
        self._found = priority
        gradient.apply(computed, kind, [one for one, rest in zip(gradient.parameters, rests, strict=True) if rest])
        self._source.update(self._drawn, priority.astype(np.float64) + SMALLEST_PRIORITY)
        for name, value in computed.scalars.items():
            gradient.metrics.mean(f"losses/{name}", value)
        self._report_ages(self._drawn)
        updates = gradient.updates + 1
        if gradient.channel is None and self.target is not None:
            self.target.follow_updates(updates)
        if self._until_info == 0:
            self._report_table()
        self._until_info = (self._until_info - 1) % INFO_UPDATES
        steps = 1 if self._counted is None else self._counted.total() - gradient.steps
        return Trained(steps, steps)
        yield  # a generator, as all trainings are

    def _computed(self, kind: int) -> tuple[Computed, Array]:
        """Compute the gradient; what was computed, and the priorities of the items."""
        if self._on_arrays is None:
            computed = self._gradient.backward(kind)
            return computed, self._priority.cpu().numpy()
        loss, scalars, priority = self._on_arrays(self._drawn.items, self._drawn.weight)
        return self._gradient.computed(loss, scalars), priority

    def _load(self, batch: ItemBatch) -> None:
        """The batch as tensors; on a device always in the same memory, where a captured graph reads it."""
        if self._on_arrays is not None:
            return
        self._rows.store(batch.new_rows)
        items, weight = map_leaves(self._rows.tensor, (batch.items, batch.weight))
        if not self._gradient.accelerator.real:
            self._items, self._weight = items, weight
        elif self._items is None:
            self._items, self._weight = map_leaves(lambda leaf: leaf.to(self._device), (items, weight))
        else:
            for into, leaf in zip(leaves_of((self._items, self._weight)), leaves_of((items, weight)), strict=True):
                into.copy_(leaf, non_blocking=True)

    def loss(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The algorithm's; it leaves new priorities behind, in the same memory whichever graph writes them."""
        loss, scalars, priority = self._algorithm.loss(
            self._gradient.network, self._later, self._items, self._weight, self._gradient.updates
        )
        if self._priority.shape != priority.shape:
            self._priority = torch.zeros_like(priority)
        self._priority.copy_(priority.detach())
        return loss, scalars

    def batch(self) -> Nest:
        drawn: Any = map_leaves(self._rows.tensor, (self._drawn.items, self._drawn.weight))
        return {**drawn[0]._asdict(), "weight": drawn[1]}

    def give_up(self, blamed: Sequences[int]) -> int:
        """The items that are to blame are hardly drawn again: those of clients that are, and those with the largest
        errors. The steps are counted with the next batch."""
        found = self._found.astype(np.float64)
        worst = ~np.isfinite(found) if not np.isfinite(found).all() else found == found.max(initial=0)
        if blamed:
            worst |= np.isin(self._drawn.origin, list(blamed))
        self._source.update(self._drawn, np.where(worst, 0.0, found) + SMALLEST_PRIORITY)
        return 0

    def blamed(self) -> list[int] | None:
        items, weight = map_leaves(self._rows.tensor, (self._drawn.items, self._drawn.weight))
        algorithm, network, later = self._algorithm, self._gradient.network, self._later

        def is_finite(columns: Array, tame: bool) -> bool:
            part = on_device(item_part(items, columns, tame), self._device)
            share = on_device(part_of(weight, columns, 0, False), self._device)
            return self._gradient.is_finite(
                lambda: algorithm.loss(network, later, part, share, self._gradient.updates).loss
            )

        return to_blame(self._drawn.origin, is_finite)

    def _report_ages(self, batch: ItemBatch) -> None:
        metrics, updates = self._gradient.metrics, self._gradient.updates
        if batch.service != self._service:
            self._service, self._staleness = batch.service, PriorityStaleness(self._capacity)
        if updates % AGE_UPDATES == 0:
            staleness, fresh = self._staleness.of(batch.keys, updates)
            if staleness is not None:
                metrics.mean("replay/priority_staleness", staleness)
            metrics.mean("replay/first_draws", fresh)
        metrics.mean("replay/age", batch.age)
        self._staleness.written(batch.keys, updates)

    def _report_table(self) -> None:
        for name, value in self._source.info().items():
            if name in ("size", "inserts", "samples", "samples_waited"):
                self._gradient.metrics.gauge(f"replay/{name}", value)

    def save(self) -> dict[str, Nest]:
        own = {} if self.target is None else self.target.save()
        return {**own, "source": self._source.save()}

    def load(self, state: Nest) -> None:
        if self.target is not None:
            self.target.load(state)
        self._source.load(state.get("source", {}))
        if self._counted is not None and self._gradient.channel is None:
            self._counted.set_total(state["steps"])

    def close(self) -> None:
        self._source.close()


def item_part(items: Any, columns: Array, tame: bool) -> Any:
    """Some of a batch's transitions `[B, …]` or sequences `[T, B, …]`."""
    if not isinstance(items, Sequence):
        return part_of(items, columns, 0, tame)
    timed = part_of(items._replace(state=()), columns, 1, tame)
    return timed._replace(state=part_of(items.state, columns, 0, tame))


def on_device(nest: Nest, device: str) -> Nest:
    return map_leaves(lambda leaf: leaf.to(device), nest)


class TargetNetwork:
    """The target network: copied, or moved by a fraction τ, towards the network's weights every so many updates."""

    def __init__(
        self, algorithm: ReplayAlgorithm, updates: TargetUpdates, weights: FlatParameters, device: str,
        precision: str = "float32",
    ) -> None:
        self._updates, self._weights = updates, weights
        self.network: Any = algorithm.build_network()
        if precision == "mixed":
            multiply_in_half(self.network)
        self.network.requires_grad_(False)
        self.flat = FlatParameters(self.network, device=device)
        self.flat.values.copy_(weights.values)
        self.followed = -1
        """How often it has followed versions."""

    def follow_updates(self, updates: int) -> None:
        """Follow, if it is time to after so many updates."""
        if updates % self._updates.every == 0:
            self._take_over(self._updates.share)

    def follow_version(self, version: int) -> None:
        """Follow as often as it was time to up to this version, which others count; begin as the first weights."""
        updates = self._updates
        times = version // updates.every - self.followed
        if times > 0:
            share = 1.0 if self.followed < 0 else 1.0 - (1.0 - updates.share) ** times
            self.followed += times
            self._take_over(share)

    def save(self) -> dict[str, Nest]:
        return {"target": self.flat.values.detach().cpu().clone(), "followed": self.followed}

    def load(self, state: Nest) -> None:
        with torch.no_grad():
            self.flat.values.copy_(state["target"])
        self.followed = state.get("followed", -1)

    def _take_over(self, share: float) -> None:
        with torch.no_grad():
            trained = self.flat.num_parameters
            self.flat.values[:trained].lerp_(self._weights.values[:trained], share)
            if trained < self.flat.size:  # moments of observations are the same for both networks
                self.flat.values[trained:].copy_(self._weights.values[trained:])


class PriorityStaleness:
    """When this learner last wrote the priority of each item. A key encodes the place of its item in a table of
    `capacity` (docs/concepts/replay.md): two numbers per place do."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._keys = np.full(capacity, -1, np.int64)
        self._updates = np.zeros(capacity, np.int64)

    def of(self, keys: Array, update: int) -> tuple[float | None, float]:
        """Mean updates since the priorities of sampled items were written (None if none were), and the share of items
        that still have the priority of their actor."""
        places = keys % self._capacity
        written = self._keys[places] == keys
        if not written.any():
            return None, 1.0
        return float(np.mean(update - self._updates[places[written]])), float(1 - written.mean())

    def written(self, keys: Array, update: int) -> None:
        """Note that new priorities of these items are on their way."""
        places = keys % self._capacity
        self._keys[places], self._updates[places] = keys, update
