"""Limits of the server: every field is an option of its command line (no torch, no web framework)."""

from __future__ import annotations

from dataclasses import dataclass

from gflownet.options import AT_LEAST_ONE, NOT_NEGATIVE, find_options, option


@dataclass(frozen=True)
class ServerLimits:
    """Limits of requests and of connections; times in seconds."""

    max_slots: int = option(32, "maximum number of prompts answered at once", AT_LEAST_ONE)
    max_queue: int = option(256, "maximum number of waiting prompts; beyond: status 429", AT_LEAST_ONE)
    max_prompt: int = option(16384, "maximum tokens of a prompt; beyond: status 400", AT_LEAST_ONE)
    max_tokens_limit: int = option(16384, "maximum tokens of an answer; beyond: status 400", AT_LEAST_ONE)
    max_body: int = option(1 << 20, "maximum bytes of a request; beyond: status 413", AT_LEAST_ONE)
    max_connections: int = option(512, "maximum number of connections; beyond: status 503", AT_LEAST_ONE)
    timeout: float = option(600.0, "seconds for an answer; beyond: status 504", AT_LEAST_ONE)
    grace: float = option(30.0, "seconds for running requests after SIGTERM", NOT_NEGATIVE)


OPTIONS = tuple(find_options(ServerLimits))
