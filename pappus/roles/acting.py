"""Acting: a network that follows published weights, and the actors that step their envs with it.

    Actor        env ⇄ policy ──steps──▶ writer ──unrolls──▶ sink
    ReplayActor  env ⇄ policy ──steps──▶ recorder ──items──▶ replay
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import optree
import torch

from pappus.algorithms.choices import ActionChoice, choice_of
from pappus.core import Algorithm, ItemSink, Policy, ReplayAlgorithm, Sink, StepCounter, Waitable, WeightsReader
from pappus.data.recorder import EpisodeRecorder, Recording
from pappus.envs.vector import VectorEnv
from pappus.networks.flat import FlatParameters
from pappus.networks.numpy_mlp import numpy_mlp
from pappus.networks.steps import single_step
from pappus.ops.numpy_ops import NoiseAhead
from pappus.overrides import stands_for
from pappus.recording.unrolls import UnrollWriter
from pappus.roles.role import Role
from pappus.telemetry.accounts import LOST, RECEIVED, STORED
from pappus.telemetry.env_timer import EnvTimer
from pappus.telemetry.metrics import Metrics
from pappus.types import Array, Episodes, Nest, Timestep, map_leaves

MAY_HAVE_ENDED = Episodes(np.empty(0), np.empty(0), np.empty(0, np.int64))
"""The episodes of a timestep of which it is no longer known which have ended."""
DTYPES = {"float32": torch.float32, "mixed": torch.float32, "bfloat16": torch.bfloat16}

Transform: TypeAlias = Callable[[Any], Any]
"""The network's output for one step → the output to act on, such as `output._replace(policy=output.policy / 2)`.

It gets `Output` or `QOutput` of tensors or of NumPy arrays `[N, …]`: use operators that both have."""


class ActingNetwork:
    """A copy of the network that follows the published weights. Its callers keep the recurrent state. It samples
    actions from `seed`, or acts greedily without one. `transform` changes the output that actions are chosen from."""

    def __init__(
        self, algorithm: Algorithm, weights: WeightsReader, seed: int | None, precision: str,
        transform: Transform | None = None, device: str = "cpu",
    ) -> None:
        self._algorithm, self._weights = algorithm, weights
        self._device = device
        self._tensor: Callable[[Array], torch.Tensor] = torch.from_numpy
        if device != "cpu":
            self._tensor = lambda array: torch.from_numpy(array).to(device)
        self._network: Any = algorithm.build_network()
        self._network.requires_grad_(False).eval()
        self._carries_exploration = hasattr(self._network, "exploration")  # to ask a module each time takes 7 µs
        self._flat = FlatParameters(self._network, DTYPES[precision], device)
        self._step, mlp = _transformed(single_step(self._network), transform), numpy_mlp(self._network)
        self._received = np.empty(self._flat.size, np.float32)
        self._generator = None if seed is None else torch.Generator(device).manual_seed(seed)
        self._noise = None if mlp is None or self._generator is None else _numpy_noise(algorithm, self._generator)
        self._numpy_step = None if mlp is None else _transformed(mlp, transform)
        self._act_numpy: Any = getattr(algorithm, "act_numpy", None)
        self.name, self.version = weights.name, -1
        self.explain, self.fileno, self.clear = weights.explain, weights.fileno, weights.clear

    def initial_state(self, num_envs: int) -> Nest:
        """The recurrent state before an episode, tensors `[N, …]`."""
        return self._network.initial_state(num_envs)

    def refresh(self) -> bool:
        """Use the newest weights; False while there are none."""
        newest = self._weights.version()
        if newest < 0:
            return False
        if newest != self.version:
            self.version = self._weights.read(self._received)
            self._flat.values.copy_(torch.from_numpy(self._received))
        return True

    def infer(
        self, observation: Nest, first: Array, state: Nest, exploration: torch.Tensor | None = None
    ) -> tuple[Array, dict[str, Array], Nest]:
        """Actions `[N, …]`, the behaviour to record with them, and the state after them. `exploration` is how much each
        env explores `[N]`, for algorithms that take it; a network may carry that beside its weights."""
        if self._carries_exploration:
            exploration = self._network.exploration
        if self._noise is not None and isinstance(observation, np.ndarray):
            explored = None if exploration is None else exploration.numpy()
            return *self._act_numpy(self._numpy_step, observation, self._noise, explored), state
        return self.choose(observation, first, state, self._generator, exploration)

    def choose(
        self, observation: Nest, first: Array, state: Nest, generator: torch.Generator | None = None,
        exploration: torch.Tensor | None = None,
    ) -> tuple[Array, dict[str, Array], Nest]:
        """The same with a generator of the caller's; greedily without one."""
        with torch.inference_mode():
            action, behaviour, state = self._algorithm.act(
                self._step, map_leaves(self._tensor, observation), self._tensor(first), state, generator,
                None if exploration is None else exploration.to(self._device),
            )
        return action.cpu().numpy(), {key: leaf.cpu().numpy() for key, leaf in behaviour.items()}, state

    def choices(
        self, observation: Nest, first: Array, state: Nest, greedy: bool = False, epsilon: float = 0.0
    ) -> tuple[ActionChoice, Nest]:
        """How the policy chooses at T observations of N envs, `[T, N, …]`, and the state after them (`choice_of`)."""
        with torch.inference_mode():
            seen, starts = map_leaves(self._tensor, observation), self._tensor(first)
            output = self._network(seen, starts, state)
            return choice_of(self._algorithm, output, seen, starts, greedy, epsilon), output.state

    @property
    def network(self) -> Any:
        """The network itself, to look into."""
        return self._network

    @property
    def weights(self) -> Array:
        """The flat weights in use."""
        return self._received

    @property
    def algorithm(self) -> Algorithm:
        """Whose network it is."""
        return self._algorithm

    def save(self) -> Nest:
        """Weights in use and random state."""
        assert self._generator is not None
        random = {"generator": self._generator.get_state()} if self._noise is None else self._noise.save()
        return {"received": self._received.copy(), "version": self.version, "random": random}

    def load(self, saved: Nest) -> None:
        assert self._generator is not None
        self._received[:] = saved["received"]
        self._flat.values.copy_(torch.from_numpy(self._received))
        self.version = saved["version"]
        if self._noise is None:
            self._generator.set_state(saved["random"]["generator"])
        else:
            self._noise.load(saved["random"])


