"""Checks of everything that arrives over gRPC, and the status that refuses a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import numpy as np

from pappus.errors import WireError
from pappus.transports.codec import Buffer
from pappus.types import Array, Request, leaves_of

LARGEST = 1e15
"""No valid reward or observation is larger, and a loss would overflow."""
MAX_REFUSAL = 1000
"""Characters of a status: gRPC sends it in a header, whose size is limited."""


class Refusal(Exception):
    """Ends one stream with a status."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code, self.text = grpc.StatusCode[code], text[:MAX_REFUSAL]


def understood(decode: Callable[..., Any], data: Buffer, *arguments: Any) -> Any:
    """The decoded message; a `Refusal` if it cannot be decoded."""
    try:
        return decode(data, *arguments)
    except WireError as error:
        raise Refusal("INVALID_ARGUMENT", str(error)) from None


def complaint_about(request: Request) -> str:
    """What is wrong with a request, in words; empty if nothing is."""
    for name, flags in (("first", request.first), ("valid", request.valid)):
        if flags.view(np.uint8).max() > 1:
            return f"{name!r} holds bytes other than 0 and 1"
    for name, numbers in (("reward", request.reward), ("episode_return", request.episode_return)):
        if not sane(numbers):
            return f"{name!r} is not finite, or beyond ±{LARGEST:g}"
    discount = request.discount
    if not (discount.min() >= 0 and discount.max() <= 1):
        return "'discount' lies outside 0 to 1, or is not finite"
    if request.episode_length.min() < 0:
        return "'episode_length' is negative"
    for leaf in leaves_of(request.observation):
        if leaf.dtype.kind == "f" and not sane(leaf):
            return f"an observation is not finite, or beyond ±{LARGEST:g}"
        if leaf.dtype.kind == "b" and leaf.view(np.uint8).max(initial=0) > 1:
            return "a bool observation holds bytes other than 0 and 1"
    return ""


def sane(numbers: Array) -> bool:
    """Whether all of them are finite, and small enough that their squares are."""
    return bool(numbers.max(initial=0) <= LARGEST and numbers.min(initial=0) >= -LARGEST)
