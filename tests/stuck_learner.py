"""An algorithm whose loss does not come back."""

from __future__ import annotations

import time

from torch import Tensor, nn

from pappus.algorithms.vtrace import VTrace, VTraceConfig
from pappus.system import AlgorithmSpec, System
from pappus.systems import TOPOLOGIES
from pappus.types import Unroll


class Stuck(VTrace):
    """V-trace, until its hundredth update."""

    losses = 0

    def loss(self, network: nn.Module, batch: Unroll) -> tuple[Tensor, dict[str, Tensor]]:
        self.losses += 1
        if self.losses == 100:
            time.sleep(3600)
        return super().loss(network, batch)


stuck = System(AlgorithmSpec("stuck", Stuck, VTraceConfig(), corrects_for_lag=True), TOPOLOGIES["impala"])
