"""Policies as ONNX files: the only place that knows ONNX's packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from pappus.export.check import Exported
from pappus.export.formats import BATCH, quiet
from pappus.export.graph import PolicyGraph
from pappus.types import Array


def write_onnx(program: ExportedProgram, graph: PolicyGraph, path: Path) -> None:
    """One file with all weights; inputs and outputs have the graph's names, and a first dimension `batch`."""
    with quiet():
        made: Any = torch.onnx.export(
            program, dynamo=True, verbose=False, input_names=[note.name for note in graph.inputs],
            output_names=graph.output_names,
        )
    for value in [*made.model.graph.inputs, *made.model.graph.outputs]:
        value.shape[0] = BATCH
    made.save(str(path), external_data=False)


def run_onnx(path: Path) -> Exported:
    """ONNX Runtime on the CPU, in one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(inputs: dict[str, Array]) -> dict[str, Array]:
        return dict(zip(names, session.run(names, inputs), strict=True))

    return run
