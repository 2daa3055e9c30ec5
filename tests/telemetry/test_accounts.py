"""The account of a run: rows outlive processes, and every step is somewhere."""

from __future__ import annotations

import numpy as np

from pappus.telemetry.accounts import DROPPED, LOST, RECEIVED, STORED, TRAINED, Ledger


def ledger(*roles: str) -> Ledger:
    return Ledger({role: i for i, role in enumerate(roles)}, np.zeros(Ledger.footprint(len(roles)), np.uint8))


def test_a_run_that_trained_on_everything_balances() -> None:
    made = ledger("actor-0", "learner")
    actor, learner = made.account("actor-0"), made.account("learner")
    actor.words[RECEIVED] += 10
    learner.words[TRAINED] += 10
    actor.close()
    learner.close()
    balance = made.balance()
    assert balance.balanced and balance.trained == balance.received == 10 and balance.in_flight == 0


def test_a_step_that_nobody_counted_is_found() -> None:
    made = ledger("actor-0", "learner")
    made.account("actor-0").words[RECEIVED] += 10
    made.account("learner").words[TRAINED] += 9
    for role in ("actor-0", "learner"):
        made.account(role).close()
    assert not made.balance().balanced and made.balance().in_flight == 1


def test_a_step_that_was_counted_twice_is_found() -> None:
    made = ledger("actor-0", "learner")
    made.account("actor-0").words[RECEIVED] += 10
    made.account("learner").words[TRAINED] += 11
    assert not made.balance().balanced


def test_what_a_predecessor_held_is_lost_with_it() -> None:
    made = ledger("actor-0", "learner")
    actor = made.account("actor-0")
    actor.words[RECEIVED] += 10
    successor = made.account("actor-0")
    successor.take_over(handed_on=7)
    assert successor.words[LOST] == 3
    successor.words[RECEIVED] += 2
    successor.take_over(handed_on=8)
    assert successor.words[LOST] == 4, "each death counts what its own process held"


def test_what_is_stored_or_dropped_is_not_held() -> None:
    row = ledger("bundle-0").account("bundle-0")
    row.words[RECEIVED], row.words[STORED], row.words[DROPPED] = 10, 6, 1
    assert row.held() == 3


def test_what_a_producer_held_that_died_without_a_successor_is_lost() -> None:
    made = ledger("actor-0", "learner")
    made.account("actor-0").words[RECEIVED] += 10
    made.account("learner").words[TRAINED] += 8
    made.account("learner").close()
    balance = made.balance()
    assert balance.balanced and (balance.lost, balance.in_flight) == (2, 0)


def test_what_a_learner_that_died_did_not_take_is_in_flight() -> None:
    made = ledger("actor-0", "learner")
    made.account("actor-0").words[RECEIVED] += 10
    made.account("actor-0").close()
    made.account("learner").words[TRAINED] += 8
    balance = made.balance()
    assert balance.balanced and (balance.lost, balance.in_flight) == (0, 2)


def test_a_resumed_part_begins_with_what_was_in_flight() -> None:
    made = ledger("actor-0", "learner")
    made.account("actor-0").words[RECEIVED] += 10
    made.account("learner").words[TRAINED] += 8
    made.carry_over()
    made.account("learner").words[TRAINED] += 2
    for role in ("actor-0", "learner"):
        made.account(role).close()
    balance = made.balance()
    assert balance.balanced and balance.received == balance.trained == 2
