"""A system as an installed package would offer it."""

from pappus.system import System
from pappus.systems import ALGORITHMS, TOPOLOGIES

small_impala = System(ALGORITHMS["vtrace"], TOPOLOGIES["impala"], settings={"envs_per_actor": 2})
