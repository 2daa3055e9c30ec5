"""From an env's spec and a config to a network.

A user's own network comes from a `NetworkFactory`; docs/guide/own-network.md says which members it must have. The
number of policy parameters is `distribution_for(env_spec.action).parameter_size`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import optree
from torch import nn

from pappus.actions import continuous_only, one_choice_only
from pappus.config import NetworkConfig
from pappus.errors import UserError
from pappus.imports import imported_callable
from pappus.networks.cores import GRUCore, LSTMCore
from pappus.networks.frame_stack import FrameStack
from pappus.networks.modules import MLP, ActorCritic, Core, Encoder, Flat, NoCore, PolicyValueHead, Torso, split_mask
from pappus.networks.normed_mlps import NormedPolicyCritics
from pappus.networks.policy_critics import DistributionalDeterministic, PolicyCritics, TwinDeterministic
from pappus.networks.q_networks import QHead, QNetwork
from pappus.networks.torsos import CNN, ImpalaDeep, MinAtarCNN, NatureCNN, OneHot, Pixels
from pappus.ops.value_distributions import Atoms
from pappus.types import ACTION_MASK, ArraySpec, ContinuousAction, DiscreteAction, EnvSpec, Nest

NetworkFactory: TypeAlias = Callable[[EnvSpec, NetworkConfig], nn.Module]

CNNS: dict[str, type[CNN]] = {"nature": NatureCNN, "minatar": MinAtarCNN, "impala-deep": ImpalaDeep}

CORES: dict[str, Callable[[int, int], Core]] = {"none": lambda size, _: NoCore(size), "lstm": LSTMCore, "gru": GRUCore}


def build_actor_critic(env: EnvSpec, config: NetworkConfig, replay: bool = False) -> ActorCritic:
    """An actor-critic for this env that learns from fresh unrolls, or else from `replay`; raises `UserError` for
    combinations that cannot work."""
    if replay:
        _refuse_moments(config)
    torso, core, frame_stack = _body_parts(env, config)
    head = PolicyValueHead(core.output_size, env.action, config.deviation == "predicted")
    return ActorCritic(torso, core, head, frame_stack)


def build_q_network(
    env: EnvSpec, config: NetworkConfig, dueling: bool = True, hidden: int = 0, quantiles: int = 1,
    replay: bool = True,
) -> QNetwork:
    """A Q network for this env that learns from `replay`, or else from fresh unrolls; raises `UserError` for
    combinations that cannot work."""
    if reason := one_choice_only(env.action):
        raise UserError(f"a Q network {reason}")
    assert isinstance(env.action, DiscreteAction)
    if replay:
        _refuse_moments(config)
    torso, core, frame_stack = _body_parts(env, config)
    return QNetwork(torso, core, QHead(core.output_size, env.action.n, dueling, hidden, quantiles), frame_stack)


def build_twin_deterministic(
    env: EnvSpec, config: NetworkConfig, num_critics: int = 2, correlated_noise: bool = False
) -> TwinDeterministic:
    """A policy and its critics on one encoder, which may scale observations by their moments; layer norms are the
    critics'. Raises `UserError` for combinations that cannot work."""
    if reason := continuous_only(env.action):
        raise UserError(f"a deterministic policy {reason}")
    assert isinstance(env.action, ContinuousAction)
    return TwinDeterministic(
        _plain_encoder(env, config), env.action.shape, config.hidden_sizes, config.activation,
        layer_norm=config.layer_norm, num_critics=num_critics, memory_spec=env.action.array if correlated_noise else (),
    )


def build_distributional(
    env: EnvSpec, config: NetworkConfig, atoms: Atoms, num_critics: int = 1, correlated_noise: bool = False,
    critic_sizes: tuple[int, ...] = (),
) -> DistributionalDeterministic:
    """The same with critics that give distributions over these atoms; of sizes of their own, if there are some."""
    if reason := continuous_only(env.action):
        raise UserError(f"a deterministic policy {reason}")
    assert isinstance(env.action, ContinuousAction)
    return DistributionalDeterministic(
        _plain_encoder(env, config), env.action.shape, config.hidden_sizes, config.activation, atoms=atoms,
        layer_norm=config.layer_norm, num_critics=num_critics, memory_spec=env.action.array if correlated_noise else (),
        critic_sizes=critic_sizes,
    )


def build_policy_critics(
    env: EnvSpec, config: NetworkConfig, *, squash: bool = False, value: bool = False, temperature: float = 0.0
) -> PolicyCritics:
    """A stochastic policy and twin critics; layer norms are those of critics and value. See `PolicyCritics`."""
    if config.deviation == "predicted" and not squash:
        raise UserError("network.deviation='predicted' is for bc and on-policy algorithms; iql and awac have 'free'")
    return PolicyCritics(
        _plain_encoder(env, config), env.action, config.hidden_sizes, config.activation, layer_norm=config.layer_norm,
        squash=squash, value=value, temperature=temperature,
    )


def build_normed_policy_critics(
    env: EnvSpec, config: NetworkConfig, critic_sizes: tuple[int, ...], warm_up: int, temperature: float
) -> NormedPolicyCritics:
    """The same of MLPs with batch renormalisation, for CrossQ; continuous actions."""
    assert isinstance(env.action, ContinuousAction)
    if config.layer_norm:
        raise UserError("network.layer_norm=True: crossq's networks have batch norms; leave it out, or use sac")
    return NormedPolicyCritics(
        _plain_encoder(env, config), env.action, config.hidden_sizes, critic_sizes, config.activation, warm_up=warm_up,
        temperature=temperature,
    )


