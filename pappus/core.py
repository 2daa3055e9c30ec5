"""The nouns that carry the system, and the loop they form.

                 weights (versioned)
        ┌─────────────────────────────────────────────┐
        ▼                                             │
    env ⇄ actor ──steps──▶ writer ──unrolls──▶ sink ⋯ source ──batch──▶ learner
            ⇅
        policy: local | central inference

A **role** does one bounded piece of work per `step()`. It reaches its peers through **ports** only and never
knows where they live: a runtime connects the ports (direct call, shared memory, gRPC) and drives the roles.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from collections.abc import Generator as Work
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from pappus.experience import Experience, ItemBatch, LossOutput, TargetUpdates
from pappus.types import Array, ArraySpec, Nest, Request, Timestep, Unroll

if TYPE_CHECKING:  # an actor that holds no network needs no torch
    from torch import Generator, Tensor, nn


@runtime_checkable
class CountedNotifier(Protocol):
    """Counts how often it rang."""

    count: int


@runtime_checkable
class Waitable(Protocol):
    """A port that can keep a role waiting.

    One within a thread may have a `notifier`, a `CountedNotifier`: then nobody need look again before it rings.
    """

    name: str
    """What the waiting time is booked under, such as `unrolls`."""

    def explain(self) -> str:
        """What is missing, in words: `0 of 1 unrolls are ready`."""
        ...

    def fileno(self) -> int:
        """A descriptor that becomes readable when waiting may be over; -1 when only a command can end it."""
        ...

    def clear(self) -> None:
        """Take the signal back, before looking again."""
        ...


class Sink(Waitable, Protocol):
    """Where an actor writes unrolls in place."""

    def acquire(self) -> Unroll | None:
        """The slot to write next (the same one until `commit`), or None while all slots are in use."""
        ...

    def commit(self) -> None:
        """Hand the slot over."""
        ...


class Source(Waitable, Protocol):
    """Where a learner takes unrolls from, in the order of their arrival."""

    def take(self, count: int) -> Sequence[Unroll] | None:
        """`count` slots, readable until `release`, or None while fewer are ready."""
        ...

    def release(self) -> None:
        """Give the taken slots back to their writers."""
        ...

    def depth(self) -> int:
        """Slots that are ready."""
        ...


class EnvGroup(Protocol):
    """A group of envs that asks a central policy for actions. One request is in flight at a time."""

    request: Request
    """Written in place, then sent."""

    def open(self) -> bool:
        """Begin anew, without a past; False while the request of a predecessor is still in flight."""
        ...

    def send(self) -> None:
        """Hand the request over."""
        ...

    def reply(self) -> Array | None:
        """Actions `[N, …]`, readable until the next `send`; None while there are none, and None before the first."""
        ...


class RequestClient(Waitable, Protocol):
    """An actor's line to the central policy: it steps one env group while the others wait for their actions."""

    @property
    def env_groups(self) -> Sequence[EnvGroup]:
        """Its groups of envs."""
        ...


class Call(Protocol):
    """A request as the server of a central policy sees it. Its arrays are valid until it is answered."""

    @property
    def env_group(self) -> Hashable:
        """Who asks."""
        ...

    @property
    def session(self) -> int:
        """Another session of the same env group is another client, which has no past."""
        ...

    @property
    def request(self) -> Request:
        """What the envs show."""
        ...

    @property
    def reply(self) -> Array:
        """Where the actions are written."""
        ...

    def answer(self) -> None:
        """Hand the reply over."""
        ...


class RequestServer(Waitable, Protocol):
    """Where the requests of all env groups arrive."""

    def calls(self) -> Sequence[Call]:
        """Requests that have arrived since the last look."""
        ...

    def left(self) -> Sequence[Hashable]:
        """Env groups that have vanished since the last look; what they had asked needs no answer."""
        ...

    def news(self) -> Sequence[str]:
        """What people may want to know since the last look: who joined, left or was refused, a line each."""
        ...

    def memory(self) -> Sequence[Array]:
        """Where requests lie that come again and again, for those who want to pin it."""
        ...

    def close(self) -> None:
        """Take no more requests."""
        ...


class Lender(Waitable, Protocol):
    """Hands objects to another role of the same process and gets them back when they were used."""

    def give(self, thing: Any) -> None: ...

    def returned(self) -> Sequence[Any]:
        """What has come back since the last look."""
        ...


class Borrower(Waitable, Protocol):
    """Uses objects of another role of the same process."""

    def take(self) -> Any:
        """The oldest object, or None."""
        ...

    def give_back(self, thing: Any) -> None: ...


