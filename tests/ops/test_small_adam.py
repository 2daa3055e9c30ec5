"""Adam in NumPy takes torch's steps and keeps torch's books."""

from __future__ import annotations

import torch

from pappus.ops.numpy_ops import SmallAdam


def test_its_steps_are_those_of_torch_also_after_a_checkpoint_has_changed_hands() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(50, generator=generator)
    parameters = [torch.nn.Parameter(start.clone()) for _ in range(2)]
    small = SmallAdam(parameters[0], 0.01, (0.9, 0.99), 1e-5)
    theirs = torch.optim.Adam([parameters[1]], 0.01, betas=(0.9, 0.99), eps=1e-5, fused=True)
    optimizers = [small, theirs]
    for update in range(20):
        gradient = torch.randn(50, generator=generator)
        for parameter, optimizer in zip(parameters, optimizers, strict=True):
            parameter.grad = gradient.clone()
            optimizer.step()
        torch.testing.assert_close(parameters[0], parameters[1], rtol=1e-5, atol=1e-6)
        if update == 9:
            one, other = (optimizer.state_dict() for optimizer in optimizers)
            small.load_state_dict(other)
            theirs.load_state_dict(one)
    one, other = (optimizer.state_dict()["state"][0] for optimizer in optimizers)
    assert one["step"] == 20
    torch.testing.assert_close(one["exp_avg_sq"], other["exp_avg_sq"], rtol=1e-5, atol=1e-7)


def test_a_state_that_torch_saved_before_its_first_step_is_a_fresh_one() -> None:
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    fresh = torch.optim.Adam([parameters[0]], 0.1, fused=True).state_dict()
    small = SmallAdam(parameters[1], 0.1, (0.9, 0.999), 1e-8)
    small.load_state_dict(fresh)
    parameters[1].grad = torch.ones(3)
    small.step()
    torch.testing.assert_close(parameters[1].detach(), torch.full((3,), 0.9))
