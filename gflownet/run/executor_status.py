"""Status of the executor as metrics: candidates in flight, busy share, failures by status."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from gflownet.evaluation.dispatcher import Dispatcher
from gflownet.evaluation.executors.inline import InlineExecutor

# The busy share covers at least this many seconds, or evaluations of this many times their mean duration.
_WINDOW_S, _WINDOW_EVALUATIONS = 30.0, 4
COUNTS = ("num_timeout", "num_crashed", "num_out_of_memory", "num_refused", "num_retried")


class ExecutorStatus:
    """Metrics of the executor behind a dispatcher, for this process."""

    def __init__(self, dispatcher: Dispatcher, *, now: Callable[[], float] = time.monotonic) -> None:
        """Keep the dispatcher; `now` returns the time in seconds."""
        self._dispatcher = dispatcher
        self._now = now
        self._is_shared = isinstance(dispatcher.executor, InlineExecutor)  # evaluates in the main process
        self._window = deque([(now(), 0.0)])  # moments, and seconds of finished evaluations before them

    def metrics(self) -> dict[str, float]:
        """Return the current values; the busy share only for executors with processes."""
        dispatcher = self._dispatcher
        metrics: dict[str, float] = {"in_flight": dispatcher.num_in_flight}
        metrics |= {name: dispatcher.counts[name] for name in COUNTS}
        if not self._is_shared:
            metrics["busy_share"] = self._busy_share()
        return metrics

    def _busy_share(self) -> float:
        """Return the seconds of evaluations that finished in the window, per second and place of the executor."""
        dispatcher, moment = self._dispatcher, self._now()
        length = max(_WINDOW_S, _WINDOW_EVALUATIONS * dispatcher.mean_seconds)
        while len(self._window) > 1 and moment - self._window[1][0] >= length:
            self._window.popleft()
        start, before = self._window[0]
        if moment - self._window[-1][0] >= length / 100:
            self._window.append((moment, dispatcher.evaluation_seconds))
        if moment <= start:
            return 0.0
        busy = (dispatcher.evaluation_seconds - before) / (moment - start) / dispatcher.executor.capacity
        return min(1.0, busy)
