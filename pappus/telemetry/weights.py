"""The weights in a checkpoint, whichever roles saved them."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np

from pappus.errors import RunError
from pappus.kinds import LEARNER
from pappus.layout import name_of_part
from pappus.telemetry.checkpoint import load_state, read_manifest
from pappus.telemetry.state_codec import WEIGHTS
from pappus.types import Array


def stored_weights(checkpoint: Path) -> Array:
    """All weights of a checkpoint, in one flat array."""
    try:
        return np.concatenate([load_state(checkpoint, name)[WEIGHTS].numpy() for name in weights_roles(checkpoint)])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise RunError(f"checkpoint {str(checkpoint)!r} holds no weights ({error!r:.80}); use another one") from None


def weights_roles(checkpoint: Path) -> list[str]:
    """The roles that saved the weights, in the order of their shards, as the checkpoint says."""
    manifest = read_manifest(checkpoint)
    names = manifest["metadata"].get("weights_roles", [LEARNER.name])
    if not isinstance(names, list) or not all(f"{name}.json" in manifest["files"] for name in names):
        raise RunError(f"checkpoint {str(checkpoint)!r} does not hold what it says, {names!r:.80}; use another one")
    return names


def stored_sizes(checkpoint: Path) -> dict[str, int]:
    """How many numbers each tensor of the weights has, by name, whether or not shards cut it; empty where a file does
    not name them."""
    from safetensors import safe_open

    sizes: Counter[str] = Counter()
    prefix = f"{WEIGHTS}."
    for role in weights_roles(checkpoint):
        with safe_open(checkpoint / f"{role}.safetensors", framework="numpy") as file:
            names = file.keys()
            for name in names:
                if name.startswith(prefix):
                    sizes[name_of_part(name.removeprefix(prefix))] += math.prod(file.get_slice(name).get_shape())
    return dict(sizes)