def _transformed(step: Callable[..., Any], transform: Transform | None) -> Callable[..., Any]:
    return step if transform is None else lambda *inputs: transform(step(*inputs))


def _numpy_noise(algorithm: Any, generator: torch.Generator) -> NoiseAhead | None:
    """The noise for `algorithm.act_numpy`, unless `act` or `_recorded` was overridden without it."""
    slow = ("act", "_recorded")
    if not stands_for(type(algorithm), "act_numpy", *slow) or any(name in vars(algorithm) for name in slow):
        return None
    return None if algorithm.numpy_noise is None else NoiseAhead(algorithm.numpy_noise, generator)


class LocalPolicy(ActingNetwork):
    """Acts for `num_envs` envs and keeps their recurrent state; greedily without a seed."""

    def __init__(
        self, algorithm: Algorithm, weights: WeightsReader, num_envs: int, seed: int | None,
        precision: str = "float32", explore: Callable[[], Array] | None = None, transform: Transform | None = None,
        device: str = "cpu",
    ) -> None:
        """`explore` returns how much each env explores `[N]`; it is called whenever weights are refreshed."""
        super().__init__(algorithm, weights, seed, precision, transform, device)
        self._explore = explore
        self._exploration: torch.Tensor | None = None
        self._state = self.initial_state(num_envs)

    def refresh(self) -> bool:
        if not super().refresh():
            return False
        if self._explore is not None:
            self._exploration = torch.from_numpy(self._explore())
        return True

    @property
    def state(self) -> Nest:
        """Recurrent state before the next observation, arrays `[N, …]`."""
        return optree.tree_map(lambda leaf: leaf.numpy(), self._state)

    def act(self, timestep: Timestep) -> tuple[Array, dict[str, Array]]:
        """Actions `[N, …]` and the behaviour to record with them."""
        action, behaviour, self._state = self.infer(
            timestep.observation, timestep.first, self._state, self._exploration
        )
        return action, behaviour

    def save(self) -> Nest:
        return {**super().save(), "state": optree.tree_leaves(self._state), "exploration": self._exploration}

    def load(self, saved: Nest) -> None:
        super().load(saved)
        self._exploration = saved.get("exploration")
        self._state = optree.tree_unflatten(optree.tree_structure(self._state), saved["state"])


