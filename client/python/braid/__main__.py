"""Entry point of `python -m braid`, the command `braid`."""

import sys

from braid.cli import main

sys.exit(main())
