"""Why an episode did what it did: the reply to Explain, as plain frozen data."""

import dataclasses

from bigproto.v1 import policy_pb2


@dataclasses.dataclass(frozen=True)
class ActionExplanation:
    """One action at the last step; the reward is the predicted one, with its deviation."""

    name: str
    value: float
    reward_mean: float
    reward_deviation: float
    explores: bool


@dataclasses.dataclass(frozen=True)
class ContextExplanation:
    """One context, and how probable each action is for an expert who knows it."""

    name: str
    probability: float
    expert: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What an episode believed and expected at its last step, and what it chose."""

    step: int
    model: str
    version: str
    chosen: int
    actions: tuple[ActionExplanation, ...]
    contexts: tuple[ContextExplanation, ...]
    entropy: float


def read_explanation(reply: policy_pb2.ExplainReply) -> Explanation:
    """The explanation in a reply to Explain."""
    return Explanation(
        step=reply.step,
        model=reply.model,
        version=reply.version,
        chosen=reply.chosen,
        actions=tuple(
            ActionExplanation(a.name, a.value, a.reward_mean, a.reward_deviation, a.explores)
            for a in reply.actions
        ),
        contexts=tuple(
            ContextExplanation(c.name, c.probability, tuple(c.expert)) for c in reply.contexts
        ),
        entropy=reply.entropy,
    )
