"""`python -m braid` is the command `braid`."""

import sys

from braid._command import main

sys.exit(main())