def exploration_of(
    algorithm: ReplayAlgorithm, actor: int, actors: int, num_envs: int, counter: StepCounter
) -> Callable[[], Array]:
    """How much each of an actor's `num_envs` envs explores now."""
    envs = actor * num_envs + np.arange(num_envs)
    return lambda: algorithm.exploration(envs, actors * num_envs, counter.total())


def saved_acting(
    env: VectorEnv, policy: Policy, timestep: Timestep, recorder: EpisodeRecorder | None
) -> dict[str, Nest] | None:
    """What all actors need to continue: envs, policy, the last timestep; None where the envs have no snapshot."""
    envs = env.snapshot()
    if envs is None:
        return None
    record = {} if recorder is None else recorder.save()
    return {"env": envs, "policy": policy.save(), "timestep": list(timestep[:5]), "record": record}


def loaded_acting(state: Nest, env: VectorEnv, policy: Policy, recorder: EpisodeRecorder | None) -> Timestep:
    """Continue from what `saved_acting` returned; the last timestep."""
    env.restore(state["env"])
    policy.load(state["policy"])
    if recorder is not None and state.get("record"):
        recorder.load(state["record"])
    return Timestep(*state["timestep"])._replace(episodes=MAY_HAVE_ENDED)


class Actor(Role):
    """Writes unrolls of its envs. Fresh weights are taken once per unroll."""

    def __init__(
        self, name: str, env: VectorEnv, policy: Policy, sink: Sink, unroll_length: int,
        recording: Recording | None = None,
    ) -> None:
        """`recording` gets every step, too."""
        super().__init__(name)
        self._recorder = None if recording is None else recording.recorder(name, env.num_envs, env.seeds)
        self._env, self._policy, self._sink, self._recording = env, policy, sink, recording
        self._writer = UnrollWriter(unroll_length)
        self._num_envs, self._steps_per_unroll = env.num_envs, unroll_length * env.num_envs
        self._timestep = env.reset()
        self.metrics.measure(env.take_metrics)
        self._step_envs = self.metrics.time(EnvTimer(env.step))

    def step(self) -> Waitable | None:
        """Step every env once, or return the port without which the next unroll cannot begin."""
        if self._writer.full:
            slot = self._sink.acquire()
            if slot is None:
                return self._sink
            if not self._policy.refresh():
                return self._policy
            self._writer.begin(slot, self._timestep, self._policy.state)
        if self._recorder is not None and not self._recorder.begun:
            self._recorder.begin(self._timestep)
        seen = self._timestep
        action, behaviour = self._policy.act(seen)
        self._timestep = timestep = self._step_envs(action)
        # steps are invalid only where an episode ends or has just ended: to count flags every time would take longer
        ended = timestep.episodes is not None or seen.episodes is not None
        self.account.words[RECEIVED] += int(np.count_nonzero(timestep.valid)) if ended else self._num_envs
        self._writer.append(action, behaviour, self._policy.version, timestep)
        if self._recorder is not None:
            self._recorder.record(action, behaviour, timestep)
        if timestep.episodes is not None:
            self.metrics.episodes(timestep.episodes.returns, timestep.episodes.lengths)
        if self._writer.full:
            self._sink.commit(self._writer.valid())
            self.metrics.count("env_steps", self._steps_per_unroll)
        return None

    def save(self) -> Nest | None:
        """Everything down to the env's state, or None where the env cannot be snapshotted."""
        acting = saved_acting(self._env, self._policy, self._timestep, self._recorder)
        if acting is None:
            self.afresh = self._env.no_snapshot()
            return None
        return {**acting, "time": self._writer.time}

    def load(self, state: Nest) -> None:
        self._timestep = loaded_acting(state, self._env, self._policy, self._recorder)
        slot = self._sink.acquire()
        if slot is not None:
            self._writer.resume(slot, state["time"])

    def handed_on(self) -> int:
        return self._sink.handed_on()

    def close(self) -> None:
        """Count the unroll that is not full as dropped."""
        self.drop(self._writer.held())
        if self._recording is not None:
            self._recording.close()
        self._env.close()


