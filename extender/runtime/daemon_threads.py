"""Threads for blocking calls. A call that hangs does not keep the process from ending."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Thread
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThreads(ThreadPoolExecutor):
    """A default executor for an event loop; the loop accepts only a ThreadPoolExecutor. Each call has its own thread.

    The process waits for the threads of other executors when it ends. A credential plugin, a disk, a name server or
    NVML may hang, and then the process would run until kubelet kills it.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future = Future[T]()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                future.set_exception(error)
            else:
                future.set_result(result)

        Thread(target=call, daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - inherited
        """Nothing: no thread is waited for."""
