"""Problems with known answers that are no tables: simulators written in JAX."""

from bigtrain.problem.envs.car_flag import CarFlag, car_flag
from bigtrain.problem.envs.foggy import Foggy, foggy

__all__ = ["CarFlag", "Foggy", "car_flag", "foggy"]