class ReplayActor(Role):
    """Records every step for replay. The policy gets new weights every `refresh_every` steps."""

    def __init__(
        self, name: str, env: VectorEnv, policy: Policy, sink: ItemSink, counter: StepCounter, refresh_every: int,
        recording: Recording | None = None,
    ) -> None:
        """`recording` gets every step, too."""
        super().__init__(name)
        self._recorder = None if recording is None else recording.recorder(name, env.num_envs, env.seeds)
        self._env, self._policy, self._sink, self._counter, self._recording = env, policy, sink, counter, recording
        self._refresh_every = max(1, refresh_every // env.num_envs)
        self._until_refresh = 0
        self._timestep = env.reset()
        self.metrics.measure(env.take_metrics)
        self._step_envs = self.metrics.time(EnvTimer(env.step))
        self._stored = 0
        """Steps stored so far, as far as they were counted."""

    def step(self) -> Waitable | None:
        ready = self._sink.ready()
        self._stored = count_stored(self, self._sink, self._stored)
        if not ready:
            return self._sink
        if self._until_refresh == 0:
            if not self._policy.refresh():
                return self._policy
            self._until_refresh = self._refresh_every
        self._until_refresh -= 1
        seen, state = self._timestep, self._policy.state
        seen = seen._replace(observation=map_leaves(np.copy, seen.observation))  # the env may overwrite it
        action, behaviour = self._policy.act(seen)
        self._timestep = then = self._step_envs(action)
        steps = self._sink.record(seen, state, action, behaviour, then)
        self.account.words[RECEIVED] += steps
        if self._recorder is not None:
            if not self._recorder.begun:
                self._recorder.begin(seen)
            self._recorder.record(action, behaviour, then)
        self._counter.add(steps)
        self.metrics.count("env_steps", steps)
        if then.episodes is not None:
            self.metrics.episodes(then.episodes.returns, then.episodes.lengths)
        return None

    def save(self) -> Nest | None:
        """As an actor of unrolls, and the items under construction."""
        acting = saved_acting(self._env, self._policy, self._timestep, self._recorder)
        if acting is None:
            self.afresh = self._env.no_snapshot()
            return None
        return {**acting, "until_refresh": self._until_refresh, "sink": self._sink.save()}

    def load(self, state: Nest) -> None:
        self._timestep = loaded_acting(state, self._env, self._policy, self._recorder)
        self._until_refresh = state["until_refresh"]
        self._sink.load(state["sink"])

    def close(self) -> None:
        """Count what the table has not confirmed as dropped."""
        self._stored = count_stored(self, self._sink, self._stored)
        self.drop(self._sink.open_steps())
        if self._recording is not None:
            self._recording.close()
        self._sink.close()
        self._env.close()


def count_stored(role: Role, sink: ItemSink, before: int) -> int:
    """Count the steps that a sink has stored since the sum `before`, and what was on its way to a replay service that
    died; the sum now."""
    role.account.words[STORED] += sink.stored - before
    if sink.steps_lost:
        role.account.words[LOST] += sink.steps_lost
        sink.steps_lost = 0
    report_lost(role.metrics, sink)
    return sink.stored


def report_lost(metrics: Metrics, sink: ItemSink) -> None:
    """Count the items that were on their way to a replay service when it died."""
    if sink.lost:
        metrics.count("items_lost", sink.lost)
        metrics.event(f"lost the replay service; {sink.lost} unconfirmed items may be lost")
        sink.lost = 0
