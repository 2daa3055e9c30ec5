"""Pappus: every distributed reinforcement-learning architecture, by name.

    import pappus
    result = pappus.train("impala", env="CartPole-v1", steps=1_000_000)
    result.policy.act(observation)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pappus import runs
    from pappus.api import Estimates, Result, System, estimate, evaluate, load_policy, resume, train
    from pappus.hooks.callback import Callback

__version__ = "0.1.0"
__all__ = [
    "Callback", "Estimates", "Result", "System", "estimate", "evaluate", "load_policy", "resume", "runs", "train",
]


def __getattr__(name: str) -> Any:
    """The API is imported when it is first used: the command line starts a process server before torch is loaded."""
    if name == "Callback":  # a module of callbacks needs no torch
        from pappus.hooks.callback import Callback

        return Callback
    if name == "runs":
        return importlib.import_module("pappus.runs")
    if name in __all__:
        from pappus import api

        return getattr(api, name)
    raise AttributeError(f"module 'pappus' has no attribute {name!r}")
