"""Entry point of `python -m braid`, the command `braid`."""

import sys

from braid._commands import main

sys.exit(main())
