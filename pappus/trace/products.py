"""Products that do not depend on where their factors lie in memory, as those of MKL do on some processors: a run and
its replay have them in different places."""

from __future__ import annotations

import os

VARIABLE = "MKL_CBWR"


def same_products() -> None:
    """Ask for them, unless the user has set the variable. It takes effect in processes that load torch afterwards."""
    os.environ.setdefault(VARIABLE, "AUTO,STRICT")
