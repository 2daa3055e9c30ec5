"""Recurrent cores: LSTM and GRU. `modules.Core` states their contract."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from pappus.networks.modules import Core, State
from pappus.types import ArraySpec

SHORTEST_FUSED = 3
"""From this many steps on the fused layer is faster than its cell, measured on a CPU at B = 32 … 64."""


class _GatedCore(Core):
    """Runs torch's fused layer over the stretches of time in which no env resets, and its cell elsewhere."""

    def __init__(self, layer: nn.LSTM | nn.GRU, state_parts: int) -> None:
        super().__init__(layer.hidden_size, (ArraySpec((layer.hidden_size,), "float32"),) * state_parts)
        self.layer = layer
        for name, parameter in layer.named_parameters():
            if name.startswith("weight"):
                nn.init.orthogonal_(parameter)
            else:
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor, first: Tensor, state: State) -> tuple[Tensor, State]:
        x = x.to(self.weights[0].dtype)
        state = tuple(part.to(x.dtype) for part in state)
        keep = first.logical_not().to(x.dtype).unsqueeze(-1)
        outputs: list[Tensor] = []
        for start, stop in pairwise(_boundaries(first, len(x))):
            state = tuple(part * keep[start] for part in state)
            if stop - start >= SHORTEST_FUSED:
                y, state = self._fused(x[start:stop], state)
                outputs.append(y)
                continue
            for x_t in x[start:stop]:
                state = self._cell(x_t, state)
                outputs.append(state[0].unsqueeze(0))
        return torch.cat(outputs), tuple(part.float() for part in state)

    def _fused(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        raise NotImplementedError

    def _cell(self, x_t: Tensor, state: State) -> State:
        raise NotImplementedError

    @property
    def weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Input and recurrent weights, then their biases: the layer and its cell share them."""
        w_ih, w_hh, b_ih, b_hh = self.layer.all_weights[0]
        return w_ih, w_hh, b_ih, b_hh


class LSTMCore(_GatedCore):
    """Long short-term memory; the state is (h, c)."""

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__(nn.LSTM(input_size, size), state_parts=2)

    def _fused(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        h, c = state
        y, (h, c) = self.layer(x, (h.unsqueeze(0), c.unsqueeze(0)))
        return y, (h.squeeze(0), c.squeeze(0))

    def _cell(self, x_t: Tensor, state: State) -> State:
        return torch.lstm_cell(x_t, state, *self.weights)


class GRUCore(_GatedCore):
    """Gated recurrent unit; the state is (h,)."""

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__(nn.GRU(input_size, size), state_parts=1)

    def _fused(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        y, h = self.layer(x, state[0].unsqueeze(0))
        return y, (h.squeeze(0),)

    def _cell(self, x_t: Tensor, state: State) -> State:
        return (torch.gru_cell(x_t, state[0], *self.weights),)


def _boundaries(first: Tensor, length: int) -> list[int]:
    """Times at which a stretch starts, and T. On an accelerator every step, since reading `first` would block; but for
    what begins with one stretch (`Core`)."""
    if len(first) < length:
        return [0, length]
    if length == 1 or first.device.type != "cpu":
        return list(range(length + 1))
    resets = first[1:].any(dim=1).nonzero().squeeze(1).tolist()
    return [0, *(t + 1 for t in resets), length]
