"""The nouns that carry the system, and the loop they form.

                 weights (versioned)
        ┌─────────────────────────────────────────────┐
        ▼                                             │
    env ⇄ actor ──steps──▶ writer ──unrolls──▶ sink ⋯ source ──batch──▶ learner
            ⇅
        policy: local | central inference

A **role** does one bounded piece of work per `step()`. It reaches other roles through **ports** only and never
knows where they run: a runtime connects the ports (direct call, shared memory, gRPC) and drives the roles.
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
class Waitable(Protocol):
    """A port that can keep a role waiting.

    It may offer more:
    `ready() -> bool` says whether waiting is over, where a role with a core of its own may poll before it sleeps.
    `sleep(commands, seconds) -> bool` waits as `Waiter.wait` does, for a port with work of its own meanwhile.
    `notifier`, with a `count`: in the inline runtime, a role that waits is not stepped before the count grows.
    `meter` (`telemetry.metrics.Meter`) counts the bytes that passed.
    """

    name: str
    """The metric's name for the time spent waiting, such as `unrolls`."""

    def explain(self) -> str:
        """What is missing, in words: `0 of 1 unrolls are ready`."""

    def fileno(self) -> int:
        """A descriptor that becomes readable when waiting may be over; -1 when only a command can end it."""

    def clear(self) -> None:
        """Reset the descriptor, before checking again."""


class Sink(Waitable, Protocol):
    """Where an actor writes unrolls in place."""

    def acquire(self) -> Unroll | None:
        """The slot to write next (the same one until `commit`), or None while all slots are in use."""

    def commit(self, steps: int = 0) -> None:
        """Hand the slot over, with `steps` valid steps in it."""

    def handed_on(self) -> int:
        """Valid steps that were ever handed over here, by predecessors of the role, too."""


class Source(Waitable, Protocol):
    """Where a learner takes unrolls from: those of each producer in order, producers round-robin."""

    def take(self, count: int) -> Sequence[Unroll] | None:
        """`count` slots, readable until `release`, or None while fewer are ready."""

    def release(self) -> None:
        """Return the taken slots to their writers."""

    def depth(self) -> int:
        """Slots that are ready."""


class EnvGroup(Protocol):
    """A group of envs that asks a central policy for actions. One request is in flight at a time."""

    request: Request
    """Written in place, then sent."""

    def open(self) -> bool:
        """Start a new session, without history; False while a predecessor's request is still in flight."""

    def send(self) -> None:
        """Hand the request over."""

    def reply(self) -> Array | None:
        """Actions `[N, …]`, readable until the next `send`; None while there are none, and None before the first."""


class RequestClient(Waitable, Protocol):
    """An actor's connection to the central policy: it steps one env group while the others wait for actions."""

    @property
    def env_groups(self) -> Sequence[EnvGroup]: ...


class Call(Protocol):
    """A request, as the server of a central policy sees it. Its arrays are valid until it is answered."""

    @property
    def env_group(self) -> Hashable: ...

    session: int
    """Another session of the same env group is another client, without history."""

    @property
    def origin(self) -> int:
        """The number of the client that the env group belongs to, `types.OWN` for actors of the run."""

    request: Request
    reply: Array
    """Where the actions are written."""

    def answer(self) -> None:
        """Hand the reply over."""


class RequestServer(Waitable, Protocol):
    """Receives the requests of all env groups."""

    def calls(self) -> Sequence[Call]:
        """Requests that arrived since the last call."""

    def left(self) -> Sequence[Hashable]:
        """Env groups that disconnected since the last call; their requests need no answer."""

    def news(self) -> Sequence[str]:
        """Log lines since the last call: which clients joined, left or were refused."""

    def refused(self) -> int:
        """Clients that were dropped since the last call for what they sent."""

    def drop(self, origin: int, reason: str) -> None:
        """End the stream of a client, name it with the reason, and count it; all that once."""

    def take_metrics(self) -> Mapping[str, tuple[float, float]]:
        """What envs elsewhere measured since the last call, by name: the sum of the values, and how many they were."""

    def memory(self) -> Sequence[Array]:
        """The arrays that requests are written to, so that they can be pinned."""

    def close(self, over: str = "") -> None:
        """Accept no more requests. `over` says why the run is over, where it is: then clients elsewhere end, too."""


