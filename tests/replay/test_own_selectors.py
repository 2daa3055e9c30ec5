"""A selector from outside the package, wherever a sampler or a remover can be chosen."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pappus.cli import main
from pappus.errors import UserError
from pappus.replay import ArraySpec, Client, RandomSelector, Selection, Service, Table, find_selector, min_size
from pappus.replay.serve.config_file import load_tables
from pappus.replay.service.checkpoint import load, save
from pappus.replay.tables import table as tables
from pappus.replay.tables.built_in_selectors import BUILT_IN
from pappus.types import Array
from tests.contracts.replay_tools import put

HERE = __name__
NUMBER = {"x": ArraySpec((), "int64")}


class Even(RandomSelector):
    """Draws places with an even number twice as often as others."""

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        weight = 2.0 - self.places % 2
        share = weight / weight.sum()
        chosen = rng.choice(len(share), count, p=share)
        return self.places[chosen], share[chosen]


class Highest(RandomSelector):
    """Nearly always the highest priority, which is to try the limits of distinct draws."""

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        share = np.full(len(self.places), 1e-15)
        best = int(np.argmax(self.priorities[self.places]))
        share[best] = 1.0
        return np.full(count, self.places[best]), np.full(count, share[best])


def incomplete(capacity: int, alpha: float) -> Any:
    return object()


def table(sampler: str = f"{HERE}:Even", remover: str = "fifo", **settings: Any) -> Table:
    return Table("t", sampler, remover, min_size(1), 8, NUMBER, **settings)


def drawn(service: Service, count: int) -> list[int]:
    found: list[int] = Client.of(service).sample("t", count).data["x"].reshape(-1).tolist()
    return found


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_name_is_found_and_makes_a_table(name: str) -> None:
    service = Service([table(name, name)])
    put(Client.of(service), "t", range(20), [float(n) for n in range(20)])
    assert find_selector(name) is BUILT_IN[name] and len(drawn(service, 5)) == 5


def test_a_custom_selector_draws_with_its_probabilities() -> None:
    service = Service([table()])
    put(Client.of(service), "t", range(8))
    counts = np.bincount(drawn(service, 6000), minlength=8)
    assert set(np.round(counts / 500)) == {1.0, 2.0}


def test_distinct_draws_terminate_although_one_item_is_nearly_certain() -> None:
    service = Service([table(f"{HERE}:Highest", max_times_sampled=1)])
    put(Client.of(service), "t", range(8), [float(n) for n in range(8)])
    assert drawn(service, 8) == [7, 6, 5, 4, 3, 2, 1, 0]


def test_a_custom_remover_chooses_the_items_to_remove() -> None:
    service = Service([table("uniform", f"{HERE}:Highest")])
    put(Client.of(service), "t", range(20), [float(n) for n in range(20)])
    assert set(drawn(service, 500)) == {0, 1, 2, 3, 4, 5, 6, 19}


def test_an_entry_point_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("even", f"{HERE}:Even", tables.GROUP)
    monkeypatch.setattr(tables, "entry_points", lambda group: [entry] if group == tables.GROUP else [])
    assert find_selector("even") is Even
    with pytest.raises(UserError, match=r"no selector is called .evem.; did you mean .even."):
        find_selector("evem")
    broken = EntryPoint("gone", f"{HERE}:Gone", tables.GROUP)
    monkeypatch.setattr(tables, "entry_points", lambda group: [broken])
    with pytest.raises(UserError, match=r"selector .* has no 'Gone'"):
        find_selector("gone")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("prioritised", "no selector is called 'prioritised'; did you mean 'prioritized'?; use uniform, prioritized"),
        ("no.such:Selector", "selector 'no.such:Selector': there is no module 'no.such' here"),
        (f"{HERE}:Missing", "has no 'Missing'"), (f"{HERE}:NUMBER", "; name a function or a class"),
        (f"{HERE}:incomplete", "has no random, oldest_first, insert"),
    ],
)
def test_an_illegal_selector_is_refused_in_one_sentence(name: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        Service([table(name)])
    assert sentence in str(caught.value)


def test_a_client_of_a_table_with_a_selector_that_it_does_not_have_imports_nothing() -> None:
    from pappus.replay.tables.table import table_from

    described = table().to_dict() | {"sampler": ["no.such:Selector", 1.0]}
    assert table_from(described).sampler == Selection("no.such:Selector")


def test_a_checkpoint_with_a_custom_selector_resumes_exactly(tmp_path: Path) -> None:
    service = Service([table()], seed=3)
    put(Client.of(service), "t", range(11))
    folder = save(service, tmp_path / "saved")
    again = Service([table()], seed=4)
    load(again, folder)
    assert drawn(again, 50) == drawn(service, 50)


def test_the_file_of_a_served_table_names_a_selector(tmp_path: Path) -> None:
    file = tmp_path / "tables.yaml"
    text = f"""
tables:
  - name: t
    sampler: {{{HERE}:Even: 0.5}}
    remover: {HERE}:Highest
    rate_limiter: {{min_size: 1}}
    max_size: 8
    signature: {{x: {{shape: [], dtype: int64}}}}
"""
    file.write_text(text)
    found = load_tables(file).tables[0]
    assert found.sampler == Selection(f"{HERE}:Even", 0.5) and found.remover == Selection(f"{HERE}:Highest")
    file.write_text(text.replace(":Highest", ":Hihgest"))
    with pytest.raises(UserError, match=r"\(t\): remover: selector .* has no 'Hihgest'"):
        load_tables(file)


TINY = (
    "train dqn --env CartPole-v1 --runtime inline --steps 600 --batch-size 16 --network.hidden-sizes 8 "
    "--topology.replay.warm-up 50 --topology.replay.capacity 200 --run-dir"
)


@pytest.mark.parametrize("sampler", ["examples.own_selector:RankBased", f"{HERE}:Even", "uniform"])
def test_a_run_trains_with_the_sampler_that_it_names(sampler: str, tmp_path: Path) -> None:
    assert main([*TINY.split(), str(tmp_path / "run"), "--topology.replay.sampler", sampler]) == 0


def test_a_run_with_an_unknown_sampler_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY.split(), str(tmp_path / "run"), "--topology.replay.sampler", "uniforn"]) == 2
    assert "no selector is called 'uniforn'; did you mean 'uniform'?" in capsys.readouterr().err


def test_rank_based_draws_depend_on_ranks_only() -> None:
    from examples.own_selector import RankBased

    selector, rng = RankBased(8, 1.0), np.random.default_rng(0)
    selector.insert(np.array([5, 1, 3]), np.array([1.0, 100.0, 10.0]))
    for places, probabilities in (selector.sample(200, rng), selector.sample(200, rng)):
        share = {1: 6 / 11, 3: 3 / 11, 5: 2 / 11}
        assert np.allclose(probabilities, [share[place] for place in places.tolist()])
    selector.delete(np.array([1]))
    places, _ = selector.sample(3000, rng)
    assert np.mean(places == 3) == pytest.approx(2 / 3, abs=0.05)
