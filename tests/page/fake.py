"""A plausible document of a run with many roles, for those who build the page."""

from __future__ import annotations

import math
import random

from pappus.page.document import (
    VERSION,
    About,
    Columns,
    Now,
    Number,
    Page,
    ProgramDocument,
    RoleNow,
    RunDocument,
    RunSummary,
)

BEGAN = 1_760_000_000.0
STEPS = 1_000_000


def fake_page(roles: int = 6, live: bool = True, seed: int = 0) -> Page:
    """The page of one run."""
    return {"mode": "run", "live": live, "run": fake_run(roles, live, seed), "runs": None, "after": ""}


def fake_runs_page(settings: int = 2, seeds: int = 3) -> Page:
    """The page of a folder of runs."""
    return {"mode": "runs", "live": False, "run": None, "runs": fake_runs(settings, seeds), "after": ""}


def fake_run(roles: int = 6, live: bool = True, seed: int = 0, lines: int = 300) -> RunDocument:
    """An IMPALA run: `roles` roles in all, of which one learns and one evaluates."""
    rng = random.Random(seed)
    program = fake_program(max(1, roles - 2))
    columns = fake_columns(rng, lines)
    step = int(columns["step"][-1] or 0)
    return {
        "version": VERSION,
        "about": fake_about(seed, live),
        "program": program,
        "now": fake_now(rng, program, step),
        "curves": {"x": "step", "columns": columns},
        "evaluations": [
            {"step": share * step // 4, "seconds": share * 20.0, "mean": 120.0 * share, "std": 30.0, "episodes": 10}
            for share in (1, 2, 3, 4)
        ],
        "events": [
            {"time": BEGAN + 3, "role": "", "text": "auto: runtime local: envs take a core"},
            {"time": BEGAN + 40, "role": "actor-1", "text": "died: <b>not bold</b> & killed by signal 9"},
            {"time": BEGAN + 41, "role": "actor-1", "text": "restarted after a crash\n    with a traceback"},
        ],
        "config": {
            "resolved": {
                "system": "impala", "env": "CartPole-v1", "steps": STEPS, "actors": roles - 2, "envs_per_actor": 64,
                "algorithm.entropy_cost": 0.02, "optimizer.learning_rate": 1e-3, "network.hidden_sizes": [64, 64],
                "topology.wire.listen": "", "checkpoint.every_seconds": None,
            },
            "differs": [{"name": "algorithm.entropy_cost", "preset": 0.01, "value": 0.02}],
        },
        "video": None,
        "summary": None if live else {
            "system": "impala", "env": "CartPole-v1", "seed": seed, "steps": step, "updates": 3000,
            "wall_seconds": 90.0, "train_seconds": 80.0, "steps_per_second": 12_500.0, "episodic_return": 410.0,
            "eval_return": 480.0, "solved_at_step": None, "exit_reason": "steps done",
        },
    }


def fake_about(seed: int, live: bool) -> About:
    return {
        "system": "impala", "topology": "impala", "algorithm": "vtrace", "env": "CartPole-v1", "seed": seed,
        "steps_asked": STEPS, "command": "pappus train impala --env CartPole-v1 --page", "began": BEGAN,
        "machine": "2 cores, 24 GiB", "git_hash": "0123456789abcdef",
        "versions": {"python": "3.12.1", "torch": "2.9.0"},
        "directory": "runs/impala-CartPole-v1-1", "live": live, "phase": "running" if live else "over",
        "exit_reason": "" if live else "steps done",
    }


def fake_program(actors: int) -> ProgramDocument:
    names = [f"actor-{i}" for i in range(actors)]
    kinds = {
        "actor": (False, True, False, False), "learner": (True, False, False, False),
        "evaluator": (False, False, True, True),
    }
    others = [("learner", "learner"), ("evaluator", "evaluator")]
    return {
        "kinds": [
            {"name": name, "trains": t, "steps_envs": s, "evaluates": e, "background": b}
            for name, (t, s, e, b) in kinds.items()
        ],
        "roles": [
            *({"name": name, "kind": "actor", "index": i, "group": name} for i, name in enumerate(names)),
            *({"name": name, "kind": kind, "index": None, "group": name} for name, kind in others),
        ],
        "edges": [
            {"name": "unrolls", "label": "unrolls", "kind": "queue", "roles_from": names, "roles_to": ["learner"]},
            {
                "name": "weights", "label": "weights", "kind": "weights", "roles_from": ["learner"],
                "roles_to": [*names, "evaluator"],
            },
        ],
    }


def fake_now(rng: random.Random, program: ProgramDocument, step: int) -> Now:
    actors = sum(role["kind"] == "actor" for role in program["roles"])
    return {
        "time": BEGAN + 80, "step": step, "progress": step / STEPS, "limit": "steps", "eta_seconds": 42.0,
        "steps_per_second": 12_500.0, "updates_per_second": 40.0, "episodes": 4321,
        "episodic_return": 410.0, "episodic_length": 410.0, "eval_return": 480.0, "restarts": 1, "storage": "",
        "roles": {role["name"]: fake_role(rng, role["kind"], role["name"] == "actor-1") for role in program["roles"]},
        "edges": {
            "unrolls": {"bytes_per_second": 3.2e6, "depth": 1.5, "capacity": 2 * actors},
            "weights": {"bytes_per_second": 0.9e6, "depth": None, "capacity": None},
        },
        "limits": {"actor": 15_000.0, "learner": 40_000.0},
        "lag": {"mean": 1.3, "max": 6, "histogram": [[0, 200], [1, 900], [2, 310], [3, 40], [4, 8], [6, 1]]},
        "verdict": {
            "text": "The actors limit the run: busy 91 %; add actors or envs",
            "evidence": ["actors are busy 91 % of their time", "the learner waits for unrolls 64 % of its time"],
        },
        "cost": {"CPU": "2.1 core minutes"}, "memory_total": (actors + 2) * 180 << 20,
    }


def fake_role(rng: random.Random, kind: str, restarted: bool) -> RoleNow:
    busy = {"actor": 0.91, "learner": 0.33}.get(kind, 0.02) * rng.uniform(0.9, 1.05)
    waits = {"actor": "a free slot in unrolls", "learner": "unrolls"}.get(kind, "a command")
    return {
        "state": "busy" if busy > 0.5 else f"waits for {waits}", "busy": busy, "waiting": {waits: 1 - busy},
        "computing": 0.8 * busy, "queued": 0.1 * busy, "asleep": 0.1 * busy,
        "in_envs": 0.6 * busy if kind == "actor" else None, "cpu": 0.8 * busy, "memory": rng.randrange(150, 210) << 20,
        "restarts": int(restarted), "silent_seconds": 0.2, "pid": rng.randrange(1000, 90_000),
        "node": "", "device": "cpu", "steps_per_second": 3100.0 if kind == "actor" else None,
    }


def fake_columns(rng: random.Random, lines: int) -> Columns:
    """Curves of a run that learns; some values are not known."""
    shares = [(i + 1) / lines for i in range(lines)]
    greedy: list[Number] = [500 * share if i % 50 == 49 else None for i, share in enumerate(shares)]
    return {
        "step": [int(800_000 * share) for share in shares],
        "time": [BEGAN + 80 * share for share in shares],
        "charts/episodic_return": [500 / (1 + math.exp(5 - 10 * share)) + rng.gauss(0, 9) for share in shares],
        "charts/episodic_length": [500 / (1 + math.exp(5 - 10 * share)) for share in shares],
        "charts/SPS": [12_500 + rng.gauss(0, 400) for _ in shares],
        "eval/episodic_return": greedy,
        "losses/policy": [rng.gauss(0, 0.01) for _ in shares],
        "losses/value": [20 * math.exp(-3 * share) for share in shares],
        "losses/entropy": [0.69 - 0.3 * share for share in shares],
        "learner/policy_lag": [1.3 + rng.gauss(0, 0.1) for _ in shares],
        "memory/learner": [180.0 for _ in shares],
    }


def fake_runs(settings: int = 2, seeds: int = 3) -> list[RunSummary]:
    """Runs of several settings, each with several seeds."""
    found: list[RunSummary] = []
    for setting in range(settings):
        for seed in range(1, seeds + 1):
            run = fake_run(4, False, 10 * setting + seed, 120)
            run["config"]["resolved"]["optimizer.learning_rate"] = 10.0 ** -(setting + 3)
            run["about"]["seed"] = seed
            group = f"learning_rate-{10.0 ** -(setting + 3)}"
            found.append({
                "name": f"{group}-seed-{seed}", "group": group, "about": run["about"], "summary": run["summary"],
                "config": run["config"]["resolved"], "curves": run["curves"],
            })
    return found
