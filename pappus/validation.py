"""Sizes that cannot work, refused before anything is started."""

from __future__ import annotations

from pappus.config import RunConfig
from pappus.errors import UserError

POSITIVE = ("steps", "actors", "envs_per_actor", "unroll_length", "queue_size")


def validate(config: RunConfig) -> None:
    """Raise `UserError` for the first rule that a config breaks."""
    if not config.env:
        raise UserError("--env is missing; give a Gymnasium id such as --env CartPole-v1")
    for name in POSITIVE:
        _require(getattr(config, name) >= 1, name, getattr(config, name), "must be at least 1")
    _require(config.seed >= 0, "seed", config.seed, "must not be negative")
    episodes, keep, rate = config.evaluation.episodes, config.checkpoint.keep_last, config.optimizer.learning_rate
    _require(episodes >= 1, "evaluation.episodes", episodes, "must be at least 1")
    _require(keep >= 1, "checkpoint.keep_last", keep, "must be at least 1")
    _require(rate > 0, "optimizer.learning_rate", rate, "must be positive")
    _validate_batch(config)
    _validate_device(config)


def _require(holds: bool, name: str, value: object, rule: str) -> None:
    if not holds:
        raise UserError(f"{name}={value} {rule}")


def _validate_batch(config: RunConfig) -> None:
    batch, envs = config.batch_size, config.envs_per_actor
    _require(batch >= 0, "batch_size", batch, "must not be negative; 0 takes one actor's unrolls")
    if batch % envs:
        choices = [str(n) for n in range(1, batch + 1) if batch % n == 0]
        raise UserError(f"envs_per_actor={envs} does not divide batch_size={batch}; use {', '.join(choices[:12])}")
    slots = config.actors * config.queue_size
    if config.unrolls_per_batch > slots:
        raise UserError(
            f"batch_size={batch} needs {config.unrolls_per_batch} actors' unrolls at once, but {config.actors} actors "
            f"with queue_size={config.queue_size} hold {slots}; raise queue_size to "
            f"{-(-config.unrolls_per_batch // config.actors)} or use more actors"
        )


def _validate_device(config: RunConfig) -> None:
    import torch

    kind = config.device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise UserError(f"device={config.device!r} is unknown; use cpu or cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device={config.device!r} needs a CUDA build of torch and a GPU, and none is here; use cpu")


