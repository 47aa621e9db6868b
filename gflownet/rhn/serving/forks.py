"""Several answers to one prompt: one request reads it, the others are held and start from its state."""

from __future__ import annotations

from collections.abc import Sequence

from gflownet.rhn.serving.cache import CacheManager
from gflownet.rhn.serving.requests import ActiveRequest, Fork
from gflownet.rhn.serving.scheduler import Scheduler


def release_followers(reader: ActiveRequest, cache: CacheManager, scheduler: Scheduler) -> None:
    """Queue the followers of a request that has read its prompt but for the last token."""
    if not reader.followers or reader.num_unread != 1:
        return
    fork = Fork(cache.export_state(reader.request_id), tuple(reader.prompt_sampled))
    for follower in _held(reader.followers):
        follower.fork = fork
        scheduler.release(follower.request_id)
    reader.followers, reader.prompt_sampled = (), []


def replace_reader(reader: ActiveRequest, scheduler: Scheduler) -> None:
    """Queue the first follower of a request that ended in its prompt; it reads the prompt for the others."""
    held = _held(reader.followers)
    if held:
        held[0].followers = held[1:]
        scheduler.release(held[0].request_id)


def _held(followers: Sequence[ActiveRequest]) -> list[ActiveRequest]:
    return [follower for follower in followers if not follower.cancelled]
