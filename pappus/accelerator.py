"""Streams, events, pinned memory and captured graphs of a device, and threads of the CPU. On a CPU the former are plain
calls, so that the same code runs there synchronously."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from pappus.types import Array

_CAPTURING = threading.Lock()
"""A process captures one graph at a time, and warms up none meanwhile: libraries that search for algorithms allocate
and free memory, which would end the capture of another thread."""
WARMUP_CALLS = 3
"""Calls before a capture: in the first ones libraries choose algorithms and allocate workspaces."""
MOST_CAPTURES = 3
"""Attempts to capture a graph, each after further calls."""


class Accelerator:
    """One device."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.real = self.device.type == "cuda"
        if self.real:
            torch.backends.cudnn.benchmark = True  # twice the speed of deep networks: shapes stay, so a search pays

    def stream(self, urgent: bool = False) -> Any:
        """A queue of work; kernels of an urgent one have priority."""
        make: Any = torch.cuda.Stream
        return make(self.device, priority=-1 if urgent else 0) if self.real else None

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream) if self.real else nullcontext()

    def mark(self, event: Any = None) -> Any:
        """An event after all work of the current stream: a new one, or `event` used again."""
        if not self.real:
            return None
        make: Any = torch.cuda.Event
        event = event or make()
        event.record()
        return event

    def follow(self, event: Any) -> None:
        """What is queued on the current stream from now on waits for the event."""
        if event is not None:
            event.wait()

    def reach(self, event: Any) -> None:
        """Block until the event has happened: from then on the host may write to what was read before it."""
        if event is not None:
            event.synchronize()

    def wait(self) -> None:
        """Block until the current stream has done everything."""
        if self.real:
            torch.cuda.current_stream(self.device).synchronize()

    def pin(self, memory: Array) -> None:
        """Page-lock host memory, so that the device copies it without the CPU."""
        if self.real and memory.nbytes:
            address = memory.__array_interface__["data"][0]
            cudart: Any = torch.cuda.cudart  # type: ignore[attr-defined,unused-ignore]
            torch.cuda.check_error(cudart().cudaHostRegister(address, memory.nbytes, 0))

    def free_memory(self) -> int:
        """Bytes of the device that nobody uses."""
        return int(torch.cuda.mem_get_info(self.device)[0])

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, pin_memory=self.real)


def copy_all(into: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> None:
    """Copy many tensors with one call, without waiting: each call lets another thread have the interpreter."""
    copy: Any = torch._foreach_copy_
    copy(into, leaves, non_blocking=True)


class CapturedGraph:
    """A function without arguments over tensors that stay in place. After a few calls it is captured into one graph,
    which replays its hundreds of kernels with a single launch; if no capture succeeds, it is called as before.

    `generator` is what the function draws from, and must be used by nothing else."""

    def __init__(
        self, accelerator: Accelerator, function: Callable[[], Any], tell: Callable[[str], None],
        generator: torch.Generator | None = None,
    ) -> None:
        self._accelerator, self._function, self._tell = accelerator, function, tell
        self._generator = generator
        self._graph: Any = None
        self._result: Any = None
        self._calls = self._failures = 0

    @property
    def warm(self) -> bool:
        """Whether calls have reached their final speed."""
        return self._calls > WARMUP_CALLS

    def __call__(self) -> Any:
        if self._graph is None and self._accelerator.real and self._failures < MOST_CAPTURES:
            self._calls += 1
            with _CAPTURING:
                if self._calls <= WARMUP_CALLS * (1 + self._failures):
                    result = self._function()
                    self._accelerator.wait()
                    return result
                self._capture()
        self._calls += 1
        if self._graph is None:
            return self._function()
        self._graph.replay()
        return self._result

    def _capture(self) -> None:
        stream = torch.cuda.current_stream(self._accelerator.device)
        stream.synchronize()
        graph: Any = torch.cuda.CUDAGraph()
        if self._generator is not None:
            graph.register_generator_state(self._generator)
        try:
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                result = self._function()
        except RuntimeError as error:
            self._failures += 1
            self._renew_generator()
            if self._failures == MOST_CAPTURES:
                reason = str(error).splitlines()[0]
                self._tell(f"no graph of {self._function.__qualname__}, which is called as usual: {reason}")
            return
        self._graph, self._result = graph, result

    def _renew_generator(self) -> None:
        """A capture that failed leaves a generator that can draw only within a capture."""
        if self._generator is not None:
            fresh = torch.Generator(self._generator.device).manual_seed(self._generator.initial_seed() + self._failures)
            self._generator.graphsafe_set_state(fresh.graphsafe_get_state())


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch and NumPy on one thread: sums do not depend on the number of cores, and small products are faster."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)
