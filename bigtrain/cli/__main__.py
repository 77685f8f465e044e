"""`python -m bigtrain.cli` is `bigtrain`."""

import sys

from bigtrain.cli import main

sys.exit(main())
