"""The time that steps wait for collectives, by hooks of PyTorch.

DistributedDataParallel waits at the end of a backward pass, after the gradients of this rank are computed. FSDP2 waits before each
block and at the end; its copies into and out of the buffers of a collective count too. What a framework waits for besides is timed
where that is done.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from . import device


class CollectiveWaits:
    """Seconds that this rank waits for other ranks within its steps.

    On a GPU, it is the stream of the computation that waits: events enclose each wait, and are read when the device is
    synchronized.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._events: list[tuple[Any, Any]] = []
        self._installed = False
        self._watches = False
        self._depth = 0
        self._queued = False

    def install(self) -> None:
        """Watches the first optimizer that makes a step, through PyTorch if the script has imported it."""
        torch = sys.modules.get("torch")
        if torch is None:
            return
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        # It stays: PyTorch iterates over its hooks while it calls them.
        register_optimizer_step_pre_hook(self._watch)

    def take(self) -> float | None:
        """Seconds since the last call; ``None`` if they are unknown. The device is synchronized."""
        for begun, ended in self._events:
            self._seconds += begun.elapsed_time(ended) / 1000
        self._events.clear()
        seconds, self._seconds = self._seconds, 0.0
        return seconds if self._watches else None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A wait, which may contain others."""
        self._depth += 1
        cuda = device.cuda() if self._depth == 1 else None
        begun = time.perf_counter()
        events = None if cuda is None else (cuda.Event(enable_timing=True), cuda.Event(enable_timing=True))
        if events is not None:
            events[0].record()
        try:
            yield
        finally:
            self._depth -= 1
            if events is not None:
                events[1].record()
                self._events.append(events)
            elif self._depth == 0:
                self._seconds += time.perf_counter() - begun

    def _watch(self, optimizer: Any, *_: Any) -> None:
        if self._installed:
            return
        self._installed = True
        parameters = [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
        if not parameters:
            return
        if any(hasattr(each, "device_mesh") for each in parameters):
            self._watches = self._watch_fsdp()
            return
        # A hook of any parameter is called before DDP has all gradients, so that its wait comes after the callback queued
        # here. The last parameter is mostly the first with a gradient; a model may not use it in every step.
        for parameter in (parameters[-1], parameters[0]):
            parameter.register_post_accumulate_grad_hook(self._backward)
        self._watches = True

    def _backward(self, _: Any) -> None:
        if not self._queued:
            self._queued = True
            _queue(self._computed)

    def _computed(self) -> None:
        """The end of the backward pass of this rank. Callbacks run in the order in which they were queued."""
        self._queued = False
        waiting = self.waiting()
        waiting.__enter__()
        _queue(lambda: waiting.__exit__(None, None, None))

    def _watch_fsdp(self) -> bool:
        try:
            from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
            from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
        except ImportError:
            return False
        # Private methods: where they have other names, nothing is reported.
        places = [(FSDPParamGroup, name) for name in ("unshard", "wait_for_unshard", "post_backward")]
        places.append((FSDPState, "_root_post_backward_final_callback"))
        if not all(hasattr(owner, name) for owner, name in places):
            return False
        for owner, name in places:
            setattr(owner, name, self._timed(getattr(owner, name)))
        return True

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def timed(*arguments: Any, **named: Any) -> Any:
            with self.waiting():
                return method(*arguments, **named)

        return timed


def _queue(callback: Callable[[], object]) -> None:
    """Calls ``callback`` at the end of the running backward pass."""
    sys.modules["torch"].autograd.Variable._execution_engine.queue_callback(callback)
