"""`python -m tonnage.cli` is `tonnage`."""

import sys

from tonnage.cli.main import main

sys.exit(main())
