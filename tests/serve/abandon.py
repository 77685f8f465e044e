"""A robot that plays until it is killed: `python abandon.py ADDRESS NUM_EPISODES LEASE`."""

import itertools
import sys

from subject import Subject
from wire import Stream, act_request, channel_to, duration

from bigproto.v1 import policy_pb2 as pb
from bigproto.v1 import policy_pb2_grpc


def main(address: str, num_episodes: int, lease: float) -> None:
    with channel_to(address) as channel:
        stub = policy_pb2_grpc.PolicyStub(channel)
        subject = Subject(stub.Describe(pb.DescribeRequest()).models[0])
        request = pb.StartRequest(num_episodes=num_episodes, lease=duration(lease))
        ids = stub.Start(request).episode_ids
        stream = Stream(stub)
        for step in itertools.count():
            state = "ST" if step else "Gold"
            stream.ask(act_request(ids, [step] * num_episodes, [subject.see(state)] * num_episodes))
            print(step, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
