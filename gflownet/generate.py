"""python -m gflownet.generate: the command of `gflownet.cli.generate`."""

import sys

from gflownet.cli.arguments import print_plain_messages
from gflownet.cli.generate import main

if __name__ == "__main__":
    print_plain_messages()
    sys.exit(main())
