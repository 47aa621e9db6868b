"""Shared by the tests of the server: a small model, OpenAI's client, and waiting with a time limit."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import lazy_loader
import torch

from gflownet.rhn.checkpoint import load_text_model, save_language_model
from gflownet.rhn.config import RHNConfig
from gflownet.rhn.serving.generation import Generation, generate_batch
from gflownet.rhn.serving.sampling import SamplingParams
from gflownet.rhn.text_codec import TOKENIZER_NAME, encode
from tests.rhn.random_networks import random_network
from tests.rhn.test_text_codec import write_tokenizer

if TYPE_CHECKING:
    import openai
else:
    openai = lazy_loader.load("openai")  # takes seconds: not for processes of the tests that do not use it

CONFIG = RHNConfig(hidden_size=8, intermediate_size=12, depth=2, rank=2)
NEVER_ENDS = 10**8  # tokens
PATIENCE = 60.0  # seconds


def save_tiny(path: Path) -> Path:
    """Save a model whose answers are varied and depend on all that came before; return where."""
    network = random_network(CONFIG, 0)
    torch.nn.init.normal_(network.embedding, std=0.3, generator=torch.Generator().manual_seed(0))
    save_language_model(path, network)
    return path


def save_tokenizer_model(path: Path) -> Path:
    """Save a model like `save_tiny`, whose tokens are those of a tokenizer; return where."""
    path.mkdir(parents=True)
    size = write_tokenizer(path / TOKENIZER_NAME).vocabulary_size
    network = random_network(replace(CONFIG, vocabulary_size=size), 0)
    torch.nn.init.normal_(network.embedding, std=0.3, generator=torch.Generator().manual_seed(0))
    save_language_model(path, network)
    return path


class Listening(Protocol):
    """A server in this or another process."""

    @property
    def url(self) -> str: ...

    def metrics(self) -> dict[str, float]: ...


def client_of(server: Listening) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)


def wait_until(server: Listening, **expected: float) -> dict[str, float]:
    """Ask for the metrics until they are as expected, and return them."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = server.metrics()
        if all(found.get(f"gflownet_{name}", 0) == value for name, value in expected.items()):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


def offline(folder: Path, prompt: str, max_slots: int, **params: Any) -> Generation:
    """Return the answer that the model gives without a server."""
    return generate_batch(
        load_text_model(folder).model, [encode(prompt)], [SamplingParams(**params)], max_slots=max_slots
    )[0]
