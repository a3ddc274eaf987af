"""`python -m loadtest.server.sim`."""

import sys

from loadtest.server.sim.app import main

sys.exit(main())
