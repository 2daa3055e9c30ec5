"""Which algorithms can take an env's actions: reasons why not, as a clause and a remedy; empty where they can."""

from __future__ import annotations

from pappus.types import ActionSpec, ContinuousAction, DiscreteAction


def one_choice_only(action: ActionSpec) -> str:
    """For algorithms with a value for every action."""
    if isinstance(action, DiscreteAction):
        return ""
    others = "sac, impala or, from data, iql" if isinstance(action, ContinuousAction) else "impala or, from data, iql"
    return f"needs one discrete choice, and the env takes {action}; use {others}"


def continuous_only(action: ActionSpec) -> str:
    """For algorithms that follow the slope of values over actions."""
    return "" if isinstance(action, ContinuousAction) else (
        f"needs continuous actions, and the env takes {action}; use dqn, impala or, from data, iql"
    )
