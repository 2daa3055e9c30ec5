"""The weights in a checkpoint, whichever roles saved them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pappus.kinds import LEARNER
from pappus.telemetry.checkpoint import load_state, read_manifest
from pappus.types import Array


def stored_weights(checkpoint: Path) -> Array:
    """All weights of a checkpoint, in one flat array."""
    return np.concatenate([load_state(checkpoint, name)["weights"].numpy() for name in weights_roles(checkpoint)])


def weights_roles(checkpoint: Path) -> list[str]:
    """The roles that saved the weights, in the order of their shards, as the checkpoint says."""
    return list(read_manifest(checkpoint)["metadata"].get("weights_roles", [LEARNER.name]))
