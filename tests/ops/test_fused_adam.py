from __future__ import annotations

import torch

from pappus.ops.fused_adam import FusedAdam


def test_steps_are_those_of_torch_and_either_continues_the_other() -> None:
    generator = torch.Generator().manual_seed(0)
    pairs = [[torch.nn.Parameter(torch.ones(size)) for size in (50, 30)] for _ in range(2)]
    ours = FusedAdam(pairs[0], 0.01, (0.9, 0.99), 1e-5)
    theirs = torch.optim.Adam(pairs[1], 0.01, betas=(0.9, 0.99), eps=1e-5, fused=True)
    for update in range(12):
        rests = update % 2 == 0
        gradients = [None if rests else torch.randn(50, generator=generator), torch.randn(30, generator=generator)]
        for parameters, optimizer in zip(pairs, (ours, theirs), strict=True):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = None if gradient is None else gradient.clone()
            optimizer.step()  # type: ignore[attr-defined]
        torch.testing.assert_close(pairs[0], pairs[1])
        if update == 5:
            one, other = ours.state_dict(), theirs.state_dict()
            ours.load_state_dict(other)
            theirs.load_state_dict(one)
    assert ours.state_dict()["state"][0]["step"] == 6 and ours.state_dict()["state"][1]["step"] == 12


def test_a_state_that_torch_saved_before_its_first_step_is_a_fresh_one() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    ours = FusedAdam([parameter], 0.1, (0.9, 0.999), 1e-8)
    ours.load_state_dict(torch.optim.Adam([torch.nn.Parameter(torch.ones(3))], 0.1, fused=True).state_dict())
    parameter.grad = torch.ones(3)
    ours.step()
    torch.testing.assert_close(parameter.detach(), torch.full((3,), 0.9))
