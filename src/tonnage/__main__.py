"""Entry point of `python -m tonnage`, the same as `tonnage`."""

import sys

from tonnage.tools.cli.main import main

sys.exit(main())
