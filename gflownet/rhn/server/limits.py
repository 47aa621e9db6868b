"""Limits of one request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of one request."""

    max_body: int  # bytes
    max_prompt: int  # tokens
    max_answers: int  # in one request: prompts times answers to each
    seconds: float  # until its last token
    max_tokens: int = 16384  # of an answer
    body_seconds: float = 30.0  # to receive a body
