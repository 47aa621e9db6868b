"""python -m gflownet.rhn.server."""

import sys

from gflownet.rhn.server.command import main

sys.exit(main())
