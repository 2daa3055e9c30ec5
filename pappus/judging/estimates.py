"""`estimate`: what the policy of a run would earn, from a data set that others played."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pappus.accelerator import one_thread
from pappus.algorithms.choices import is_sampled
from pappus.config import RunConfig
from pappus.data.dataset import Dataset, open_dataset
from pappus.data.specs import check_spec, shown_spec, spec_of
from pappus.envs.spaces import Space, action_converter
from pappus.errors import UserError, closest
from pappus.judging.behaviour import cloned_log_prob
from pappus.judging.fitted_q import FittedQ, FQEConfig
from pappus.judging.logged import Asked, Logged, read_logged
from pappus.judging.report import Estimate, Estimates
from pappus.judging.wording import assumptions, reachable, warnings
from pappus.ops import off_policy
from pappus.ops.bootstrap import episode_interval, jackknife_interval
from pappus.roles.acting import LocalPolicy
from pappus.system import System
from pappus.systems import saved_config
from pappus.trained import policy_on_data, unused_settings
from pappus.types import Array, ContinuousAction, EnvSpec

WEIGHTED = ("is", "wis", "dr", "wdr")
METHODS = (*WEIGHTED, "fqe")
FEWEST_FOR_INTERVAL = 2
"""Effective episodes: fewer say nothing of how much another one would differ."""
LARGEST_WEIGHT = 1e6
"""Where one weight is larger, it is alone in any data set of fewer episodes."""


class Question(NamedTuple):
    """What is asked, beside run and data."""

    methods: tuple[str, ...]
    confidence: float
    discount: float
    clip: float
    asked: Asked
    fqe: FQEConfig


def estimate(
    run: str | Path, data: str | Path, methods: Sequence[str] | None = None, *, confidence: float = 0.95,
    discount: float = 0.99, greedy: bool = False, epsilon: float = 0.0, clip: float = LARGEST_WEIGHT, seed: int = 0,
    checkpoint: str = "latest", env: Callable[..., Any] | None = None, system: System | None = None,
    fqe: FQEConfig | None = None, trust: bool = False,
) -> Estimates:
    """Estimate the discounted return of a run's policy from a data set, without an env.

    `methods` are of `is`, `wis`, `dr`, `wdr` and `fqe`; by default all that the policy allows. The policy is the one
    that samples, where it does; `greedy` asks for its most likely actions. `epsilon` is the share of random actions of
    a policy that has one best action. No importance weight is larger than `clip`. Give `env` and `system` again where
    they were Python values; for `trust` see `load_policy`.
    """
    question = Question(
        tuple(methods or METHODS), confidence, discount, clip, Asked(greedy, epsilon, seed), fqe or FQEConfig()
    )
    _check(question)
    dataset = open_dataset(data)
    if dataset.num_episodes < 1:
        raise UserError(f"data {str(data)!r} holds no episode, so nothing can be estimated; record one or more")
    _, config = saved_config(Path(run), system, trust=trust, without=unused_settings(env))
    spec = _spec_of(dataset, config, env)
    policy = policy_on_data(run, spec, checkpoint, system, trust)
    described = _described(policy, spec, question.asked)
    with one_thread():  # the networks are small: more threads would only wait for each other
        logged = read_logged(dataset, policy, spec, config.env_options.last_inputs, question.asked)
        _check_steps(logged, question)
        return judge(logged, dataset.action_space, question, described, explicit=methods is not None)


def judge(logged: Logged, space: Space, question: Question, described: str, explicit: bool) -> Estimates:
    """The estimates from steps that were read; `explicit`: a method that cannot be used is an error."""
    wanted = _possible(logged, question.methods, explicit)
    generator = np.random.default_rng(question.asked.seed)
    returns = off_policy.discounted_returns(off_policy.padded(logged.reward, logged.lengths), question.discount)
    played = off_policy.importance_sampling(np.ones((1, len(returns))), returns[None], 1.0)
    weights = cloned = None
    if set(wanted) & set(WEIGHTED):
        behaviour, cloned = logged.behaviour, logged.behaviour is None
        if behaviour is None:
            behaviour = cloned_log_prob(logged, action_converter(space)[0], question.asked.seed)
        weights = _weights(logged, behaviour, question.clip)
    fits = _fits(logged, space, question, wanted, generator)
    found = tuple(_estimate(method, logged, weights, fits, question, generator) for method in wanted)
    total = off_policy.padded(logged.reward, logged.lengths).sum(0).mean()
    draft = Estimates(
        found, Estimate("behaviour", played.estimate, episode_interval(played, question.confidence, generator)),
        float(total), question.confidence, question.discount, len(logged.lengths), len(logged.reward), described,
        cloned,
        None if weights is None else weights.largest, None if weights is None else weights.mean,
        None if weights is None else weights.clipped,
    )
    return replace(
        draft, assumptions=assumptions(draft),
        warnings=warnings(draft, logged, question.methods, question.clip, fits.start if fits else None),
    )


class Fits(NamedTuple):
    """Q by several fits."""

    start: float
    """Mean V(o_0), by the fit of all episodes."""
    left_out: Array
    """The same, without each group of episodes in turn `[G]`."""
    q: Array
    """Q(o_t, a_t) by a fit of the other half of the episodes, padded `[T, E]`."""
    value: Array
    """V(o_t) by the same, `[T + 1, E]`; 0 after a termination."""


def _fits(
    logged: Logged, space: Space, question: Question, wanted: Sequence[str], generator: np.random.Generator
) -> Fits | None:
    if not set(wanted) & {"dr", "wdr", "fqe"}:
        return None
    episodes = len(logged.lengths)
    half = generator.permutation(episodes) % 2
    halves = np.stack([half == 1, half == 0]) if episodes > 1 else np.ones((2, 1))
    weight = np.concatenate([np.ones((1, episodes)), halves])
    fitted = FittedQ(logged, space, question.discount, weight, question.asked.seed, question.fqe)
    return Fits(*fitted.mean_at_start(), *_of_the_other_half(fitted, logged, half, question.discount))


def _of_the_other_half(fitted: FittedQ, logged: Logged, half: Array, discount: float) -> tuple[Array, Array]:
    """Q and V as `Fits` has them. `half` says which fit, 1 + 0 or 1 + 1, does not know an episode, `[E]`."""
    of_rows, of_steps = np.repeat(half, logged.lengths + 1), np.repeat(half, logged.lengths)
    bounds = reachable(logged.reward, discount)
    value = np.where(of_rows == 0, fitted.value(1), fitted.value(2)).clip(*bounds)
    value = off_policy.padded(value, logged.lengths, 1)
    value[logged.lengths, np.arange(len(half))] *= ~logged.terminated
    q = np.where(of_steps == 0, fitted.q(1), fitted.q(2)).clip(*bounds)
    return off_policy.padded(q, logged.lengths), value


def _estimate(
    method: str, logged: Logged, weights: off_policy.Weights | None, fits: Fits | None, question: Question,
    generator: np.random.Generator,
) -> Estimate:
    if method == "fqe":
        assert fits is not None
        bounds = reachable(logged.reward, question.discount)
        value = float(np.clip(fits.start, *bounds))
        if len(fits.left_out) < 2:
            return Estimate(method, value)
        low, high = np.clip(jackknife_interval(fits.start, fits.left_out, question.confidence), *bounds).tolist()
        return Estimate(method, value, (low, high))
    assert weights is not None
    reward, discount = off_policy.padded(logged.reward, logged.lengths), question.discount
    if method in ("is", "wis"):
        plain = off_policy.importance_sampling if method == "is" else off_policy.weighted_importance_sampling
        sums = plain(weights.rho, reward, discount)
    else:
        assert fits is not None
        robust = off_policy.doubly_robust if method == "dr" else off_policy.weighted_doubly_robust
        sums = robust(weights.rho, reward, fits.q, fits.value, discount)
    enough = weights.effective >= FEWEST_FOR_INTERVAL
    interval = episode_interval(sums, question.confidence, generator) if enough else None
    return Estimate(method, sums.estimate, interval, weights.effective)


def _weights(logged: Logged, behaviour: Array, clip: float) -> off_policy.Weights:
    assert logged.log_prob is not None
    if not np.isfinite(behaviour).all():
        raise UserError(
            f"{np.count_nonzero(~np.isfinite(behaviour))} of {len(behaviour)} recorded log_prob are no finite numbers, "
            "so these actions have no weight; record the data again, or use --methods fqe"
        )
    if np.isnan(logged.log_prob).any() or (logged.log_prob == np.inf).any():
        raise UserError(
            f"the policy gives {np.count_nonzero(~(logged.log_prob < np.inf))} of {len(behaviour)} actions no "
            "probability, but NaN or infinity; are its weights, or the data's observations, finite?"
        )
    ratio = off_policy.padded(logged.log_prob - behaviour, logged.lengths)
    return off_policy.importance_weights(ratio, logged.lengths, clip)


def _possible(logged: Logged, methods: Sequence[str], explicit: bool) -> tuple[str, ...]:
    """The methods that the policy allows."""
    refused = [method for method in methods if method in WEIGHTED and logged.log_prob is None]
    if refused and (explicit or len(refused) == len(methods)):
        raise UserError(
            f"--methods {','.join(refused)}: the policy is deterministic and has no density over continuous actions, "
            "so the data cannot be weighted by it; use --methods fqe"
        )
    return tuple(method for method in methods if method not in refused)


def _check(question: Question) -> None:
    for method in question.methods:
        if method not in METHODS:
            raise UserError(f"unknown method {method!r}{closest(method, list(METHODS))}; use {', '.join(METHODS)}")
    if not 0 < question.confidence < 1:
        raise UserError(f"confidence={question.confidence} is no share; use such as 0.95")
    if not 0 < question.discount <= 1:
        raise UserError(f"discount={question.discount} must lie above 0 and up to 1; use such as 0.99")
    if not 0 <= question.asked.epsilon <= 1:
        raise UserError(f"epsilon={question.asked.epsilon} is no share; use 0 … 1")
    if not question.clip > 0:
        raise UserError(f"clip={question.clip} must be positive: no importance weight is larger; use such as 1000")


def _check_steps(logged: Logged, question: Question) -> None:
    if not np.isfinite(logged.reward).all():
        wrong = np.count_nonzero(~np.isfinite(logged.reward))
        raise UserError(f"{wrong} of {len(logged.reward)} rewards are NaN or infinite; repair or drop these episodes")
    if question.discount == 1 and not logged.terminated.any():
        raise UserError(
            f"all {len(logged.lengths)} episodes were truncated, and with discount=1 what comes after has no bound; "
            "use --discount below 1"
        )


def _spec_of(dataset: Dataset, config: RunConfig, env: Callable[..., Any] | None) -> EnvSpec:
    """What the run's network sees, which the data must show."""
    shown = shown_spec(dataset, config.env_options)
    try:
        known = spec_of(env or config.env, config.env_options)
    except UserError:
        return shown  # there is no env here: the size of the network is all that can be compared
    check_spec(dataset, env or config.env, known, config.env_options)
    return known


def _described(policy: LocalPolicy, spec: EnvSpec, asked: Asked) -> str:
    sampled, continuous = is_sampled(policy.algorithm), isinstance(spec.action, ContinuousAction)
    if sampled and not asked.greedy:
        if asked.epsilon:
            raise UserError(f"epsilon={asked.epsilon} with a policy that samples; use --greedy, or leave --epsilon out")
        return "the policy as it samples"
    if continuous:
        return "the policy's most likely actions" if sampled else "the deterministic policy"
    return f"ε-greedy with ε = {asked.epsilon:g}" if asked.epsilon else "the greedy policy, as pappus eval plays it"
