"""Invariants of the scheduler under random operations."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gflownet.rhn.serving.scheduler import MAX_STALE, Phase, QueueFullError, Scheduler, SchedulerConfig
from tests.rhn.serving.engines import Clock


def scheduler_of(**limits: float) -> tuple[Scheduler, Clock]:
    clock = Clock()
    return Scheduler(SchedulerConfig(**limits), clock=clock), clock  # type: ignore[arg-type]


def test_full_queue_and_spent_budget_raise() -> None:
    scheduler, _ = scheduler_of(max_slots=1, max_queue=1, token_budget=10)
    scheduler.submit(0, 4)
    scheduler.submit(1, 4)
    with pytest.raises(QueueFullError, match="2 requests wait, the maximum is 1"):
        scheduler.submit(2, 1)
    scheduler.schedule()
    with pytest.raises(QueueFullError, match="1 requests wait, the maximum is 1"):
        scheduler.submit(2, 1)
    scheduler.finish(1)
    with pytest.raises(QueueFullError, match="4 tokens are requested; 7 more exceed the budget of 10"):
        scheduler.submit(2, 7)
    with pytest.raises(ValueError, match="at most 10 tokens of prompt and answer, got 11"):
        scheduler.submit(2, 11)
    with pytest.raises(ValueError, match=r"priority: expected -100 .. 100, got 101"):
        scheduler.submit(2, 1, priority=101)
    scheduler.submit(2, 6)


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ({"max_slots": 0}, "max_slots: expected at least 1, got 0"),
        ({"token_budget": 0}, "token_budget: expected at least 1, got 0"),
        ({"max_queue": -1}, "max_queue: expected at least 0, got -1"),
        ({"max_waiting": 0}, "max_waiting: expected a number of seconds > 0, got 0"),
        ({"patience": float("nan")}, "patience: expected a number of seconds > 0, got nan"),
    ],
)
def test_invalid_scheduler_config_raises(limit: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SchedulerConfig(**limit)  # type: ignore[arg-type]


class Machine(RuleBasedStateMachine):
    """Submits, cancels, finishes and schedules in any order; keeps the slow account of it."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SchedulerConfig(max_slots=3, max_queue=4, max_waiting=20, token_budget=40, patience=2)
        self.clock = Clock()
        self.scheduler = Scheduler(self.config, clock=self.clock)
        self.waiting: dict[int, tuple[float, float, int]] = {}  # due, arrived, tokens
        self.running: dict[int, int] = {}
        self.next_id = 0

    @rule(tokens=st.integers(1, 20), priority=st.integers(-3, 3))
    def submit(self, tokens: int, priority: int) -> None:
        asked = sum(self.running.values()) + sum(each[2] for each in self.waiting.values())
        room = self.config.max_queue + self.config.max_slots - len(self.running)
        request_id, self.next_id = self.next_id, self.next_id + 1
        if len(self.waiting) >= room or asked + tokens > self.config.token_budget:
            with pytest.raises(QueueFullError):
                self.scheduler.submit(request_id, tokens, priority=priority)
            return
        self.scheduler.submit(request_id, tokens, priority=priority)
        self.waiting[request_id] = self.clock.now + 2 * priority, self.clock.now, tokens

    @rule(seconds=st.floats(0, 9))
    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds

    @precondition(lambda self: self.waiting or self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from([*self.waiting, *self.running]))
        phase = Phase.WAITING if request_id in self.waiting else Phase.RUNNING
        assert self.scheduler.finish(request_id) is phase
        assert self.scheduler.finish(request_id) is None
        self.waiting.pop(request_id, None)
        self.running.pop(request_id, None)

    @rule()
    def schedule(self) -> None:
        late = sorted(key for key, (_, arrived, _) in self.waiting.items() if self.clock.now - arrived > 20)
        for key in late:
            del self.waiting[key]
        order = sorted(self.waiting, key=lambda key: (self.waiting[key][0], key))
        admitted = order[: self.config.max_slots - len(self.running)]
        for key in admitted:
            self.running[key] = self.waiting.pop(key)[2]
        made = self.scheduler.schedule()
        assert (made.admitted, sorted(made.expired)) == (admitted, late)

    @invariant()
    def counts_are_right(self) -> None:
        assert self.scheduler.num_waiting == len(self.waiting)
        assert self.scheduler.num_running == len(self.running) <= self.config.max_slots
        for request_id in range(self.next_id):
            wanted = (
                Phase.WAITING if request_id in self.waiting else Phase.RUNNING if request_id in self.running else None
            )
            assert self.scheduler.phase_of(request_id) is wanted


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_cancelled_requests_do_not_fill_the_queue_while_all_slots_are_taken() -> None:
    scheduler = Scheduler(SchedulerConfig(max_slots=1, max_queue=10))
    scheduler.submit(0, 1)
    assert scheduler.schedule().admitted == [0]
    scheduler.submit(1, 1)
    for request_id in range(2, 1000):
        scheduler.submit(request_id, 1)
        scheduler.finish(request_id)
        assert len(scheduler._queue) <= MAX_STALE + 4
    scheduler.finish(0)
    assert scheduler.schedule().admitted == [1]
