"""Service between event loop and engine: disconnected clients, failing engines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from torch import Tensor

from gflownet.rhn.decoding import LanguageModel
from gflownet.rhn.server.requests import RequestError, Submission
from gflownet.rhn.server.service import Service
from gflownet.rhn.serving.engine import Engine, EngineConfig, SchedulerConfig
from gflownet.rhn.serving.sampling import SamplingParams
from tests.rhn.random_networks import random_network
from tests.rhn.server.clients import CONFIG, NEVER_ENDS, PATIENCE

ENDLESS = SamplingParams(max_tokens=NEVER_ENDS, seed=0)
SCHEDULER = SchedulerConfig(max_slots=3, max_queue=2)


class Watched:
    """A model that records the number of rows of its steps, and fails after some."""

    def __init__(self, model: LanguageModel, num_steps: int = NEVER_ENDS) -> None:
        self._model, self._num_steps = model, num_steps
        self.vocabulary_size, self.state_shape = model.vocabulary_size, model.state_shape
        self.dtype, self.device = model.dtype, model.device
        self.rows: list[int] = []

    def prefill(self, tokens: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        return self._model.prefill(tokens, state)

    def step(self, tokens: Tensor, state: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
        self.rows.append(len(tokens))
        if len(self.rows) > self._num_steps:
            raise RuntimeError("out of memory")
        return self._model.step(tokens, state, starts)


def engine_of(model: LanguageModel | None = None) -> Engine:
    return Engine(model or random_network(CONFIG, 0).decoder(), EngineConfig(SCHEDULER))


def serve(engine: Engine, talk: Callable[[Service], Awaitable[None]]) -> Service:
    async def run() -> Service:
        service = Service(engine, "m", on_failure=lambda: None)
        service.start()
        try:
            async with asyncio.timeout(PATIENCE):
                await talk(service)
        finally:
            service.stop()
        return service

    return asyncio.run(run())


async def until_idle(engine: Engine) -> None:
    """Wait until no request runs or waits, and every event has arrived."""
    while engine.metrics().num_running + engine.metrics().num_waiting:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)


def deadline() -> float:
    return asyncio.get_running_loop().time() + PATIENCE


def test_engine_failure_ends_every_answer_and_the_service() -> None:
    model = Watched(random_network(CONFIG, 0).decoder(), num_steps=5)

    async def talk(service: Service) -> None:
        answers = [service.submit(Submission([[1]], ENDLESS)) for _ in range(4)]  # the last one waits
        for answer in answers:
            with pytest.raises(RequestError, match="500: the model failed; the server ends"):
                async for _ in answer.pieces(deadline()):
                    pass
        with pytest.raises(RequestError, match="500: the model failed; the server ends"):
            service.check_open()

    assert serve(engine_of(model), talk).failed


def test_pieces_are_complete_when_the_event_loop_is_busy() -> None:
    """Events that arrive in between are one piece."""

    async def talk(service: Service) -> None:
        answer = service.submit(Submission([[1]], SamplingParams(max_tokens=50, seed=0), stream=True))
        await until_idle(service.engine)
        pieces = [piece async for some in answer.pieces(deadline()) for piece in some]
        assert [(piece.finish_reason, len(piece.tokens)) for piece in pieces] == [("length", 50)]

    serve(engine_of(), talk)
