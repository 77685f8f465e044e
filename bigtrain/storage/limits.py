"""How much a bundle may hold. Nothing is allocated before it is held against these."""

MAX_BYTES = 1 << 30
"""Bytes of a file."""

MAX_DEPTH = 16
"""Maps and lists within each other."""

MAX_VALUES = 1 << 16
"""Values in a file, keys and maps and lists included; an array has about ten."""

MAX_TEXT = 1 << 24
"""Bytes of a text, such as all names of states together."""

MAX_NAMES = 1 << 20
"""Names of one kind, such as those of states."""

MAX_NAME = 256
"""Characters of one name."""

MAX_RANK = 8
"""Axes of an array."""

MAX_OBSERVATION = 1 << 26
"""Numbers of an observation."""

MAX_WIDTH = 1 << 16
"""Units or channels of a layer."""

MAX_LAYERS = 64
"""Layers of a network, of each kind."""
