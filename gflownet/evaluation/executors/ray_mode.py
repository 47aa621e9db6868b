"""python ray_mode.py ADDRESS: print the authentication modes in which a Ray cluster accepts this user, one per line.

A process of its own, because Ray reads its mode once per connection and writes refusals to stderr.
"""

import os
import sys
from typing import Any, cast

MODES = ("disabled", "token")


def accepts(address: str, mode: str) -> bool:
    """Return whether the cluster answers in a mode. Raises an error of Ray if it does not answer at all."""
    from ray import _raylet
    from ray.exceptions import AuthenticationError

    raylet = cast(Any, _raylet)
    os.environ["RAY_AUTH_MODE"] = mode
    raylet.Config.initialize("")  # reads the environment again
    try:
        raylet.GcsClient(address=address)
    except AuthenticationError:
        return False
    return True


if __name__ == "__main__":
    from ray._private.services import canonicalize_bootstrap_address_or_die

    place = canonicalize_bootstrap_address_or_die(sys.argv[1])
    for each in MODES if sys.argv[2] == "token" else MODES[:1]:
        if accepts(place, each):
            print(each)
            break
    else:
        print("none")
