"""`python -m bigserve` is `bigserve`."""

import sys

from bigserve.cli import main

sys.exit(main())
