"""What a diagnosis finds: facts with their evidence, and at most one change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

STALL, SILENT = "stall", "silent role"
"""Names of findings: nothing moves, and one role says nothing."""
WORTH = 1.25
"""A change that promises less is not worth a user's time."""


@dataclass(frozen=True)
class Change:
    """What to change."""

    options: tuple[tuple[str, str], ...]
    """Options of `pappus train` with their values, without dashes; in capitals: variables of the environment."""
    gain: float | None = None
    """How many times the present env steps per second it promises; None where it is no matter of speed."""
    costs: str = ""
    """What it costs elsewhere: in learning, in memory."""

    @property
    def words(self) -> str:
        """`--actors 8`, as one types it."""
        return " ".join(f"{name}={value}" if name.isupper() else f"--{name} {value}" for name, value in self.options)

    @property
    def settings(self) -> dict[str, str]:
        """By the names that Python takes."""
        return {name.replace("-", "_"): value for name, value in self.options if not name.isupper()}

    def __str__(self) -> str:
        gain = "" if self.gain is None else f" promises {self.gain:.1f} times the speed"
        return f"{self.words}{gain}" + (f" ({self.costs})" if self.costs else "")


@dataclass(frozen=True)
class Finding:
    """One thing that a rule found."""

    what: str
    """Its name: `sleeping env`, `slow learner` …"""
    sentence: str
    """What is the matter, in a clause."""
    evidence: tuple[str, ...]
    """The figures that show it, the strongest first."""
    change: Change | None = None
    urgent: bool = False
    """It ends the run if nothing is done: it is told before all others."""

    @property
    def text(self) -> str:
        """`the envs sleep: actor-0 sleeps 97 % of its time in them; --actors 8 promises 6.4 times the speed`."""
        said = f"{self.sentence}: {self.evidence[0]}" if self.evidence else self.sentence
        return f"{said}; {self.change}" if self.change else said

    @property
    def worth(self) -> bool:
        """Whether its change is worth a try."""
        return self.change is not None and (self.change.gain is None or self.change.gain >= WORTH)


@dataclass(frozen=True)
class Diagnosis:
    """What is the matter with a run; `findings` begins with what matters most."""

    findings: tuple[Finding, ...]
    facts: tuple[str, ...] = ()
    """What every role and the machine did, a line for each."""
    speed: float = 0.0
    """Env steps trained on per second."""
    silence: str = ""
    """Why no change is proposed, where that is not the config."""

    @property
    def top(self) -> Finding:
        return self.findings[0]

    @property
    def change(self) -> Change | None:
        """The one thing to change; None where nothing helps."""
        return self.top.change

    @property
    def text(self) -> str:
        """The verdict in one sentence."""
        return self.top.text

    @property
    def evidence(self) -> tuple[str, ...]:
        """What the verdict rests on."""
        return self.top.evidence

    def stalled(self, sentence: str) -> Diagnosis:
        """With a stall, which matters more than all shares of time, and says who is silent; what else was found is true
        of the time before."""
        others = (replace(finding, change=None) for finding in self.findings if finding.what != SILENT)
        return replace(self, findings=(Finding(STALL, sentence, (), urgent=True), *others))

    def to_dict(self) -> dict[str, Any]:
        return {"text": self.text, **asdict(self)}

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> Diagnosis:
        """What `to_dict` gave."""
        findings = [_finding(one) for one in content["findings"]]
        return Diagnosis(tuple(findings), tuple(content["facts"]), float(content["speed"]), content.get("silence", ""))


def _finding(content: Mapping[str, Any]) -> Finding:
    change = content["change"]
    if change is not None:
        options = tuple((str(name), str(value)) for name, value in change["options"])
        change = Change(options, change["gain"], change["costs"])
    return Finding(content["what"], content["sentence"], tuple(content["evidence"]), change, content["urgent"])