class ItemSink(Waitable, Protocol):
    """Where an actor records its steps, of which items are made for replay."""

    lost: int
    """Items that may not have arrived; whoever reports them sets it back to 0."""

    def ready(self) -> bool:
        """Whether the next step can be recorded now."""
        ...

    def record(
        self, seen: Timestep, state: Nest, action: Array, behaviour: Mapping[str, Array], then: Timestep
    ) -> None:
        """One step of every env: `seen` led to `action`, and that to `then`."""
        ...

    def close(self) -> None: ...


class ItemSource(Waitable, Protocol):
    """Where a learner takes batches of items from, and gives them new priorities."""

    def take(self) -> ItemBatch | None:
        """The next batch, or None while there is none."""
        ...

    def update(self, batch: ItemBatch, priorities: Array) -> None:
        """New priorities `[B]` of a batch's items, in the order of the calls; nobody waits for them."""
        ...

    def info(self) -> dict[str, Any]:
        """Sizes and counts of the table."""
        ...

    def close(self) -> None: ...


class StepTotal(Protocol):
    """The env steps of a run, as all who count them have it."""

    def total(self) -> int: ...

    def set_total(self, total: int) -> None:
        """Count on from there."""
        ...


class StepCounter(StepTotal, Protocol):
    """Counts the env steps of a run, together with others."""

    def add(self, count: int) -> None: ...


class AllReduce(Waitable, Protocol):
    """Sums the gradients of several learners: all bring theirs, and each collects the same sum."""

    member: int
    """The index of this learner."""
    members: int
    """The number of learners."""

    def bring(self, flat: Tensor) -> None:
        """Hand in a float32 tensor `[M]`, M the same for all and within the capacity of the all-reduce. It must not
        change until the sum is collected."""
        ...

    def collect(self, flat: Tensor) -> bool:
        """Write the sum of all tensors into the same tensor; False while one is missing."""
        ...


class WeightsWriter(Protocol):
    """Publishes whole versions of one flat buffer, an array or, between those who share a device, a tensor."""

    def publish(self, flat: Any, version: int) -> None: ...


class ShardWeights(WeightsWriter, Protocol):
    """Published by one role, whose successor can read what it published last."""

    def version(self) -> int: ...

    def read(self, into: Any) -> int: ...


class WeightsReader(Waitable, Protocol):
    """Reads whole versions, never a mixture of two."""

    def version(self) -> int:
        """The newest version, -1 before the first."""
        ...

    def read(self, into: Any) -> int:
        """Copy the newest version and return its number."""
        ...


class GradientChannel(WeightsReader, Protocol):
    """Weights that several learners change: gradients go in, new weights come out."""

    def full(self) -> Waitable | None:
        """The port that one more gradient has to wait for, or None."""
        ...

    def send(self, gradient: Array, loss: float) -> int | None:
        """Send a gradient of the weights that were read last; return their lag in updates, if it is known here."""
        ...


class SharedParameters(Waitable, Protocol):
    """Weights, and what an optimizer knows of them, in one place where all who hold it change them without a lock."""

    rows: Array
    """`[1 + S, size]` float32: the weights, then S statistics of them."""
    counted: Array
    """Steps and updates, `[2]` int64, that were reported: a successor of who counts them counts on from there."""

    def ready(self) -> bool:
        """Whether somebody has opened it."""
        ...

    def open(self) -> None:
        """The first weights are there: wake those who wait for them."""
        ...

    def resting(self) -> bool:
        """Whether somebody has asked for rest."""
        ...

    def rest(self) -> None:
        """Ask all to change nothing any more; who is about to may still do so once."""
        ...

    def moved(self) -> None:
        """Note that somebody has copied all weights, or changed them by a gradient."""
        ...


class Policy(Waitable, Protocol):
    """Timesteps → actions, wherever the network is."""

    version: int

    @property
    def state(self) -> Nest:
        """Recurrent state before the next observation, arrays `[N, …]`."""
        ...

    def refresh(self) -> bool:
        """Use the newest weights; False while there are none."""
        ...

    def act(self, timestep: Timestep) -> tuple[Array, dict[str, Array]]:
        """Actions `[N, …]` and what the policy says of them (see `Algorithm.behaviour`)."""
        ...

    def save(self) -> Nest:
        """What the policy needs to go on."""
        ...

    def load(self, saved: Nest) -> None:
        """Go on from what `save` returned."""
        ...


class Algorithm(Protocol):
    """Pure functions over tensors: how to act, and (see the two kinds below) what to minimise."""

    @property
    def behaviour(self) -> dict[str, ArraySpec]:
        """What the acting policy records per step, by name."""
        ...

    def build_network(self) -> nn.Module:
        """A fresh network for this algorithm."""
        ...

    def act(
        self, step: Callable[[Nest, Tensor, Nest], Any], observation: Nest, first: Tensor, state: Nest,
        generator: Generator | None, exploration: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor], Nest]:
        """Action, behaviour and next state for tensors `[N, …]`; greedy without a generator.

        `step` is the network for one step: (observation, first, state) → its output. `exploration` says how much each
        env explores `[N]`, for algorithms whose policies do not do so by themselves.
        """
        ...


