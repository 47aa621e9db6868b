"""python -m gflownet.store: the command of `gflownet.cli.store`."""

import sys

from gflownet.cli.arguments import print_plain_messages
from gflownet.cli.store import main

if __name__ == "__main__":
    print_plain_messages()
    sys.exit(main())