class Lender(Waitable, Protocol):
    """Lends objects to another role of the same process and gets them back when they were used."""

    def give(self, thing: Any) -> None: ...

    def returned(self) -> Sequence[Any]:
        """What came back since the last call."""


class Borrower(Waitable, Protocol):
    """Uses objects that another role of the same process lends."""

    def take(self) -> Any:
        """The oldest object, or None."""

    def give_back(self, thing: Any) -> None: ...


class ItemSink(Waitable, Protocol):
    """Where an actor records its steps, of which items are made for replay."""

    lost: int
    """Items that may not have arrived; whoever reports them sets it back to 0."""
    connections: int
    """How often it has connected: another service may lack what was recorded before."""
    stored: int
    """Valid steps whose items the service has confirmed, so far."""
    steps_lost: int
    """Valid steps that were on their way when the service was lost; whoever counts them sets it back to 0."""

    def ready(self) -> bool:
        """Whether the next step can be recorded now."""

    def record(
        self, seen: Timestep, state: Nest, action: Array, behaviour: Mapping[str, Array], then: Timestep
    ) -> int:
        """One step of every env: `seen` led to `action`, and that to `then`; how many of these are valid."""

    def open_steps(self) -> int:
        """Valid steps that were recorded and are neither stored nor lost yet."""

    def size(self) -> int | None:
        """Items in the table now; None while the service is away."""

    def end(self) -> None:
        """No more steps will come: what was held back is inserted, too; `ready` says when it has arrived."""

    def save(self) -> Nest:
        """What is under construction, for the inline runtime, which saves the tables at the same time."""

    def load(self, saved: Nest) -> None:
        """Continue from what `save` returned; the tables are loaded already."""

    def close(self) -> None: ...


class ItemSource(Waitable, Protocol):
    """Where a learner takes batches of items from, and gives them new priorities."""

    def take(self) -> ItemBatch | None:
        """The next batch, or None while there is none."""

    def update(self, batch: ItemBatch, priorities: Array) -> None:
        """New priorities `[B]` of a batch's items, in the order of the calls; nobody waits for them."""

    def large_bytes(self) -> int:
        """Bytes of all large observations of the table, if the learner may keep them; 0 where there are none, or
        batches always hold values."""

    def keep_rows(self) -> None:
        """From now on large observations come once, and batches hold their numbers (`replay.sampling.kept_rows`)."""

    def info(self) -> dict[str, Any]:
        """Sizes and counts of the table."""

    def save(self) -> Nest:
        """Of what was drawn and not trained on: what cannot be drawn again."""

    def load(self, saved: Nest) -> None:
        """Continue from what `save` returned; the tables are loaded already."""

    def close(self) -> None: ...


class StepTotal(Protocol):
    """The env steps of a run, summed over all roles that count them."""

    def total(self) -> int: ...

    def set_total(self, total: int) -> None:
        """Continue from that total."""


class StepCounter(StepTotal, Protocol):
    """One role's part of the env steps of a run."""

    def add(self, count: int) -> None: ...


class AllReduce(Waitable, Protocol):
    """Sums the gradients of several learners: all bring theirs, and each collects the same sum."""

    member: int
    """The number of this learner, of `members`."""
    members: int

    def bring(self, flat: Tensor) -> None:
        """Contribute float32 `[M]`, M the same for all. It must not change until the sum is collected."""

    def collect(self, flat: Tensor) -> bool:
        """Write the sum of all contributions into the same tensor; False while one is missing."""


class WeightsWriter(Protocol):
    """Publishes whole versions of one flat buffer: an array or, on a device, a tensor."""

    def publish(self, flat: Any, version: int) -> None: ...


class ShardWeights(WeightsWriter, Protocol):
    """A writer that can also read, so that a restarted role finds what its predecessor published last."""

    def version(self) -> int: ...

    def read(self, into: Any) -> int: ...


