"""A run at one moment, from its statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pappus.page.document import EdgeNow, Lag, Now, ProgramDocument, RoleNow
from pappus.telemetry.run_stats import BYTES, RunStats
from pappus.telemetry.verdict import RoleView, percent

MENTIONED = 0.05
"""Shares below this are no evidence."""
SPENT = (("computing", "computing"), ("queued", "without a core"), ("asleep", "asleep"))


def now_of(
    run_stats: RunStats, time: float, scalars: Mapping[str, float], program: ProgramDocument,
    capacities: Mapping[str, float],
) -> Now:
    """`scalars` are those of the run (`RunStats.scalars`) at that time."""
    views, places, rate = run_stats.views(), run_stats.places(), run_stats.steps_per_second
    left = run_stats.config.steps - run_stats.env_steps
    roles = {view.role: _role(view, *places[view.role], run_stats.config.device) for view in views}
    return {
        "time": time, "step": run_stats.env_steps, "progress": run_stats.progress,
        "eta_seconds": left / rate if rate and left > 0 else None, "steps_per_second": rate,
        "updates_per_second": run_stats.updates_per_second, "episodes": run_stats.episodes,
        "episodic_return": run_stats.episodic_return, "episodic_length": run_stats.episodic_length,
        "eval_return": run_stats.eval_return, "restarts": run_stats.restarts, "storage": run_stats.storage,
        "roles": roles, "edges": _edges(scalars, program, capacities), "limits": run_stats.limits(),
        "lag": _lag(run_stats),
        "verdict": {"text": run_stats.verdict(), "evidence": evidence(views)},
        "cost": _cost(scalars), "memory_total": _memory(roles),
    }


def evidence(views: Sequence[RoleView]) -> list[str]:
    """What each kind of role does with its time: `actor ×2: busy 91 % (computing 80 %), waits for unrolls 9 %`."""
    kinds: dict[str, list[RoleView]] = {}
    for view in views:
        kinds.setdefault(view.kind.name, []).append(view)
    return [_of_kind(name, members) for name, members in kinds.items() if any(one.busy + one.idle for one in members)]


def _of_kind(name: str, members: Sequence[RoleView]) -> str:
    def mean(shares: Sequence[float | None]) -> float:
        return sum(share or 0.0 for share in shares) / len(members)

    parts = [(words, mean([getattr(view, part) for view in members])) for part, words in SPENT]
    spent = ", ".join(f"{words} {percent(share)}" for words, share in parts if share >= MENTIONED)
    reasons = dict.fromkeys(what for view in members for what in view.waiting)
    waits = {what: mean([view.waiting.get(what) for view in members]) for what in reasons}
    clauses = [f"busy {percent(mean([view.busy for view in members]))}" + (f" ({spent})" if spent else "")]
    clauses += [f"waits for {what} {percent(share)}" for what, share in waits.items() if share >= MENTIONED]
    return f"{name}{f' ×{len(members)}' * (len(members) > 1)}: {', '.join(clauses)}"


def _role(view: RoleView, pid: int | None, rate: float, device: str) -> RoleNow:
    return {
        "state": view.state, "busy": view.busy, "waiting": dict(view.waiting), "computing": view.computing,
        "queued": view.queued, "asleep": view.asleep, "in_envs": view.in_envs, "cpu": view.cpu, "memory": view.memory,
        "restarts": view.restarts, "silent_seconds": view.silent_seconds, "pid": pid, "node": view.node,
        "device": device if view.kind.uses_device else "cpu", "steps_per_second": rate or None,
    }


def _edges(
    scalars: Mapping[str, float], program: ProgramDocument, capacities: Mapping[str, float]
) -> dict[str, EdgeNow]:
    trains = {kind["name"] for kind in program["kinds"] if kind["trains"]}
    learners = {role["name"] for role in program["roles"] if role["kind"] in trains}
    found: dict[str, EdgeNow] = {}
    for edge in program["edges"]:
        label, depth = edge["label"], None
        if edge["kind"] == "queue" and learners & set(edge["roles_to"]):
            depth = scalars.get("queue/depth")
        elif edge["kind"] == "replay":
            depth = scalars.get("replay/size")
        flows = [rate for name, rate in scalars.items() if name.endswith(f"/{label}{BYTES}_per_second")]
        found[label] = {
            "bytes_per_second": sum(flows) if flows else None, "depth": depth, "capacity": capacities.get(label),
        }
    return found


def _lag(run_stats: RunStats) -> Lag | None:
    known = run_stats.policy_lag
    if known is None:
        return None
    counts = sorted((int(bucket), count) for bucket, count in run_stats.lags().items())
    return {"mean": known[0], "max": known[1], "histogram": [[bucket, count] for bucket, count in counts]}


def _cost(scalars: Mapping[str, float]) -> dict[str, str] | None:
    computed = scalars.get("charts/cpu_seconds")
    return None if computed is None else {"CPU": f"{computed:,.0f} s"}


def _memory(roles: Mapping[str, RoleNow]) -> int | None:
    """Of all processes, each once; what they share is counted for each."""
    sizes = {(role["node"], role["pid"]): role["memory"] for role in roles.values() if role["memory"] is not None}
    return int(sum(size or 0 for size in sizes.values())) if sizes else None
