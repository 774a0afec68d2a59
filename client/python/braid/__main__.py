"""`python -m braid` is the command `braid`."""

import sys

from braid._commands import main

sys.exit(main())
