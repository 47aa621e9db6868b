"""python -m gflownet.generate: the command of `gflownet.language.generate`."""

import sys

from gflownet.language.generate import main
from gflownet.terminal.arguments import print_plain_messages

if __name__ == "__main__":
    print_plain_messages()
    sys.exit(main())
