"""A run at one moment, from its statistics."""

from __future__ import annotations

from collections.abc import Mapping

from pappus.page.document import EdgeNow, Lag, Now, ProgramDocument, RoleNow
from pappus.telemetry.cost import shown
from pappus.telemetry.role_view import RoleView
from pappus.telemetry.run_stats import BYTES, RunStats


def now_of(
    run_stats: RunStats, time: float, scalars: Mapping[str, float], program: ProgramDocument,
    capacities: Mapping[str, float], trained: bool = False,
) -> Now:
    """`scalars` are those of the run (`RunStats.scalars`) at that time. `trained`: what comes now is evaluation, so
    shares and rates are those of the whole training."""
    views, places, diagnosis = run_stats.views(trained), run_stats.places(trained), run_stats.diagnosis(trained)
    roles = {view.role: _role(view, *places[view.role], run_stats.config.device) for view in views}
    rates = {**scalars, **run_stats.byte_rates(trained)} if trained else scalars
    return {
        "time": time, "step": run_stats.env_steps, "progress": run_stats.progress, "limit": run_stats.nearest_limit,
        "eta_seconds": run_stats.seconds_left, "steps_per_second": run_stats.rate("env_steps", trained),
        "updates_per_second": run_stats.rate("updates", trained), "episodes": run_stats.episodes,
        "episodic_return": run_stats.episodic_return, "episodic_length": run_stats.episodic_length,
        "eval_return": run_stats.eval_return, "restarts": run_stats.restarts, "storage": run_stats.storage,
        "roles": roles, "edges": _edges(rates, program, capacities), "limits": run_stats.limits(trained),
        "lag": _lag(run_stats, trained),
        "verdict": {"text": run_stats.stall or diagnosis.text, "evidence": [*diagnosis.evidence[1:], *diagnosis.facts]},
        "cost": shown({name: value for name, value in scalars.items() if name.startswith("cost/")}) or None,
        "memory_total": scalars.get("cost/peak_memory_bytes") or _memory(roles),
    }


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


def _lag(run_stats: RunStats, trained: bool) -> Lag | None:
    known = run_stats.policy_lag_of(trained)
    if known is None:
        return None
    counts = sorted((int(bucket), count) for bucket, count in run_stats.lags(trained).items())
    return {"mean": known[0], "max": known[1], "histogram": [[bucket, count] for bucket, count in counts]}


def _memory(roles: Mapping[str, RoleNow]) -> int | None:
    """Of all processes, each once; what they share is counted for each."""
    sizes = {(role["node"], role["pid"]): role["memory"] for role in roles.values() if role["memory"] is not None}
    return int(sum(size or 0 for size in sizes.values())) if sizes else None
