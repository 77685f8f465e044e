"""The server: loads a bundle that `bigtrain` wrote and keeps one belief for every episode.

Nothing is served yet. The wire contract it will speak is `proto/bigproto/v1/policy.proto`.
"""
