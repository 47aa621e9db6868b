"""Invariants of the scheduler under random operations."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gflownet.rhn.serving.scheduler import QueueFullError, Scheduler, SchedulerConfig


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ({"max_slots": 0}, "max_slots: expected at least 1, got 0"),
        ({"max_queue": -1}, "max_queue: expected at least 0, got -1"),
    ],
)
def test_invalid_scheduler_config_raises(limit: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SchedulerConfig(**limit)


class Machine(RuleBasedStateMachine):
    """Submits, withdraws, finishes and schedules in any order; keeps the slow account of it."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(SchedulerConfig(max_slots=3, max_queue=4))
        self.waiting: list[int] = []
        self.running: list[int] = []
        self.next_id = 0

    @rule()
    def submit(self) -> None:
        request_id, self.next_id = self.next_id, self.next_id + 1
        if len(self.waiting) >= 4 + 3 - len(self.running):
            with pytest.raises(QueueFullError, match=f"{len(self.waiting)} requests wait, the maximum is 4"):
                self.scheduler.submit(request_id)
            return
        self.scheduler.submit(request_id)
        self.waiting.append(request_id)

    @precondition(lambda self: self.waiting or self.running)
    @rule(data=st.data(), is_finished=st.booleans())
    def end(self, data: st.DataObject, is_finished: bool) -> None:
        request_id = data.draw(st.sampled_from([*self.waiting, *self.running]))
        for _ in range(2):
            (self.scheduler.finish if is_finished else self.scheduler.withdraw)(request_id)
        self.waiting = [each for each in self.waiting if each != request_id]
        self.running = [each for each in self.running if each != request_id or not is_finished]

    @rule()
    def schedule(self) -> None:
        num_free = 3 - len(self.running)
        admitted, self.waiting = self.waiting[:num_free], self.waiting[num_free:]
        self.running += admitted
        assert self.scheduler.schedule() == admitted

    @invariant()
    def counts_are_right(self) -> None:
        assert (self.scheduler.num_waiting, self.scheduler.num_running) == (len(self.waiting), len(self.running))


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
