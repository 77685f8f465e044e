"""The client: what a robot or a simulator imports to get actions from a `bigserve` server.

Nothing connects yet. The wire contract it will speak is `proto/bigproto/v1/policy.proto`.
"""
