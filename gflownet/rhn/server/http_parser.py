"""HTTP parser with limits that hold however the bytes arrive."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import h11

MAX_HEADER = 16 * 1024  # bytes


class LimitedParser(h11.Connection):
    """Parser of a server that refuses long headers and large chunks.

    h11 itself limits only a header that is not complete yet, and waits for a chunk of any size.
    """

    def __init__(self, max_chunk: int) -> None:
        """`max_chunk` is in bytes."""
        super().__init__(h11.SERVER, MAX_HEADER)
        self._max_chunk = max_chunk

    def next_event(self) -> Any:
        """Return the next event.

        Raises:
            h11.RemoteProtocolError: invalid HTTP, or a part over its limit; with a status as hint.
        """
        num_before = self._num_unread() if self.their_state is h11.IDLE else 0  # counting copies
        event = super().next_event()
        if isinstance(event, h11.Request) and (size := num_before - self._num_unread()) > MAX_HEADER:
            message = f"header: expected at most {MAX_HEADER} bytes, got {size}"
            raise h11.RemoteProtocolError(message, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        # The size of a chunk is known to the reader only; it makes no event before the first byte of the chunk.
        if getattr(self._reader, "_bytes_in_chunk", 0) > self._max_chunk:
            message = f"body: expected chunks of at most {self._max_chunk} bytes, got a larger one"
            raise h11.RemoteProtocolError(message, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        return event

    def _num_unread(self) -> int:
        return len(self.trailing_data[0])
