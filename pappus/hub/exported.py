"""`pappus export`: a run's policy as one file for other programs, checked, with a note and a card beside it.

    export/
      policy.onnx  policy.onnx.json     the policy; its inputs and outputs, and how near it is to ours
      policy.pt2   policy.pt2.json      the same for torch.export
      README.md                         the model card
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from pappus.accelerator import one_thread
from pappus.data.no_env import env_to_act_in
from pappus.envs.external import has_no_env
from pappus.export.check import Agreement, Exported, agreement, steps_of
from pappus.export.formats import run_torch, traced, write_torch
from pappus.export.graph import PolicyGraph
from pappus.hub.card import About, check_card, write_card
from pappus.hub.files import EXPORT, FORMATS, NOTE, check_folder, check_format, exported_in
from pappus.policy import TrainedPolicy
from pappus.systems import saved_config
from pappus.telemetry.files import versions, write_json
from pappus.telemetry.run_folders import find_checkpoint
from pappus.trained import policy_of, stored_policy, unused_settings

Write = Callable[[ExportedProgram, PolicyGraph, Path], None]
OBSERVATIONS = 4096
"""Observations that an export is checked on."""


@dataclass(frozen=True)
class Export:
    """What to export, and where to."""

    run: Path
    format: str = "onnx"
    out: Path | None = None
    checkpoint: str = "latest"
    observations: int = OBSERVATIONS
    trust: bool = False


@dataclass(frozen=True)
class ExportedPolicy:
    """An exported policy, and its deviation from ours."""

    path: Path
    agreement: Agreement

    def __str__(self) -> str:
        return f"exported {self.path}: {self.agreement}"


def export_policy(asked: Export) -> ExportedPolicy:
    """Write, run and compare; a file whose actions differ from the policy's is not kept."""
    check_format(asked.format)
    folder = asked.out or asked.run / EXPORT
    check_folder(folder)
    check_card(folder)
    found, config = saved_config(asked.run, trust=asked.trust, without=unused_settings(None))
    checkpoint = find_checkpoint(asked.run, asked.checkpoint)
    env = env_to_act_in(config.env, config.env_options, asked.run)
    stored = stored_policy(found, config, env.spec, checkpoint, 1)
    policy = TrainedPolicy(env, policy_of(stored.algorithm, stored.weights, 1))  # in full precision
    folder.mkdir(parents=True, exist_ok=True)
    name = FORMATS[asked.format]
    with one_thread():
        graph = PolicyGraph(policy)
        steps = steps_of(policy, graph, config.env, config.env_options, asked.observations)
        agrees = write_checked(
            graph, asked.format, folder / name, lambda exported: agreement(exported, steps, source_of(config.env))
        )
    about = About.of(asked.run, checkpoint)
    write_json(folder / f"{name}{NOTE}", note_of(graph, agrees, about))
    write_card(folder, about, exported_in(folder))
    return ExportedPolicy(folder / name, agrees)


def write_checked(
    graph: PolicyGraph, kind: str, path: Path, compare: Callable[[Exported], Agreement]
) -> Agreement:
    """Write a file of this format; it gets its name only after the check."""
    write, run = format_of(kind)
    draft = path.with_name(f".partial-{path.name}")
    try:
        write(traced(graph), graph, draft)
        found = compare(run(draft))
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return found


def format_of(kind: str) -> tuple[Write, Callable[[Path], Exported]]:
    """How a format is written and run."""
    if kind == "torch-export":
        return write_torch, run_torch
    from pappus.export.onnx_files import run_onnx, write_onnx

    return write_onnx, run_onnx


def source_of(env: str) -> str:
    """Where the observations of the check come from, in words."""
    return "drawn from the spec" if has_no_env(env) else f"of {env}"


def note_of(graph: PolicyGraph, agrees: Agreement, about: About) -> dict[str, Any]:
    """What a program that loads the file must know."""
    return {
        "inputs": [asdict(note) for note in graph.inputs], "outputs": graph.output_names,
        "agreement": {**asdict(agrees), "text": str(agrees)}, "steps": about.step, "system": about.config.get("system"),
        "env": about.config.get("env"), "versions": versions(),
    }
