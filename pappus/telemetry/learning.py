"""What other settings change in learning, as clauses: for whoever proposes them."""

from __future__ import annotations

from pappus.config import RunConfig


def costs_in_learning(config: RunConfig, before: RunConfig) -> str:
    """All of it; empty where learning stays as it is."""
    lag, seed = changed_lag(config, before), changed_seed(config, before)
    clauses = (changed_batch(config, before), lag and f"a policy lag of {lag}", seed and f"one seed {seed}")
    return "; ".join(clause for clause in clauses if clause)


def items_text(config: RunConfig) -> str:
    """`64 unrolls per update`."""
    what = "rows of replay" if hasattr(config.topology, "replay") else "unrolls"
    return f"{config.topology.items_per_update(config)} {what} per update"


def changed_batch(config: RunConfig, before: RunConfig) -> str:
    """`64 unrolls per update instead of 8 …`."""
    items, usual = (one.topology.items_per_update(one) for one in (config, before))
    if items == usual:
        return ""
    many = "many fewer" if items > usual else "many more"
    rest = "" if hasattr(config.topology, "replay") else f" and as {many} updates per step"
    return f"{items_text(config)} instead of {usual}{rest}" + (": it learns less per step" if items > usual else "")


def changed_lag(config: RunConfig, before: RunConfig) -> str:
    """`at most about 200 updates instead of 25`."""
    most, usual = (one.topology.policy_lag(one) for one in (config, before))
    if abs(most - usual) <= 0.05 * max(most, usual):
        return ""
    return f"at most about {most:.3g} updates instead of {usual:.3g}"


def changed_seed(config: RunConfig, before: RunConfig) -> str:
    """What one seed no longer does."""
    one_thread = before.inline and not config.inline
    return "no longer gives the same run to the bit: that needs one thread" if one_thread else ""
