"""Envs that are stepped one by one, each in a thread: for those that wait for something outside meanwhile.

Python runs one thread at a time, so this gains nothing for an env that computes; but while one env sleeps, or waits for
a socket or a device, all others go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import gymnasium as gym
from gymnasium.vector import SyncVectorEnv


class Ahead(gym.Wrapper[Any, Any, Any, Any]):
    """One env whose next step, or reset, may be begun before it is asked for."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._begun: Future[Any] | None = None

    def begin(self, submit: Callable[..., Future[Any]], action: Any, over: bool) -> None:
        """Take the action in a thread of its own; of an env whose episode is `over`, begin the next one."""
        self._begun = submit(self.env.reset) if over else submit(self.env.step, action)

    def step(self, action: Any) -> Any:
        return self.env.step(action) if self._begun is None else self._ended()

    def reset(self, **options: Any) -> Any:
        return self.env.reset(**options) if self._begun is None else self._ended()

    def _ended(self) -> Any:
        begun, self._begun = self._begun, None
        assert begun is not None
        return begun.result()


class Threads:
    """So many threads that do what is submitted. The interpreter does not wait for them at its end, as it would for
    those of `concurrent.futures`: an env may be stuck in one."""

    def __init__(self, count: int) -> None:
        self._count, self._work = count, SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]()
        for i in range(count):
            threading.Thread(target=_do, args=(self._work,), name=f"env_{i}", daemon=True).start()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Have it called; the future is its result, or what it raises."""
        future = Future[Any]()
        self._work.put((future, lambda: function(*arguments)))
        return future

    def end(self) -> None:
        """End each thread after what it does now. It may be called again."""
        for _ in range(self._count):
            self._work.put(None)
        self._count = 0


def _do(work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    while (task := work.get()) is not None:
        future, function = task
        try:
            future.set_result(function())
        except BaseException as error:  # whoever waits for the result raises it
            future.set_exception(error)
        del task, future, function  # the next one may come late


class ThreadedVectorEnv(SyncVectorEnv):
    """As Gymnasium's `SyncVectorEnv`, which decides what is done with each env, with so many threads that do it."""

    def __init__(self, makers: Sequence[Callable[[], gym.Env[Any, Any]]], threads: int) -> None:
        super().__init__([lambda make=make: Ahead(make()) for make in makers], copy=False)  # type: ignore[misc]
        pool = Threads(min(threads, len(makers)))
        self._submit, self._end_threads = pool.submit, pool.end  # a snapshot takes methods for constants

    def step(self, actions: Any) -> Any:
        """Step all envs at a time."""
        for env, action, over in zip(self.envs, gym.vector.utils.iterate(self.action_space, actions),
                                     self._autoreset_envs, strict=True):
            assert isinstance(env, Ahead)
            env.begin(self._submit, action, bool(over))
        return super().step(actions)

    def close_extras(self, **options: Any) -> None:
        """Close the envs, and end the threads."""
        super().close_extras(**options)
        self._end_threads()
