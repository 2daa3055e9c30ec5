"""Reference numbers computed by an independent implementation, in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pappus.ops.q_learning import double_q, rescale, taken, unrescale
from pappus.ops.returns import gae, lambda_returns, n_step_returns
from pappus.ops.vtrace import vtrace

GOLDEN: dict[str, list[dict[str, Any]]] = json.loads((Path(__file__).parents[1] / "data" / "math.json").read_text())


def column(x: list[float]) -> Tensor:
    """One sequence as a batch of one, `[T, 1]`."""
    return torch.tensor(x, dtype=torch.float64).unsqueeze(-1)


def inputs(case: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    value, reward, discount = (column(case[key]) for key in ("value", "reward", "discount"))
    return value, reward, discount, torch.ones_like(reward, dtype=torch.bool)


def assert_golden(actual: Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(actual, column(expected), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("case", GOLDEN["vtrace"])
def test_vtrace_matches_reference(case: dict[str, Any]) -> None:
    value, reward, discount, valid = inputs(case)
    clips = {key: case[key] for key in ("rho_clip", "pg_rho_clip", "lam")}
    returns = vtrace(value, reward, discount, column(case["rho"]), valid, **clips)
    assert_golden(returns.target, case["target"])
    assert_golden(returns.pg_advantage, case["pg_advantage"])


@pytest.mark.parametrize("case", GOLDEN["n_step"])
def test_n_step_return_matches_reference(case: dict[str, Any]) -> None:
    assert_golden(n_step_returns(*inputs(case), n=case["n"]), case["target"])


@pytest.mark.parametrize("case", GOLDEN["lambda"])
def test_lambda_return_matches_reference(case: dict[str, Any]) -> None:
    assert_golden(lambda_returns(*inputs(case), lam=case["lam"]), case["target"])


@pytest.mark.parametrize("case", GOLDEN["gae"])
def test_gae_matches_reference(case: dict[str, Any]) -> None:
    assert_golden(gae(*inputs(case), lam=case["lam"]), case["advantage"])


@pytest.mark.parametrize("case", GOLDEN["rescale"])
def test_rescaling_matches_reference(case: dict[str, Any]) -> None:
    assert_golden(rescale(column(case["x"]), case["eps"]), case["h"])
    assert_golden(unrescale(column(case["x"]), case["eps"]), case["h_inverse"])


@pytest.mark.parametrize("case", GOLDEN["double_q"])
def test_double_q_error_matches_reference(case: dict[str, Any]) -> None:
    q, judge, chooser = (column(case[key]).T for key in ("q", "target_q_next", "online_q_next"))
    error = case["reward"] + case["discount"] * double_q(judge, chooser) - taken(q, torch.tensor([case["action"]]))
    assert error.item() == pytest.approx(case["td_error"], rel=1e-6)


@pytest.mark.parametrize("case", GOLDEN["r2d2_n_step"])
def test_rescaled_n_step_error_matches_reference(case: dict[str, Any]) -> None:
    q, later = (torch.tensor(case[key], dtype=torch.float64).unsqueeze(1) for key in ("q", "target_q_next"))
    action, best = (torch.tensor(case[key]).unsqueeze(1) for key in ("action", "argmax_next"))
    value = unrescale(taken(later, best), case["eps"])
    reward, discount = column(case["reward"]), column(case["discount"])
    valid = torch.ones_like(reward, dtype=torch.bool)
    # The reference has no value of the first observation, and no return needs it.
    returns = n_step_returns(torch.cat([value[:1] * torch.nan, value]), reward, discount, valid, n=case["n"])
    assert_golden(rescale(returns, case["eps"]) - taken(q, action), case["td_error"])
