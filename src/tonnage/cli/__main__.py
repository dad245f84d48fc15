"""Entry point of `python -m tonnage.cli`, the same as `tonnage`."""

import sys

from tonnage.cli.main import main

sys.exit(main())
