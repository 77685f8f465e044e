"""Phase 3: Bayes-adaptive Q-learning (section 4.4)."""

from bigtrain.bayes_rl.config import BayesRLConfig, LanesConfig
from bigtrain.bayes_rl.learn import LearnedPolicy, learn_policies, learn_policy

__all__ = ["BayesRLConfig", "LanesConfig", "LearnedPolicy", "learn_policies", "learn_policy"]
