from __future__ import annotations

import numpy as np
import pytest
import torch

from pappus.ops import q_learning, sequence_priorities
from pappus.ops.returns import n_step_returns


@pytest.mark.parametrize("rescaling", [0.0, 1e-3])
@pytest.mark.parametrize("n", [1, 5, 40])
def test_what_actors_compute_is_what_tensors_give(n: int, rescaling: float) -> None:
    rng = np.random.default_rng(n)
    q, value, reward = (rng.normal(0, 3, (20, 6)).astype(np.float32) for _ in range(3))
    discount = np.where(rng.random((20, 6)) < 0.1, 0, 0.997).astype(np.float32)
    valid = rng.random((20, 6)) < 0.9
    valid[:, 0] = False
    error = sequence_priorities.n_step_error(q, value, reward, discount, valid, n=n, rescaling=rescaling)

    values = q_learning.unrescale(torch.from_numpy(value), rescaling)
    values = torch.cat([values, torch.zeros_like(values[:1])])
    numbers, real = [torch.from_numpy(one) for one in (reward, discount)], torch.from_numpy(valid)
    returns = q_learning.rescale(n_step_returns(values, *numbers, real, n=n), rescaling)
    expected = torch.where(real, returns - torch.from_numpy(q), 0.0)
    assert error.dtype == np.float32
    np.testing.assert_allclose(error, expected.numpy(), rtol=2e-5, atol=2e-5)

    priority = sequence_priorities.mixed_priority(error, valid, 0.9)
    np.testing.assert_allclose(priority, q_learning.mixed_priority(torch.from_numpy(error), real, 0.9), rtol=1e-5)
    assert priority[0] == 0 and priority.dtype == np.float32
