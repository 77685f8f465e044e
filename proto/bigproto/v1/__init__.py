"""Version 1 of the wire contract: `policy_pb2` has the messages, `policy_pb2_grpc` the services."""
