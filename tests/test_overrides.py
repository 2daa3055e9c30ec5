from __future__ import annotations

from pappus.overrides import stands_for


class Base:
    def slow(self) -> str:
        return "slow"

    def other(self) -> str:
        return "other"

    def fast(self) -> str:
        return "fast"


class Untouched(Base): ...


class NewSlow(Base):
    def slow(self) -> str:
        return "new"


class NewBoth(NewSlow):
    def fast(self) -> str:
        return "new"


class Mixin:
    def slow(self) -> str:
        return "mixed in"


class MixedIn(Mixin, Base): ...


def test_a_fast_method_stands_for_those_of_its_own_class() -> None:
    assert stands_for(Base, "fast", "slow", "other") and stands_for(Untouched, "fast", "slow", "other")


def test_a_subclass_that_overrides_a_slow_method_has_it_called() -> None:
    assert not stands_for(NewSlow, "fast", "slow") and not stands_for(NewSlow, "fast", "other", "slow")
    assert stands_for(NewSlow, "fast", "other")


def test_a_fast_method_that_is_overridden_too_stands_again() -> None:
    assert stands_for(NewBoth, "fast", "slow", "other")


def test_a_mixin_before_the_class_counts_as_more_derived() -> None:
    assert not stands_for(MixedIn, "fast", "slow")


def test_a_method_that_nobody_defines_stands_for_nothing_and_is_overridden_by_nobody() -> None:
    assert not stands_for(Mixin, "fast", "slow") and stands_for(Base, "fast", "missing")
