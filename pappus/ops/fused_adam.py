"""torch's fused Adam for flat float32 parameters on a CPU, without what `torch.optim` does around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pappus.ops.numpy_ops import MOMENTS, adam_group

_adam: Any = torch._fused_adam_


class FusedAdam:
    """Steps parameters that have a gradient; its state is that of `torch.optim.Adam`, so either continues the other's.

    It is no `torch.optim.Optimizer`: the first of those that a process makes imports torch's compiler, which takes a
    second, and around each step of one there is as much work as in the step of 200,000 weights.
    """

    def __init__(
        self, parameters: Sequence[torch.nn.Parameter], rate: float, betas: tuple[float, float], epsilon: float
    ) -> None:
        self._parameters = list(parameters)
        self.param_groups: list[dict[str, Any]] = [adam_group(rate, betas, epsilon)]
        self.state: dict[torch.nn.Parameter, dict[str, torch.Tensor]] = {
            one: {"step": torch.zeros(()), **{name: torch.zeros_like(one.data) for name in MOMENTS}}
            for one in self._parameters
        }

    def state_dict(self) -> dict[str, Any]:
        states = [{name: value.clone() for name, value in self.state[one].items()} for one in self._parameters]
        group = {**self.param_groups[0], "params": list(range(len(states)))}
        return {"state": dict(enumerate(states)), "param_groups": [group]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state; torch's own is empty for parameters before their first step."""
        self.param_groups = [{name: value for name, value in state_dict["param_groups"][0].items() if name != "params"}]
        for i, one in enumerate(self._parameters):
            for name, value in state_dict["state"].get(i, {}).items():
                self.state[one][name].copy_(value)

    @torch.no_grad()
    def step(self) -> None:
        """Kingma and Ba 2015, algorithm 1."""
        group = self.param_groups[0]
        moved = [one for one in self._parameters if one.grad is not None]
        steps, means, squares = ([self.state[one][name] for one in moved] for name in ("step", *MOMENTS))
        for count in steps:
            count.add_(1)
        mean_decay, square_decay = group["betas"]
        _adam(
            moved, [one.grad for one in moved], means, squares, [], steps, lr=group["lr"], beta1=mean_decay,
            beta2=square_decay, weight_decay=0.0, eps=group["eps"], amsgrad=False, maximize=False,
        )
