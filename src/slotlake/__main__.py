"""``python -m slotlake``: the command, where its script is not on PATH."""

import sys

from slotlake.infra.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
