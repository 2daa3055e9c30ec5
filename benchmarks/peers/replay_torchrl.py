"""TorchRL's prioritized buffer, timed; run by the python of `torchrl.txt`.

The wheel's C++ part, which its prioritized sampler needs, fails against this torch for an undefined symbol; it is
compiled once from the sources that the wheel carries.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from replay_workloads import ALPHA, BETA, Arrays, InProcess, Stream, cycle_rate, measure
from torch.utils.cpp_extension import load

EXTENSION = Path(sys.prefix) / "torchrl_extension" / "_torchrl.so"
TRIAL_SECONDS = 1.0


def build_extension() -> None:
    sources = Path(sysconfig.get_path("purelib")) / "torchrl" / "csrc"
    os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])  # where ninja is
    EXTENSION.parent.mkdir(exist_ok=True)
    # Moved into place when whole: a build cut short is started afresh.
    with tempfile.TemporaryDirectory(dir=EXTENSION.parent) as folder:
        files = [str(sources / name) for name in ("pybind.cpp", "utils.cpp")]
        load(EXTENSION.stem, files, extra_cflags=["-O3"], build_directory=folder, is_python_module=False)
        (Path(folder) / EXTENSION.name).rename(EXTENSION)


def load_extension() -> ModuleType:
    if not EXTENSION.exists():
        build_extension()
    spec = importlib.util.spec_from_file_location(EXTENSION.stem, EXTENSION)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sys.modules["torchrl._torchrl"] = load_extension()  # where torchrl will look for it

from tensordict import TensorDict  # noqa: E402
from torchrl.data import LazyTensorStorage, PrioritizedSampler, ReplayBuffer  # noqa: E402


class TorchrlStore(InProcess):
    note = (
        "in process; LazyTensorStorage, every item whole (LazyMemmapStorage and prefetch were no faster);"
        " C++ part compiled from the wheel's sources"
    )

    def __init__(self, stream: Stream, capacity: int) -> None:
        super().__init__()
        self._stream, self._chunk = stream, stream.workload.chunk
        self._names = list(stream.items(0))
        self._buffer = ReplayBuffer(
            storage=LazyTensorStorage(capacity),
            sampler=PrioritizedSampler(capacity, ALPHA, BETA),
            batch_size=stream.workload.batch,
        )

    def insert(self, first: int) -> None:
        items = {name: torch.from_numpy(values) for name, values in self._stream.items(first).items()}
        self._buffer.extend(TensorDict(items, [self._chunk]))

    def settle(self) -> None:
        """Tries torch on one core and on all, and keeps what cycles most: threads lose where cores are shared."""
        rates = {}
        for threads in (1, os.cpu_count() or 1):
            torch.set_num_threads(threads)
            rates[threads] = cycle_rate(self, self._stream, TRIAL_SECONDS)
        best = max(rates, key=rates.__getitem__)
        torch.set_num_threads(best)
        tried = ", ".join(f"{threads}: {rate:,.0f}" for threads, rate in rates.items())
        self.note = f"{TorchrlStore.note}; torch on {best} threads (tried, in cycles: {tried})"

    def sample(self) -> tuple[torch.Tensor, Arrays]:
        batch, info = self._buffer.sample(return_info=True)
        return info["index"], {name: batch[name].numpy() for name in self._names}

    def update(self, keys: torch.Tensor, priorities: NDArray[np.float32]) -> None:
        self._buffer.update_priority(keys, torch.from_numpy(priorities))


if __name__ == "__main__":
    measure("torchrl", "torchrl", TorchrlStore)
