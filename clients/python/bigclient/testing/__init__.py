"""A server for tests of code that uses `bigclient`: real gRPC, a policy written in Python, no JAX.

    with FakeServer() as server, bigclient.connect(server.address) as client:
        ...

It keeps every rule of the wire contract, and fails on request.
"""

from .models import Decision, FakeModel, ImpossibleObservation, hearing
from .server import FakeServer

__all__ = ["Decision", "FakeModel", "FakeServer", "ImpossibleObservation", "hearing"]