class OnPolicyAlgorithm(Algorithm, Protocol):
    """Learns from unrolls as they come, one update per batch."""

    @property
    def reduction(self) -> str:
        """Whether the loss is the `mean` or the `sum` over its valid steps: learners that share updates need it."""
        ...

    def loss(self, network: nn.Module, batch: Unroll) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to minimise and named scalars to report, in the order in which they were computed."""
        ...


@runtime_checkable
class EpochAlgorithm(Algorithm, Protocol):
    """Learns from unrolls in epochs of minibatches. What a minibatch holds is its own choice.

    It may offer more: `on_arrays(network) -> ArrayLoss | None`, a faster `loss` on a CPU, and `synced()`
    (`SyncedEpochAlgorithm`) for several learners.
    """

    def check_batch(self, length: int, envs: int) -> None:
        """Raise `UserError` if batches of `length` steps of `envs` envs cannot be cut into minibatches."""
        ...

    def prepare(self, network: nn.Module, batch: Unroll, fresh: bool) -> Any:
        """All steps of a batch, with what is computed once for all epochs. A fresh batch was acted with the present
        weights: what was recorded while acting still holds."""
        ...

    def minibatches(self, steps: Any) -> Iterator[tuple[Any, bool]]:
        """The minibatches of all epochs, and whether to report scalars of each; of the last one always."""
        ...

    def loss(self, network: nn.Module, steps: Any, report: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to minimise for a minibatch, and named scalars if they are to be reported."""
        ...

    def enough(self, scalars: Mapping[str, float]) -> bool:
        """Whether to skip the rest of the batch, after these scalars of a minibatch."""
        ...


ArrayLoss: TypeAlias = Callable[[Any, bool], tuple[float, dict[str, float]]]
"""`EpochAlgorithm.loss` of minibatches that are arrays. It replaces the `.grad` of the network's parameters by the
gradient, and returns the loss and the scalars as numbers."""


@runtime_checkable
class SyncedEpochAlgorithm(EpochAlgorithm, Protocol):
    """One whose minibatches several learners can share."""

    def synced(self) -> SyncedEpochs:
        """What stands for `prepare` and `minibatches` then."""
        ...


class SyncedEpochs(Protocol):
    """How several learners train on one batch, each on its own part of every minibatch.

    Both methods are generators. They yield float32 numbers of this learner's part, and are sent those of all learners,
    `[learners, …]`.
    """

    @property
    def epochs(self) -> int:
        """Epochs per batch, at most."""
        ...

    def prepare(self, network: nn.Module, batch: Unroll, fresh: bool) -> Work[Tensor, Tensor, Any]:
        """`EpochAlgorithm.prepare`."""
        ...

    def epoch(self, steps: Any) -> Work[Tensor, Tensor, Sequence[tuple[Any, Tensor]]]:
        """The minibatches of one epoch, each with the number of its valid steps."""
        ...

    def synced_buffers(self, network: nn.Module) -> Sequence[Tensor]:
        """Buffers of the network that `prepare` keeps equal on all learners."""
        ...


class ReplayAlgorithm(Algorithm, Protocol):
    """Learns from items that are drawn again and again, with a target network beside the network."""

    @property
    def experience(self) -> Experience:
        """What the items are."""
        ...

    @property
    def target_updates(self) -> TargetUpdates:
        """How the target network follows."""
        ...

    def exploration(self, envs: Array, of: int, steps: int) -> Array:
        """How much these of so many envs explore after so many steps of all, `[N]` float32."""
        ...

    @property
    def part_delays(self) -> tuple[int, ...]:
        """For every part of the network that is trained apart (`part_sizes`), every how many updates it is."""
        ...

    def initial_priority(self, steps: Any) -> Array:
        """Priorities `[n]` of n new items, from what the acting policy recorded of them.

        `steps` is a `TransitionStats` if `experience` is `Transitions`, and a `SequenceStats` if it is `Sequences`.
        Give what `loss` would give as the priority of these items, so that both are on the same scale. The recorder
        adds `SMALLEST_PRIORITY`. A table that draws uniformly ignores priorities: then ones will do.
        """
        ...

    def loss(self, network: nn.Module, target: nn.Module, batch: Any, weight: Tensor, update: int) -> LossOutput:
        """For a batch of items (`Transition` or `Sequence`), their importance weights `[B]` and the update's number."""
        ...
