from __future__ import annotations

import torch

from pappus.networks.frame_stack import FrameStack
from pappus.types import ArraySpec

K = 3


def counted(length: int) -> torch.Tensor:
    """Frames 1, 2, 3 … of one env, `[T, 1, 1]`."""
    return torch.arange(1, length + 1, dtype=torch.uint8).view(length, 1, 1)


def run(
    frames: torch.Tensor, resets: list[int], state: torch.Tensor | None = None
) -> tuple[list[list[int]], torch.Tensor]:
    """The stacks `[T, K]` of one env's frames, and the state after them."""
    stack = FrameStack(K, ArraySpec((1,), "uint8"))
    first = torch.zeros(frames.shape[:2], dtype=torch.bool)
    first[resets] = True
    past = torch.zeros(1, K - 1, 1, dtype=torch.uint8) if state is None else state
    stacks, state = stack(frames, first, past)
    return stacks.squeeze(-1).squeeze(1).tolist(), state


def test_newest_frame_comes_last() -> None:
    stacks, _ = run(counted(4), [0])
    assert stacks == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]


def test_frames_before_an_episodes_first_are_zeros() -> None:
    stacks, _ = run(counted(5), [0, 3])
    assert stacks == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [0, 0, 4], [0, 4, 5]]


def test_first_of_one_step_says_that_no_episode_begins_later() -> None:
    stack, past = FrameStack(K, ArraySpec((1,), "uint8")), torch.full((1, K - 1, 1), 9, dtype=torch.uint8)
    for begins in (True, False):
        first = torch.zeros(4, 1, dtype=torch.bool)
        first[0] = begins
        assert torch.equal(stack(counted(4), first[:1], past)[0], stack(counted(4), first, past)[0])


def test_state_continues_the_stream() -> None:
    whole, end = run(counted(6), [0, 2])
    head, state = run(counted(6)[:3], [0, 2])
    tail, last = run(counted(6)[3:], [], state)
    assert head + tail == whole
    assert torch.equal(end, last)


def test_reset_at_the_start_forgets_the_state() -> None:
    stacks, _ = run(counted(2), [0], torch.full((1, K - 1, 1), 9, dtype=torch.uint8))
    assert stacks == [[0, 0, 1], [0, 1, 2]]


def test_one_env_resets_alone() -> None:
    frames = torch.ones(4, 2, 5, 5, dtype=torch.uint8)
    first = torch.zeros(4, 2, dtype=torch.bool)
    first[2, 1] = True
    stack = FrameStack(K, ArraySpec((5, 5), "uint8"))
    stacks, _ = stack(frames, first, torch.ones(2, K - 1, 5, 5, dtype=torch.uint8))
    assert bool((stacks[:, 0] == 1).all())
    assert stacks[2, 1].amax((-1, -2)).tolist() == [0, 0, 1]


def test_every_leaf_of_a_nest_is_stacked_in_its_own_dtype() -> None:
    spec = {"image": ArraySpec((4, 4), "uint8"), "kind": ArraySpec((), "int64", (5,))}
    stack = FrameStack(K, spec)
    frames = {"image": torch.ones(2, 3, 4, 4, dtype=torch.uint8), "kind": torch.full((2, 3), 4)}
    state = {"image": torch.zeros(3, 2, 4, 4, dtype=torch.uint8), "kind": torch.zeros(3, 2, dtype=torch.int64)}
    stacks, new_state = stack(frames, torch.zeros(2, 3, dtype=torch.bool), state)
    assert stacks["image"].shape == (2, 3, K, 4, 4) and stacks["image"].dtype == torch.uint8
    assert stacks["kind"][1, 0].tolist() == [0, 4, 4]
    assert new_state["kind"].shape == (3, 2) and new_state["kind"].dtype == torch.int64
    assert stack.output_spec["kind"].num_values == (5, 5, 5)
