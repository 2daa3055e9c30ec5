"""The state of a run, from the reports of all roles: what the console, the curves and the summary show."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Literal, TypeAlias, get_args

from pappus.config import RunConfig
from pappus.kinds import RoleKind
from pappus.telemetry.doctor import Doctor, OwnGpu, own_seconds
from pappus.telemetry.findings import Diagnosis
from pappus.telemetry.kept import Kept
from pappus.telemetry.machine_facts import MachineWatch
from pappus.telemetry.metrics import Report
from pappus.telemetry.processes import resident_bytes, usable_cores
from pappus.telemetry.role_stats import Event, RoleStats
from pappus.telemetry.role_view import RoleView
from pappus.telemetry.window import ENV, Totals, Window, full_name, window_scalars

RECENT_EPISODES = 100
MAX_EVENTS = 200
MANY = 64
"""Roles of a kind that have a curve each."""
LOSSES = "losses/"
BYTES = "_bytes"
"""Suffix of the counts that say how much went through an edge."""
Fault: TypeAlias = Literal["env_crashes", "hangs", "crashes"]
"""How a process came to its end: in an env, because it hung, or in any other way."""
KEPT_SECONDS = 0.9
"""How long what all roles did lately stays as it is: curves, live view and page look about once a second."""
NO_EPISODE = "no episode finished yet"


class RunStats:
    """Totals, rates and shares of a run. `kinds` are those of its roles; rates cover the last `window` seconds."""

    def __init__(
        self, config: RunConfig, kinds: Mapping[str, RoleKind], clock: Callable[[], float] = time.monotonic,
        wall_time: Callable[[], float] = time.time, window: float = 5.0, cores: int | None = None,
        usual: RunConfig | None = None, machine: MachineWatch | None = None, one_by_one: bool = False,
    ) -> None:
        """`usual` is the config that the preset alone would give; `one_by_one` says that threads can step the envs."""
        self.config = config
        self.env_steps = 0
        """Steps trained on, as counted by the roles that train."""
        self.updates = 0
        self.episodes = 0
        """Training episodes finished."""
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self.restarts = 0
        self.stall = ""
        """Who keeps the run from moving, while it does not; else empty."""
        self.stalled_seconds = 0.0
        """How long stalls that are over have lasted, together."""
        self.storage = ""
        """What cannot be written, and what was lost of it; empty while all is well."""
        self._last_speed: float | None = None
        """Steps per second when the training ended."""
        self.own: dict[str, float] = {}
        """What callbacks have logged, by full name."""
        self.cost: dict[str, float] = {}
        """What the run has cost so far, by full name (`telemetry.spending`)."""
        self.limits_used: dict[str, float] = {}
        """Of limits of time and budget: the share that is used up, by name."""
        self.limits_seconds = 0.0
        """In how many seconds that was."""
        self.cores = cores or usable_cores()
        gpu_busy, own = OwnGpu(config.device).busy, own_seconds(config)
        machine = machine or MachineWatch(self.cores, gpu_busy=gpu_busy, own=own)
        self._doctor = Doctor(config, usual, machine, one_by_one)
        self._kinds, self._clock, self._wall_time, self._window = kinds, clock, wall_time, window
        self._roles: dict[str, RoleStats] = {}
        self._elsewhere: dict[tuple[str, int | None], tuple[int, float]] = {}
        """What processes on other machines have said of themselves, also those that have ended since."""
        self._counts: Counter[str] = Counter()
        self._faults: dict[str, Counter[str]] = {what: Counter() for what in get_args(Fault)}
        self._views: Kept[list[RoleView]] = Kept(clock, KEPT_SECONDS)
        self._diagnosis: Kept[Diagnosis] = Kept(clock, KEPT_SECONDS)
        self._recent: deque[list[float]] = deque(maxlen=RECENT_EPISODES)
        self._new_events: deque[Event] = deque(maxlen=MAX_EVENTS)

    def kind(self, role: str) -> RoleKind:
        return self._kinds.get(role) or RoleKind(role)

    def roles(self, which: Callable[[RoleKind], bool]) -> list[str]:
        return [role for role, kind in self._kinds.items() if which(kind)]

    def resume(self, env_steps: int, updates: int) -> None:
        self.env_steps, self.updates = env_steps, updates

    def process(self, role: str, pid: int, node: str = "") -> None:
        """The process that `role` runs in, and the node of a cluster; another one than before is a restart."""
        known = self._role(role)
        if known.pid is not None and (known.pid, known.node) != (pid, node):
            known.restarts += 1
            self.restarts += 1
        known.pid, known.node, known.heard_at = pid, node, self._clock()

    def failed(self, role: str, what: Fault) -> None:
        """The process of a role came to an end that was not asked for."""
        self._faults[what][self.kind(role).name] += 1

    def faults(self) -> dict[str, dict[str, int]]:
        """Restarts, and what made them necessary, each by kind of role; kinds without any are absent."""
        restarts: Counter[str] = Counter()
        for role in self._roles.values():
            restarts[role.kind.name] += role.restarts
        return {"restarts": dict(+restarts), **{what: dict(kinds) for what, kinds in self._faults.items()}}

    def measured(self, role: str, memory: int, cpu: float) -> None:
        """What the process of a role on another machine says of itself: bytes it holds, seconds it computed."""
        known = self._role(role)
        known.measured = memory, cpu
        most, _ = self._elsewhere.get((known.node, known.pid), (0, 0.0))
        self._elsewhere[known.node, known.pid] = max(most, memory), cpu

    def elsewhere(self) -> list[tuple[int, float]]:
        """The most bytes that each process on another machine held, 0 of those that were replaced, and its seconds."""
        alive = {(role.node, role.pid) for role in self._roles.values()}
        return [(memory * (who in alive), cpu) for who, (memory, cpu) in self._elsewhere.items()]

    def add(self, report: Report) -> None:
        role, counts = self._role(report["role"]), report["counts"]
        if role.kind.trains and report["start"] is not None:
            self._doctor.begin()
        role.heard_at = self._clock()
        role.add(report)
        if role.kind.trains:
            self.env_steps += int(counts.get("env_steps", 0))
            self.updates += int(counts.get("updates", 0))
        if not role.kind.evaluates:
            for name, value in counts.items():
                self._counts[name.rpartition("/")[2]] += int(value)
            self.episodes += int(counts.get("episodes", 0))
            self._recent.extend(report["episodes"])
        for text in report["events"]:
            self._remember(Event(report["time"], report["role"], text))

    def event(self, text: str, role: str = "") -> None:
        self._remember(Event(self._wall_time(), role, text))

    def new_events(self) -> list[Event]:
        """Events since the last call, each exactly once."""
        events, self._new_events = list(self._new_events), deque(maxlen=MAX_EVENTS)
        return events

    @property
    def progress(self) -> float:
        """The largest share that is used up of the steps asked for and of other limits, at most 1."""
        return min(1.0, self._shares_used()[self.nearest_limit])

    @property
    def nearest_limit(self) -> str:
        """What that is a share of: `steps`, `seconds`, or a budget such as `money`."""
        shares = self._shares_used()
        return max(shares, key=lambda name: shares[name])

    def _shares_used(self) -> dict[str, float]:
        return {"steps": self.env_steps / max(1, self.config.steps), **self.limits_used}

    @property
    def seconds_left(self) -> float | None:
        """Until the first limit is reached, as fast as until now; None while that is not known, and after training."""
        if self.trained or self.progress >= 1:
            return None
        rate = self.steps_per_second
        left = [(self.config.steps - self.env_steps) / rate] if rate else []
        left += [self.limits_seconds * (1 / share - 1) for share in self.limits_used.values() if share > 0]
        return min(left, default=None)

    @property
    def episodic_return(self) -> float | None:
        """Mean over the last 100 training episodes, None before the first ends."""
        return fmean(episode[0] for episode in self._recent) if self._recent else None

    @property
    def episodic_length(self) -> float | None:
        """As `episodic_return`."""
        return fmean(episode[1] for episode in self._recent) if self._recent else None

    @property
    def plays(self) -> bool:
        """Whether episodes are played to learn from; otherwise all is data, and a step is an update."""
        return self.config.topology.uses_data != "only"

    @property
    def eval_return(self) -> float | None:
        """Mean return of the last greedy evaluation, None before the first."""
        return self.gauges().get("eval/episodic_return")

    @property
    def steps_per_second(self) -> float:
        """Lately; once the training is over, at its end."""
        return self.rate("env_steps") if self._last_speed is None else self._last_speed

    @property
    def updates_per_second(self) -> float:
        return self.rate("updates")

    def rate(self, count: str, whole_run: bool = False) -> float:
        """What all who train count per second, lately or in the whole run."""
        return sum(totals.rate(count) for totals in self._training(whole_run))

    @property
    def policy_lag(self) -> tuple[float, float] | None:
        """Mean and maximum of the versions between acting and learning, None while unknown."""
        return self.policy_lag_of()

    def policy_lag_of(self, whole_run: bool = False) -> tuple[float, float] | None:
        """The same, lately or in the whole run."""
        scalars = window_scalars({"learner": self._training(whole_run)})
        mean = scalars.get("learner/policy_lag")
        return None if mean is None else (mean, scalars.get("learner/policy_lag_max", mean))

    def lags(self, whole_run: bool = False) -> dict[str, float]:
        """Updates by bucket of their policy lag (`metrics.lag_bucket`)."""
        together = Totals()
        for totals in self._training(whole_run):
            together.add(totals)
        return together.lags

    @property
    def queue_depth(self) -> float | None:
        """Unrolls that are ready for a learner, None while unknown."""
        return self.gauges().get("queue/depth")

    def limits(self, whole_run: bool = False) -> dict[str, float]:
        """Steps per second that each kind of role could do if it never waited, lately or in the whole run."""
        limits = {
            kind.name: sum(one.counts.get("env_steps", 0.0) / one.busy for one in windows if one.busy)
            for kind, windows in self.windows(whole_run).items()
        }
        return {kind: limit for kind, limit in limits.items() if limit}

    def cast(self) -> str:
        """`actor ×2, learner, evaluator`: the roles of the program, by kind."""
        kinds = Counter(kind.name for kind in self._kinds.values())
        return ", ".join(f"{kind} ×{count}" if count > 1 else kind for kind, count in kinds.items())

    def losses(self) -> dict[str, float]:
        """What the roles that train minimise, and what belongs to it, by the name below `losses/`; lately."""
        scalars = window_scalars({"": self._training()})
        return {name.removeprefix(LOSSES): value for name, value in scalars.items() if name.startswith(LOSSES)}

    def measured_here(self) -> dict[str, float]:
        """What this run measures of its own: what its envs give, then what its callbacks log."""
        windows = window_scalars({kind.name: members for kind, members in self.windows().items()})
        return {name: value for name, value in windows.items() if name.startswith(ENV)} | self.own

    def count(self, name: str) -> int | None:
        """What all roles that do not evaluate have counted under a name, None if nothing ever was."""
        return self._counts.get(name)

    def bytes_moved(self) -> dict[str, int]:
        """What went through each kind of edge so far, without the share of roles that evaluate."""
        return {name.removesuffix(BYTES): count for name, count in self._counts.items() if name.endswith(BYTES)}

    def byte_rates(self, whole_run: bool = False) -> dict[str, float]:
        """Bytes per second that each kind of role gave to each kind of edge, by the name of its curve."""
        windows = {kind.name: members for kind, members in self.windows(whole_run).items()}
        return {name: rate for name, rate in window_scalars(windows).items() if name.endswith(f"{BYTES}_per_second")}

    def windows(self, whole_run: bool = False) -> dict[RoleKind, list[Totals]]:
        """What the roles of every kind did, lately or in the whole run; kinds in the order of the program."""
        windows: dict[RoleKind, list[Totals]] = {kind: [] for kind in self._kinds.values()}
        for role in self._roles.values():
            windows.setdefault(role.kind, []).append(role.run if whole_run else role.window.totals())
        return {kind: members for kind, members in windows.items() if members}

    def _training(self, whole_run: bool = False) -> list[Totals]:
        """What the roles that train did."""
        roles = [role for role in self._roles.values() if role.kind.trains]
        return [role.run if whole_run else role.window.totals() for role in roles]

    def gauges(self) -> dict[str, float]:
        """Newest gauges by full name, averaged over the roles that set them."""
        values: dict[str, list[float]] = {}
        for role in self._roles.values():
            for gauge, value in role.gauges.items():
                values.setdefault(full_name(role.kind.name, gauge), []).append(value)
        return {gauge: fmean(several) for gauge, several in values.items()}

    def views(self, whole_run: bool = False) -> list[RoleView]:
        """What every role did (lately, up to a second ago, or over the whole run), in the order in which they appeared.
        Shares of a run are of its whole length: a reader of data is done long before the learner is."""
        return self._new_views(whole_run=True) if whole_run else self._views.get(self._new_views)

    def _new_views(self, whole_run: bool = False) -> list[RoleView]:
        memory = self._resident()
        lengths = [role.run.seconds for role in self._roles.values() if not role.kind.background]
        longest = max(lengths, default=0.0) if whole_run else 0.0
        return [self._view(name, role, longest, memory) for name, role in self._roles.items()]

    def states(self) -> str:
        """What every role does, those of a kind that do the same together: `actor ×3 busy; learner waits for …`."""
        doing = Counter((view.kind.name, view.state) for view in self.views())
        return "; ".join(f"{kind}{f' ×{count}' * (count > 1)} {state}" for (kind, state), count in doing.items())

    def places(self, whole_run: bool = False) -> dict[str, tuple[int | None, float]]:
        """The process of every role, None while unknown, and the env steps that it makes or learns from per second."""
        totals = {name: role.run if whole_run else role.window.totals() for name, role in self._roles.items()}
        return {name: (role.pid, totals[name].rate("env_steps")) for name, role in self._roles.items()}

    def diagnosis(self, whole_run: bool = False) -> Diagnosis:
        """What is the matter with the run, lately or as a whole; once the training is over, with all of that."""
        if self._doctor.final is not None:
            return self._doctor.final
        found = self._new_diagnosis(whole_run=True) if whole_run else self._diagnosis.get(self._new_diagnosis)
        return found.stalled(self.stall) if self.stall else found

    def _new_diagnosis(self, whole_run: bool = False) -> Diagnosis:
        updates = sum(totals.counts.get("updates", 0.0) for totals in self._training(whole_run=True))
        return self._doctor.diagnosis(self.views(whole_run), self._training(whole_run), whole_run, updates)

    @property
    def trained(self) -> bool:
        """Whether the training is over."""
        return self._doctor.final is not None

    def training_ended(self) -> None:
        """What comes now is evaluation: it does not belong to the diagnosis of the whole run."""
        self._doctor.final = self.diagnosis(whole_run=True)
        self._last_speed = self.rate("env_steps")

    def verdict(self, whole_run: bool = False) -> str:
        """The diagnosis in one sentence."""
        return self.diagnosis(whole_run).text

    def scalars(self) -> dict[str, float]:
        """Everything worth a curve, by CleanRL's names; memory is in MiB. What is not known (yet) is absent."""
        known = {
            "charts/episodic_return": self.episodic_return, "charts/episodic_length": self.episodic_length,
        }
        if self._training():
            known |= {"charts/SPS": self.steps_per_second, "charts/updates": float(self.updates)}
        known |= window_scalars({kind.name: members for kind, members in self.windows().items()}) | self.gauges()
        known |= {f"{kind}/{what}": float(n) for what, kinds in self.faults().items() for kind, n in kinds.items()}
        known |= {"charts/stalled_seconds": self.stalled_seconds} if self.stalled_seconds else {}
        change = self.diagnosis().change
        known |= self._memory() | self.cost | {"doctor/promised_gain": change.gain if change else None} | self.own
        return {name: value for name, value in known.items() if value is not None}

    def _memory(self) -> dict[str, float]:
        """Resident MiB of every role's process; of kinds with many members, the mean."""
        members, found = Counter(self._kinds.values()), dict[str, list[float]]()
        for view in self.views():
            if view.memory is not None:
                one = view.kind.name if members[view.kind] > MANY else view.role
                found.setdefault(f"memory/{one}", []).append(view.memory / 2**20)
        return {name: fmean(sizes) for name, sizes in found.items()}

    def _resident(self) -> dict[int, int | None]:
        """Bytes that every process of the run here holds."""
        return {pid: resident_bytes(pid) for pid in {role.pid for role in self._roles.values()} if pid is not None}

    def _view(self, name: str, role: RoleStats, run_seconds: float, memory: Mapping[int, int | None]) -> RoleView:
        totals = role.run if run_seconds else role.window.totals()
        silent = 0.0 if run_seconds else self._clock() - role.heard_at
        resident = role.measured[0] if role.measured else None if role.pid is None else memory.get(role.pid)
        seconds = max(run_seconds, totals.seconds) or 1.0  # an evaluator goes on when the training is over
        return role.view(name, totals, seconds, silent, resident)

    def _role(self, name: str) -> RoleStats:
        if name not in self._roles:
            self._roles[name] = RoleStats(self.kind(name), Window(self._window, self._clock), self._clock())
        return self._roles[name]

    def _remember(self, event: Event) -> None:
        self.events.append(event)
        self._new_events.append(event)
