"""Bundles, `.big` files: a policy and all that is known of it, in one file (docs/bundle-format.md).

`save_bundle` writes a result and `load_bundle` reads it; a file is data, and nothing in it is run.
"""

from bigtrain.bundle.content import dump_bundle, parse_bundle
from bigtrain.bundle.files import load_bundle, save_bundle
from bigtrain.bundle.model import ArraySpec, Bundle, Explanation
from bigtrain.bundle.records import Certificate
from bigtrain.bundle.render import render

__all__ = [
    "ArraySpec",
    "Bundle",
    "Certificate",
    "Explanation",
    "dump_bundle",
    "load_bundle",
    "parse_bundle",
    "render",
    "save_bundle",
]
