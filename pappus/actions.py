"""Which algorithms can take an env's actions: reasons why not, as a clause and a remedy; empty where they can."""

from __future__ import annotations

from pappus.types import ActionSpec, ContinuousAction, DiscreteAction


def one_choice_only(action: ActionSpec) -> str:
    """For algorithms with a value for every action."""
    if isinstance(action, DiscreteAction):
        return ""
    return f"needs one discrete choice, and the env takes {action}; use ddpg or impala"


def continuous_only(action: ActionSpec) -> str:
    """For algorithms that follow the slope of values over actions."""
    return "" if isinstance(action, ContinuousAction) else (
        f"needs continuous actions, and the env takes {action}; use dqn, iql or impala"
    )
