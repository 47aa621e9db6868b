"""python -m gflownet.store: the command of `gflownet.cli.store`."""

import sys

from gflownet.cli.store import main
from gflownet.terminal.arguments import print_plain_messages

if __name__ == "__main__":
    print_plain_messages()
    sys.exit(main())
