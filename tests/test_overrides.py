from __future__ import annotations

from pappus.overrides import stands_for


class Base:
    def slow(self) -> int:
        return 1

    def helper(self) -> int:
        return 1

    def fast(self) -> int:
        return 1


class Plain(Base):
    pass


class OwnSlow(Base):
    def slow(self) -> int:
        return 2


class OwnHelper(Plain):
    def helper(self) -> int:
        return 2


class OwnBoth(OwnSlow):
    def fast(self) -> int:
        return 2


class Mixin:
    def slow(self) -> int:
        return 3


class Mixed(Mixin, Base):
    pass


def test_a_fast_method_stands_for_the_slow_ones_beside_it() -> None:
    assert stands_for(Base, "fast", "slow", "helper") and stands_for(Plain, "fast", "slow", "helper")


def test_it_does_not_stand_for_one_that_was_overridden_without_it() -> None:
    assert not stands_for(OwnSlow, "fast", "slow") and not stands_for(OwnHelper, "fast", "slow", "helper")
    assert not stands_for(Mixed, "fast", "slow"), "a mixin overrides, too"
    assert stands_for(OwnHelper, "fast", "slow"), "only what is named counts"


def test_who_overrides_both_has_both() -> None:
    assert stands_for(OwnBoth, "fast", "slow", "helper")


def test_without_a_fast_method_there_is_nothing_to_take() -> None:
    assert not stands_for(Mixin, "fast", "slow")
