"""python -m gflownet.compare: the command of `gflownet.cli.compare`."""

import sys

from gflownet.cli.compare import main
from gflownet.terminal.arguments import print_plain_messages

if __name__ == "__main__":
    print_plain_messages()
    sys.exit(main())