def _plain_encoder(env: EnvSpec, config: NetworkConfig) -> Encoder:
    """From observations to features without a trunk, for networks without memory."""
    if env.frame_stack > 1 or config.core != "none":
        raise UserError(
            f"core={config.core!r} with frame_stack={env.frame_stack} needs memory, and this policy has none; use "
            "core='none' without a frame stack"
        )
    _check(env, config)
    observation, _ = split_mask(env.observation)
    return _encoder(observation, _choose_cnns(observation, config), config, trunk=False)


def own_network(env: EnvSpec, config: NetworkConfig, *members: str) -> nn.Module | None:
    """The user's own network, if the config names one; it must have these members."""
    if not config.factory:
        return None
    factory: NetworkFactory = imported_callable(config.factory, "network.factory=", takes=("env", "config"))
    network = factory(env, config)
    if missing := [name for name in members if not hasattr(network, name)]:
        raise UserError(
            f"network.factory={config.factory} gives a {type(network).__name__} without {', '.join(missing)}, which "
            "this algorithm calls; add what is missing, or leave the factory out"
        )
    return network


def _body_parts(env: EnvSpec, config: NetworkConfig) -> tuple[Encoder, Core, FrameStack | None]:
    _check(env, config)
    observation, _ = split_mask(env.observation)
    cnns = _choose_cnns(observation, config)
    frame_stack = FrameStack(env.frame_stack, observation) if env.frame_stack > 1 else None
    stacked = observation if frame_stack is None else frame_stack.output_spec
    torso = _encoder(stacked, cnns, config)
    return torso, CORES[config.core](torso.output_size, config.core_size), frame_stack


def _choose_cnns(observation: Nest, config: NetworkConfig) -> list[type[CNN] | None]:
    """The CNN for each leaf of single frames, or None for a leaf that is no image."""
    leaves: list[ArraySpec] = optree.tree_leaves(observation)
    if config.torso == "mlp":
        return [None for _ in leaves]
    if config.torso == "auto":
        return [_usual_cnn(leaf) for leaf in leaves]
    cnn = CNNS[config.torso]
    chosen = [cnn if _is_image(leaf, cnn) else None for leaf in leaves]
    if not any(chosen):
        shapes = ", ".join(str(list(leaf.shape)) for leaf in leaves)
        raise UserError(
            f"torso={config.torso!r} needs an image of at least {cnn.smallest_side} pixels a side, but the "
            f"observation has shape {shapes}; use torso='mlp'"
        )
    return chosen


def _usual_cnn(leaf: ArraySpec) -> type[CNN] | None:
    """Images are uint8; grids whose channels are kinds of objects are bool."""
    if leaf.dtype == "uint8" and _is_image(leaf, NatureCNN):
        return NatureCNN
    if leaf.dtype == "bool" and len(leaf.shape) == 3 and _is_image(leaf, MinAtarCNN):
        return MinAtarCNN
    return None


def _is_image(leaf: ArraySpec, cnn: type[CNN]) -> bool:
    """2-D, or 3-D with the channels first or last, and large enough for this CNN."""
    if leaf.num_values is not None or len(leaf.shape) not in (2, 3):
        return False
    pixels = Pixels(leaf)
    return min(pixels.height, pixels.width) >= cnn.smallest_side


def _encoder(observation: Nest, cnns: list[type[CNN] | None], config: NetworkConfig, trunk: bool = True) -> Encoder:
    leaves: list[ArraySpec] = optree.tree_leaves(observation)
    torsos = [_torso(leaf, cnn, config) for leaf, cnn in zip(leaves, cnns, strict=True)]
    if not trunk or (len(leaves) == 1 and cnns[0] is not None):
        return Encoder(torsos, None)
    width = sum(torso.output_size for torso in torsos)
    return Encoder(torsos, MLP(width, config.hidden_sizes, config.activation, config.layer_norm))


def _torso(leaf: ArraySpec, cnn: type[CNN] | None, config: NetworkConfig) -> Torso:
    if cnn is not None:
        return cnn(leaf, config.layer_norm)
    return Flat(leaf, config.normalize) if leaf.num_values is None else OneHot(leaf)


def _refuse_moments(config: NetworkConfig) -> None:
    if config.normalize:
        raise UserError(
            "network.normalize=True: running moments need fresh experience, and this algorithm learns from "
            "replay; scale the observations in the env, or use ppo"
        )


def _check(env: EnvSpec, config: NetworkConfig) -> None:
    if not config.hidden_sizes or min(config.hidden_sizes) < 1:
        raise UserError(f"hidden_sizes={config.hidden_sizes} must be layers of at least 1 unit; use e.g. (64, 64)")
    if config.core_size < 1:
        raise UserError(f"core_size={config.core_size} must be at least 1; use for example 64, or core='none'")
    if not env.masked:
        return
    if isinstance(env.action, ContinuousAction):
        raise UserError(
            f"the observation's {ACTION_MASK!r} cannot mask the continuous action {env.action}; remove the key"
        )
    size = env.observation[ACTION_MASK].shape
    if size != (env.action.mask_size,):
        raise UserError(
            f"the observation's {ACTION_MASK!r} has shape {list(size)}, but {env.action} has "
            f"{env.action.mask_size} choices in total; give the mask one entry for each"
        )
