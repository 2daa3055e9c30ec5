"""The meter between readings, with a clock that the test turns; energy and GPUs as files and a library of our own."""

import ctypes
from pathlib import Path
from typing import Any

import pytest

from pappus.config import AlgorithmConfig, CostConfig, RunConfig
from pappus.errors import UserError
from pappus.telemetry.cost import Cost
from pappus.telemetry.energy import Processors
from pappus.telemetry.meter import LOOK_SECONDS, Meter
from pappus.telemetry.nvml import Gpus, find_gpus
from pappus.telemetry.run_stats import RunStats
from pappus.telemetry.spending import Spending, check_measurable, spent_before

NOT_FOUND = 6


class World:
    """Two cores that compute all the time, and memory that comes and goes."""

    def __init__(self) -> None:
        self.now, self.held = 0.0, 100

    def clock(self) -> float:
        return self.now

    def cpu_seconds(self) -> float:
        return 2.0 * self.now

    def memory(self) -> int:
        return self.held


class Library:
    """What NVML answers about GPUs that are busy for half of the time and take 300 W."""

    def __init__(self, world: World, failing: str = "") -> None:
        self.world, self.failing, self.asked = world, failing, list[Any]()
        self.samples: list[tuple[int, int]] = []
        """Times in µs and percents."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: 1 if self.failing and self.failing in name else self._answer(name, *arguments)

    def _give_samples(self, since: Any, kind: Any, count: Any, samples: Any) -> int:
        """Those after `since`, or just how many there is room to be for."""
        found = [sample for sample in self.samples if sample[0] > since.value]
        if not found:
            return NOT_FOUND
        kind._obj.value, count._obj.value = 1, len(found)
        for i, (at, percent) in enumerate(found if samples is not None else []):
            samples[i].time, samples[i].value = at, percent
        return 0

    def _answer(self, name: str, *arguments: Any) -> int:
        if "Handle" in name:
            self.asked.append(arguments[0] if isinstance(arguments[0], bytes) else arguments[0].value)
        elif "Samples" in name:
            return self._give_samples(*arguments[2:])
        elif "Utilization" in name:
            arguments[1]._obj.gpu = 50
        elif "Energy" in name:
            arguments[1]._obj.value = int(300_000 * self.world.now)
        elif "Memory" in name:
            arguments[1]._obj.free = 80 << 30
        return 0


def zone(root: Path, name: str, label: str, energy: int) -> Path:
    folder = root / "sys/class/powercap" / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in (("name", label), ("energy_uj", str(energy)), ("max_energy_range_uj", "1000000000")):
        (folder / file).write_text(text + "\n")
    return folder / "energy_uj"


def run_stats(**cost: dict[str, float]) -> RunStats:
    return RunStats(RunConfig(AlgorithmConfig(), env="ALE/Pong-v5", actors=1, cost=CostConfig(**cost)), {})


def test_between_two_looks_the_present_rate_goes_on():
    world = World()
    meter = Meter(world, clock=world.clock)
    meter.look()
    world.now = 10.0
    meter.look()
    world.now = 10.0 + LOOK_SECONDS / 2
    meter.look()
    assert meter.cost().cpu_seconds == pytest.approx(20.0 + LOOK_SECONDS), "not read, but foreseen"
    assert meter.cost().wall_seconds == world.now


def test_the_peak_of_memory_outlives_it():
    world = World()
    meter = Meter(world, clock=world.clock)
    for world.now, world.held in ((0.0, 100), (10.0, 700), (20.0, 50)):
        meter.look()
    assert meter.cost().peak_memory_bytes == 700


def test_gpus_count_busy_and_held_seconds_and_energy():
    world = World()
    library = Library(world)
    gpus = find_gpus([0, 1], library)
    assert gpus is not None and library.asked == [0, 1] and gpus.free_bytes() == [80 << 30] * 2
    meter = Meter(world, gpus, held=2, clock=world.clock)
    world.now = 10.0
    meter.look()
    cost = meter.cost()
    assert (cost.gpu_seconds, cost.gpu_held_seconds, cost.joules) == (10.0, 20.0, pytest.approx(6000.0))
    assert meter.sources == ["GPUs"]


def test_a_gpu_is_as_busy_as_the_samples_since_the_last_look_say():
    library = Library(World())
    gpus = Gpus(library, [ctypes.c_void_p()])
    library.samples = [(1, 100), (2, 40), (3, 10)]
    assert gpus.busy() == pytest.approx(0.5)
    library.samples += [(4, 90), (5, 70)]
    assert gpus.busy() == pytest.approx(0.8), "of the new ones alone"
    assert gpus.busy() == 0.5 == gpus.utilization(), "nothing new: what it says of the present"


def test_energy_from_before_the_first_reading_counts_at_its_rate():
    world = World()
    world.now = 6.0
    meter = Meter(world, Gpus(Library(world), [ctypes.c_void_p()]), held=1, clock=world.clock, began=2.0)
    world.now = 6.5
    meter.look()
    assert meter.cost().joules == pytest.approx(150.0), "too short a time to tell"
    for world.now in (8.0, 10.0):
        meter.look()
    assert meter.cost().joules == pytest.approx(300.0 * (10.0 - 2.0))


def test_gpus_are_those_that_cuda_sees(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-12ab, 3")
    library = Library(World())
    assert find_gpus([1, 0], library) is not None
    assert library.asked == [3, b"GPU-12ab"]


@pytest.mark.parametrize("failing", ["Init", "Handle"])
def test_gpus_that_the_driver_does_not_know_are_none(failing: str):
    assert find_gpus([0], Library(World(), failing)) is None and find_gpus([], Library(World())) is None


def test_a_gpu_that_says_nothing_is_held_all_the_same():
    world = World()
    meter = Meter(world, Gpus(Library(world, "Get"), [ctypes.c_void_p()]), held=1, clock=world.clock)
    world.now = 4.0
    meter.look()
    cost = meter.cost()
    assert (cost.gpu_seconds, cost.gpu_held_seconds, cost.joules) == (None, 4.0, None)


def test_energy_of_processors_counts_packages_and_memory_over_a_counter_that_begins_anew(tmp_path: Path):
    package = zone(tmp_path, "intel-rapl:0", "package-0", 999_000_000)
    dram = zone(tmp_path, "intel-rapl:0:1", "dram", 0)
    zone(tmp_path, "intel-rapl:0:0", "core", 5)
    subject = Processors(str(tmp_path))
    package.write_text("1000000")
    dram.write_text("500000")
    zone(tmp_path, "intel-rapl:0:0", "core", 900_000_000)
    assert subject.joules() == pytest.approx(2.5)
    assert subject.joules() == pytest.approx(2.5), "nothing since"


def test_energy_that_is_not_readable_is_none(tmp_path: Path):
    assert Processors(str(tmp_path)).joules() is None


def test_a_budget_is_spent_in_all_parts_together():
    world = World()
    stats = run_stats(budget={"core-hours": 0.01}, price={"core-hour": 2.0})
    subject = Spending(stats, Meter(world, clock=world.clock), before=Cost(cpu_seconds=18.0))
    assert subject.notes() == ["the parts before have spent 0.005 of 0.01 core-hours"]
    world.now = 8.9
    subject.look()
    assert subject.exhausted() == ""
    world.now = 9.05  # nothing is read again so soon
    subject.look()
    assert subject.exhausted() == "0.01003 of 0.01 core-hours"


def test_what_comes_after_training_is_told_apart():
    world = World()
    stats = run_stats(budget={"core-hours": 0.01}, price={"core-hour": 2.0})
    subject = Spending(stats, Meter(world, clock=world.clock))
    world.now = 18.0
    subject.training_ended()
    world.now = 27.0
    found = subject.to_dict(steps=500_000, solved=True)
    assert found["budget"] == {"core-hours": {"limit": 0.01, "spent": pytest.approx(0.01)}}
    assert found["after_training"]["cpu_seconds"] == pytest.approx(18.0)
    assert found["money"] == pytest.approx(0.03) and found["to_target"]["money"] == pytest.approx(0.02)
    assert found["per_million_steps"]["money"] == pytest.approx(0.06)
    assert found["per_million_frames"]["money"] == pytest.approx(0.015), "four frames of Atari are a step"


def test_a_budget_of_what_nothing_measures_is_refused():
    for cost, word in (
        ({"budget": {"joules": 5.0}}, "energy is not readable here"), ({"budget": {"gpu-hours": 1.0}}, "holds no GPU"),
        ({"budget": {"money": 1.0}, "price": {"kwh": 1.0}}, "leave kwh out"),
    ):
        config = RunConfig(AlgorithmConfig(), actors=1, device="cpu", cost=CostConfig(**cost))
        with pytest.raises(UserError, match=word):
            check_measurable(config, Meter(World()))


def test_what_was_spent_after_the_last_checkpoint_counts_when_a_run_goes_on(tmp_path: Path):
    metadata = {"wall_seconds": 9.0, "cost": {"cpu_seconds": 5.0, "peak_memory_bytes": 7}}
    assert spent_before(tmp_path, metadata).cpu_seconds == 5.0
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "cost/cpu_seconds": 8.5, "cost/bytes_moved": 4.0}\n')
    found = spent_before(tmp_path, metadata)
    assert (found.cpu_seconds, found.bytes_moved, found.peak_memory_bytes, found.wall_seconds) == (8.5, 4, 7, 9.0)
    (tmp_path / "summary.json").write_text('{"cost": {"cpu_seconds": 9.5}}')
    assert spent_before(tmp_path, metadata).cpu_seconds == 9.5
    assert spent_before(tmp_path, {"wall_seconds": 3.0, "cost": "much"}).cpu_seconds == 9.5
