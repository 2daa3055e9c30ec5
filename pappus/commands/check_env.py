"""`pappus check-env`: describes an env and reports problems."""

from __future__ import annotations

import math

from pappus.arguments import Parser
from pappus.errors import UserError


def main(words: list[str], began: float) -> int:
    parser = Parser(prog="pappus check-env", description="Describe an env, measure its speed, and report problems.")
    parser.add_argument("env", help="Gymnasium id, module:id or module:function")
    parser.add_argument("--backend", default="auto", help="env backend, as --env-options.backend of pappus train")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of measurement (default: 2)")
    arguments = parser.parse_args(words)
    if not 0 < arguments.seconds < math.inf:
        raise UserError(f"--seconds {arguments.seconds:g} must be positive and finite")
    from pappus.config import EnvOptions
    from pappus.envs.check import check_env

    report = check_env(arguments.env, EnvOptions(backend=arguments.backend), arguments.seconds)
    print(report)
    return 1 if report.problems else 0
