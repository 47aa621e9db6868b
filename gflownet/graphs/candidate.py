"""What an evaluator, a store and a replay buffer need to know of a terminal object."""

from __future__ import annotations

from typing import Any, Protocol


class Candidate(Protocol):
    """A graph with an exact identity: equal keys mean the same graph up to the names of its interchangeable nodes."""

    def canonical_key(self) -> str:
        """Return a text that two graphs share iff they are the same."""
        ...

    def canonical_hash(self) -> str:
        """Return a short digest of the key: a bucket, never an identity."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return the graph in networkx's node-link form."""
        ...
