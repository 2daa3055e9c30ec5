"""Makes rliable.json: `pip install rliable==1.2.0 "pandas<3"` in an environment of its own, then run this file.

Rliable draws its indices from NumPy's legacy generator, whose numbers never change: a test draws the same again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from rliable import library, metrics

RUNS, OTHER_RUNS, TASKS, FRAMES = 7, 5, 3, 4
SEED, RESAMPLES = 11, 300
THRESHOLDS = [0.0, 0.25, 0.5, 0.75, 1.0, 1.5]
AGGREGATES = {
    "interquartile_mean": metrics.aggregate_iqm, "mean": metrics.aggregate_mean, "median": metrics.aggregate_median,
    "optimality_gap": metrics.aggregate_optimality_gap,
}


def with_interval(scores: Any, function: Any) -> dict[str, Any]:
    np.random.seed(SEED)
    points, intervals = library.get_interval_estimates({"x": scores}, function, reps=RESAMPLES)
    return {"value": np.asarray(points["x"]).tolist(), "interval": np.asarray(intervals["x"]).tolist()}


def main() -> None:
    generator = np.random.default_rng(3)
    scores = generator.gamma(2.0, 0.4, (RUNS, TASKS)).round(2)
    others = (generator.gamma(2.0, 0.3, (OTHER_RUNS, TASKS)) + 0.1).round(2)
    others[:3, 0] = scores[:3, 0]  # ties
    curves = generator.gamma(2.0, 0.4, (RUNS, TASKS, FRAMES)).round(2)
    content: dict[str, Any] = {
        "seed": SEED, "resamples": RESAMPLES, "thresholds": THRESHOLDS,
        "scores": scores.tolist(), "others": others.tolist(), "curves": curves.tolist(),
    }
    for name, aggregate in AGGREGATES.items():
        content[name] = with_interval(scores, lambda x, aggregate=aggregate: np.array([aggregate(x)]))
    content["improvement"] = with_interval(
        [scores, others], lambda x, y: np.array([metrics.probability_of_improvement(x, y)])
    )
    content["profile"] = with_interval(scores, lambda x: library.score_distributions(x, np.array(THRESHOLDS)))
    content["efficiency"] = with_interval(
        curves, lambda x: np.array([metrics.aggregate_iqm(x[..., frame]) for frame in range(FRAMES)])
    )
    Path(__file__).with_name("rliable.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
