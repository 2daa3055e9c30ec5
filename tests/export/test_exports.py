"""Other programs do what our policy does, on 10,000 observations."""

from __future__ import annotations

from pathlib import Path

import pytest

import pappus
from pappus.config import EnvOptions
from pappus.export.check import agreement, steps_of
from pappus.export.formats import run_torch, traced, write_torch
from pappus.export.graph import PolicyGraph
from pappus.export.onnx_files import run_onnx, write_onnx
from tests.export.cases import CASES

HERE = str(Path(pappus.__file__).parent).encode()


@pytest.mark.parametrize("case", CASES)
def test_onnx_runtime_and_torch_export_do_what_our_policy_does(case: str, tmp_path: Path) -> None:
    policy = CASES[case]()
    graph = PolicyGraph(policy)
    program = traced(graph)
    steps = steps_of(policy, graph, "spec:", EnvOptions(), 10_000)
    for name, write, run in (("policy.pt2", write_torch, run_torch), ("policy.onnx", write_onnx, run_onnx)):
        write(program, graph, tmp_path / name)
        exported = run(tmp_path / name)
        found = agreement(exported, steps, "")
        assert found.observations >= 10_000 and found.largest < 1e-5 and found.other_actions == 0, (name, found)
        assert HERE not in (tmp_path / name).read_bytes(), "a path of this machine"
        one = {key: rows[:1] for key, rows in steps[0].inputs.items()}
        assert set(exported(one)) == set(graph.output_names), "a batch of one works, too"
