"""python -m gflownet.generate: the command of `gflownet.cli.generate`."""

import sys

from gflownet.cli.generate import main
from gflownet.cli.arguments import print_plain_messages

if __name__ == "__main__":
    print_plain_messages()
    sys.exit(main())