class WeightsReader(Waitable, Protocol):
    """Reads whole versions, never a mixture of two."""

    def version(self) -> int:
        """The newest version, -1 before the first."""

    def read(self, into: Any) -> int:
        """Copy the newest version and return its number."""


class GradientChannel(WeightsReader, Protocol):
    """What several learners share: their gradients go in, and the weights that these changed come out."""

    def full(self) -> Waitable | None:
        """What to wait for before the next gradient can be sent; None if it can be sent now."""

    def send(self, gradient: Array, loss: float) -> int | None:
        """A gradient for the weights that were read last; how many updates those lag behind, if that is known here."""

    def save(self) -> Nest:
        """Which weights were read last."""

    def load(self, saved: Nest) -> None:
        """Continue from what `save` returned, with weights that are where they were."""


class SharedParameters(Waitable, Protocol):
    """Weights and optimizer state in one memory, which several roles change in place without a lock."""

    rows: Array
    """`[1 + S, size]` float32: the weights, then S statistics of them."""
    counted: Array
    """Steps and updates, `[2]` int64, that were reported, so that a restarted master continues from there."""

    def ready(self) -> bool:
        """Whether the first weights are there."""

    def open(self) -> None:
        """The first weights are there: wake the roles that wait for them."""

    def resting(self) -> bool:
        """Whether changes were asked to stop."""

    def rest(self) -> None:
        """Ask all roles to change nothing any more; a change that has begun may still be made."""

    def go_on(self) -> None:
        """Let changes be made again."""

    def moved(self) -> None:
        """Count a copy of all weights, or a gradient, as traffic."""


class Policy(Waitable, Protocol):
    """Timesteps → actions, wherever the network is."""

    version: int

    @property
    def state(self) -> Nest:
        """Recurrent state before the next observation, arrays `[N, …]`."""

    def refresh(self) -> bool:
        """Use the newest weights; False while there are none."""

    def act(self, timestep: Timestep) -> tuple[Array, dict[str, Array]]:
        """Actions `[N, …]` and what the policy says of them (see `Algorithm.behaviour`)."""

    def save(self) -> Nest:
        """What the policy needs to continue."""

    def load(self, saved: Nest) -> None:
        """Continue from what `save` returned."""


class Algorithm(Protocol):
    """Pure functions over tensors: how to act, and (see the kinds below) what to minimise.

    It may offer more: `behaviour_log_prob(behaviour, allowed) -> Array | None`, the log-probabilities of actions from
    what `act` said of them and the number of actions that were allowed, for recordings (`--record`).
    """

    @property
    def behaviour(self) -> dict[str, ArraySpec]:
        """What the acting policy records per step, by name."""

    def build_network(self) -> nn.Module:
        """A fresh network for this algorithm."""

    def act(
        self, step: Callable[[Nest, Tensor, Nest], Any], observation: Nest, first: Tensor, state: Nest,
        generator: Generator | None, exploration: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor], Nest]:
        """Action, behaviour and next state for tensors `[N, …]`; greedy without a generator.

        `step` is the network for one step: (observation, first, state) → its output. `exploration` says how much each
        env explores `[N]`, for algorithms whose policies do not do so by themselves.
        """


class OnPolicyAlgorithm(Algorithm, Protocol):
    """Learns from unrolls as they come, one update per batch.

    It may offer more: `epochs`, the number of updates per batch, for one that corrects for what the first ones changed.
    """

    @property
    def reduction(self) -> str:
        """Whether the loss is the `mean` or the `sum` over its valid steps: learners that share updates need it."""

    def loss(self, network: nn.Module, batch: Unroll) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to minimise and named scalars to report, in the order in which they were computed."""


@runtime_checkable
class EpochAlgorithm(Algorithm, Protocol):
    """Learns from unrolls in epochs of minibatches. What a minibatch holds is its own choice.

    It may offer more: `on_arrays(network) -> ArrayLoss | None`, a faster `loss` on a CPU, and `synced()`
    (`SyncedEpochAlgorithm`) for several learners.
    """

    def check_batch(self, length: int, envs: int) -> None:
        """Raise `UserError` if batches of `length` steps of `envs` envs cannot be cut into minibatches."""

    def prepare(self, network: nn.Module, batch: Unroll, fresh: bool) -> Any:
        """All steps of a batch, with what is computed once for all epochs. `fresh`: acted with the present weights."""

    def minibatches(self, steps: Any) -> Iterator[tuple[Any, bool]]:
        """The minibatches of all epochs, and whether to report scalars of each; of the last one always."""

    def loss(self, network: nn.Module, steps: Any, report: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to minimise for a minibatch, and named scalars if they are to be reported."""

    def enough(self, scalars: Mapping[str, float]) -> bool:
        """Whether to skip the rest of the batch, after these scalars of a minibatch."""


