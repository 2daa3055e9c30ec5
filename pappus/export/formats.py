"""The formats of exported policies: how a graph is traced, written, and run again as another program runs it."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from pappus.errors import RunError
from pappus.export.check import Exported
from pappus.export.graph import PolicyGraph, tensors
from pappus.types import Array

BATCH = "batch"
EXAMPLE = 3
"""Rows of the example that is traced: 0 and 1 are special to torch."""


def traced(graph: PolicyGraph) -> ExportedProgram:
    """The graph as torch.export sees it, for batches of any size."""
    example = graph.example(EXAMPLE)
    batch = Dim(BATCH, min=1)
    shapes = ({name: {0: batch} for name in example},)
    try:
        with quiet(), torch.no_grad():
            program = torch.export.export(graph.eval(), (example,), dynamic_shapes=shapes)
    except Exception as error:  # of a network that is not ours
        raise RunError(f"torch.export cannot trace this network ({type(error).__name__}: {error!s:.300})") from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it names folders of this machine
    return program


def write_torch(program: ExportedProgram, graph: PolicyGraph, path: Path) -> None:
    """A `.pt2` file, which `torch.export.load` reads."""
    with quiet():
        torch.export.save(program, path)


def run_torch(path: Path) -> Exported:
    module: Any = torch.export.load(path).module()

    def run(inputs: dict[str, Array]) -> dict[str, Array]:
        with torch.inference_mode():
            return {name: leaf.numpy() for name, leaf in module(tensors(inputs)).items()}

    return run


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences the exporters' internal messages on stdout, in loggers and as warnings."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "torch.fx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
