from __future__ import annotations

import pytest
import torch

from pappus.networks.cores import GRUCore, LSTMCore
from pappus.networks.modules import Core, NoCore, zeros

T, B, D, H = 7, 3, 5, 6


def make(kind: type[Core]) -> Core:
    torch.manual_seed(0)
    return NoCore(D) if kind is NoCore else kind(D, H)


@pytest.mark.parametrize("kind", [LSTMCore, GRUCore])
class TestRecurrentCores:
    def test_matches_torchs_layer_when_nothing_resets(self, kind: type[Core]) -> None:
        core, x = make(kind), torch.randn(T, B, D)
        y, _ = core(x, torch.zeros(T, B, dtype=torch.bool), zeros(core.state_spec, B))
        torch.testing.assert_close(y, core.layer(x)[0])

    def test_reset_forgets_all_before_it_and_consumes_the_step_itself(self, kind: type[Core]) -> None:
        core, x = make(kind), torch.randn(T, B, D)
        first = torch.zeros(T, B, dtype=torch.bool)
        first[3] = True
        y, state = core(x, first, tuple(torch.randn_like(part) for part in zeros(core.state_spec, B)))
        fresh, fresh_state = core(x[3:], torch.zeros(T - 3, B, dtype=torch.bool), zeros(core.state_spec, B))
        torch.testing.assert_close(y[3:], fresh)
        torch.testing.assert_close(state, fresh_state)

    def test_first_of_one_step_says_that_nothing_resets_later(self, kind: type[Core]) -> None:
        core, x = make(kind), torch.randn(T, B, D)
        first = torch.zeros(T, B, dtype=torch.bool)
        first[0, 1] = True
        begun = tuple(torch.randn_like(part) for part in zeros(core.state_spec, B))
        torch.testing.assert_close(core(x, first[:1], begun), core(x, first, begun))

    def test_reset_of_one_env_leaves_the_others_alone(self, kind: type[Core]) -> None:
        core, x = make(kind), torch.randn(T, B, D)
        first = torch.zeros(T, B, dtype=torch.bool)
        calm, _ = core(x, first, zeros(core.state_spec, B))
        first[2, 1] = first[5, 1] = True
        y, _ = core(x, first, zeros(core.state_spec, B))
        torch.testing.assert_close(y[:, [0, 2]], calm[:, [0, 2]])
        assert not torch.allclose(y[2:, 1], calm[2:, 1])

    def test_gradient_does_not_cross_a_reset(self, kind: type[Core]) -> None:
        core, x = make(kind), torch.randn(T, B, D, requires_grad=True)
        first = torch.zeros(T, B, dtype=torch.bool)
        first[4] = True
        y, _ = core(x, first, zeros(core.state_spec, B))
        y[-1].sum().backward()
        assert x.grad is not None
        assert not x.grad[:4].any() and x.grad[4:].any(-1).all()

    def test_state_stays_float32_in_a_bfloat16_copy(self, kind: type[Core]) -> None:
        core = make(kind).to(torch.bfloat16)
        first = torch.rand(T, B) < 0.3
        _, state = core(torch.randn(T, B, D, dtype=torch.bfloat16), first, zeros(core.state_spec, B))
        assert all(part.dtype == torch.float32 for part in state)

    @pytest.mark.parametrize("resets", [[], [1, 4]])
    def test_runs_and_trains_under_autocast(self, kind: type[Core], resets: list[int]) -> None:
        core, x = make(kind), torch.randn(T, B, D)
        first = torch.zeros(T, B, dtype=torch.bool)
        first[resets] = True
        exact, _ = core(x, first, zeros(core.state_spec, B))
        with torch.autocast("cpu", torch.bfloat16):
            y, state = core(x, first, zeros(core.state_spec, B))
        torch.testing.assert_close(y.float(), exact, rtol=0.05, atol=0.05)
        assert all(part.dtype == torch.float32 for part in state)
        y.sum().backward()
        assert all(parameter.grad is not None for parameter in core.parameters())


@pytest.mark.parametrize("kind", [NoCore, LSTMCore, GRUCore])
def test_initial_state_fits_its_spec(kind: type[Core]) -> None:
    core = make(kind)
    shapes = [tuple(part.shape) for part in zeros(core.state_spec, B)]
    assert shapes == [(B, *spec.shape) for spec in core.state_spec]


def test_no_core_passes_features_through() -> None:
    x = torch.randn(T, B, D)
    y, state = NoCore(D)(x, torch.zeros(T, B, dtype=torch.bool), ())
    assert y is x and state == ()
