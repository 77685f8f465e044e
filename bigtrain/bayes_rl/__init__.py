"""Phase 3: Bayes-adaptive Q-learning (section 4.4)."""

from bigtrain.bayes_rl.config import BayesRLConfig, LanesConfig

__all__ = ["BayesRLConfig", "LanesConfig"]
