"""The server: loads bundles that `bigtrain` wrote and keeps one belief for every episode.

`bigserve FILE...` runs it (docs/serving.md); `proto/bigproto/v1/policy.proto` is what it speaks.
"""

import os

# gRPC's core writes to standard error by itself, past the log, and what it writes can hold bytes
# and line breaks of a sender. It reads this once, when it is imported; a value of yours stays.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
