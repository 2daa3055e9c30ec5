"""Metrics that envs give in their infos, beside returns and lengths.

    info["metrics"] = {"success": 1.0, "distance": 0.3}        in any step, of any env
    info["is_success"] = True                                  with --env-options.metrics is_success

Each value counts once, in the step in which an env gives it; `env/success` is the mean of those that came lately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pappus.telemetry.metrics import Sums
from pappus.types import Array


class InfoMetrics:
    """Sums what the infos of N envs hold, until somebody takes the sums."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        """`keys` are those of the info that are metrics beside the ones in `metrics`."""
        self._keys = tuple(keys)
        self._sums = Sums()
        self.take = self._sums.take

    def read(self, info: Mapping[str, Any]) -> None:
        """Add the metrics of one step of a vector env; the last step of an episode has an info of its own where the
        same step shows the next one."""
        if "metrics" in info or self._keys:
            self._read(info)
        if "final_info" in info and isinstance(info["final_info"], Mapping):
            self._read(info["final_info"])

    def _read(self, info: Mapping[str, Any]) -> None:
        for key in self._keys:
            if key in info:
                self._add(key, info[key], info.get(f"_{key}"))
        metrics = info.get("metrics")
        if isinstance(metrics, Mapping):
            for name, values in metrics.items():
                if not str(name).startswith("_"):  # those say which envs have a value
                    self._add(str(name), values, metrics.get(f"_{name}"))

    def _add(self, name: str, values: Any, present: Array | None) -> None:
        found = numbers(values)
        if found is None:
            return
        if present is not None and found.shape == np.shape(present):
            found = found[np.asarray(present, np.bool_)]
        found = found[np.isfinite(found)]
        if len(found):
            self._sums.add(name, float(found.sum()), len(found))


def numbers(values: Any) -> Array | None:
    """One number per env, or one in all; None for what are no numbers."""
    array = np.atleast_1d(np.asarray(values))
    if array.ndim != 1:
        return None
    if array.dtype.kind == "O":  # None where an env has no value
        array = np.array([one if isinstance(one, int | float | np.number) else np.nan for one in array], np.float64)
    return array.astype(np.float64) if array.dtype.kind in "biuf" else None
