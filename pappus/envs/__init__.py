"""Environments: N at a time, in one time convention."""

from pappus.envs.vector import EnvSource, VectorEnv, env_spec, make_env

__all__ = ["EnvSource", "VectorEnv", "env_spec", "make_env"]
