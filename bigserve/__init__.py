"""The server: loads bundles that `bigtrain` wrote and keeps one belief for every episode.

`bigserve FILE...` runs it (docs/serving.md); `proto/bigproto/v1/policy.proto` is what it speaks.
"""
