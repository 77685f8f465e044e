"""The phases, driven: from demonstrations to beliefs, rewards and policies."""

from bigtrain.phases.belief import choose_inference
from bigtrain.phases.infer import (
    InferredReward,
    check_seeds,
    infer_reward,
    learn_reward,
    make_learner,
)
from bigtrain.phases.judging import Known, Measure, PolicyJudge, Verdict
from bigtrain.phases.learn import (
    LearnedPolicy,
    init_policies,
    learn_members,
    learn_policies,
    learn_policy,
)
from bigtrain.phases.routing import Route, route

__all__ = [
    "InferredReward",
    "Known",
    "LearnedPolicy",
    "Measure",
    "PolicyJudge",
    "Route",
    "Verdict",
    "check_seeds",
    "choose_inference",
    "infer_reward",
    "init_policies",
    "learn_members",
    "learn_policies",
    "learn_policy",
    "learn_reward",
    "make_learner",
    "route",
]