ArrayLoss: TypeAlias = Callable[[Any, bool], tuple[float, dict[str, float]]]
"""`EpochAlgorithm.loss` of minibatches that are arrays. It replaces the `.grad` of the network's parameters by the
gradient, and returns the loss and the scalars as numbers."""


@runtime_checkable
class SyncedEpochAlgorithm(EpochAlgorithm, Protocol):
    """One whose minibatches several learners can share."""

    def synced(self) -> SyncedEpochs:
        """What stands for `prepare` and `minibatches` then."""


class SyncedEpochs(Protocol):
    """How several learners train on one batch, each on its own part of every minibatch.

    `prepare` and `epoch` yield float32 numbers of this learner's part, and are sent those of all, `[learners, …]`.
    """

    @property
    def epochs(self) -> int:
        """Epochs per batch, at most."""

    def prepare(self, network: nn.Module, batch: Unroll, fresh: bool) -> Work[Tensor, Tensor, Any]:
        """`EpochAlgorithm.prepare`."""

    def epoch(self, steps: Any) -> Work[Tensor, Tensor, Sequence[tuple[Any, Tensor]]]:
        """The minibatches of one epoch, each with the number of its valid steps."""

    def synced_buffers(self, network: nn.Module) -> Sequence[Tensor]:
        """Buffers of the network that `prepare` keeps equal on all learners."""


class ItemRules(Protocol):
    """What a table must know of an algorithm: what its items are, and what is stored beside their steps."""

    @property
    def experience(self) -> Experience:
        """What the items are."""

    @property
    def behaviour(self) -> dict[str, ArraySpec]:
        """What is recorded of the acting policy per step, by name."""

    def initial_priority(self, steps: Any) -> Array:
        """Priorities `[n]` of n new items."""


class ReplayAlgorithm(Algorithm, Protocol):
    """Learns from items that are drawn again and again, mostly with a target network beside the network.

    It may offer more: `on_arrays(network, target) -> ReplayArrayLoss | None`, a faster `loss` on a CPU.
    """

    @property
    def experience(self) -> Experience:
        """What the items are."""

    @property
    def target_updates(self) -> TargetUpdates | None:
        """How the target network follows; None: there is none, and `loss` gets the network itself."""

    def exploration(self, envs: Array, of: int, steps: int) -> Array:
        """How much each of `envs`, of `of` in the run, explores after `steps` steps of all of them, `[N]` float32."""

    @property
    def part_delays(self) -> tuple[int, ...]:
        """For every part of the network that is trained apart (`part_sizes`), every how many updates it is."""

    def initial_priority(self, steps: Any) -> Array:
        """Priorities `[n]` of n new items, from what the acting policy recorded of them.

        `steps` is a `TransitionStats` if `experience` is `Transitions`, and a `SequenceStats` if it is `Sequences`.
        Give what `loss` would give for these items. The recorder adds `SMALLEST_PRIORITY`. Ones will do for a table
        that draws uniformly.
        """

    def loss(self, network: nn.Module, target: nn.Module, batch: Any, weight: Tensor, update: int) -> LossOutput:
        """For a batch of items (`Transition` or `Sequence`), their importance weights `[B]` and the update's number."""


ReplayArrayLoss: TypeAlias = Callable[[Any, Array], LossOutput]
"""`ReplayAlgorithm.loss` of items and weights that are arrays. It replaces the `.grad` of the network's parameters by
the gradient, and returns numbers, and an array of priorities."""
