"""What the doctor said of a run, as its directory keeps it, and the report of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pappus.errors import UserError
from pappus.telemetry.findings import STALL, Diagnosis, Finding

DOCTOR, CONFIG = "doctor.json", "config.yaml"


def read_doctor(run: Path) -> dict[str, Any]:
    """The content of the file; `UserError` for a run without one."""
    path = run / DOCTOR
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        Diagnosis.from_dict(content)
    except (FileNotFoundError, NotADirectoryError):
        if not (run / CONFIG).is_file():
            raise UserError(f"{str(run)!r} is no run: it has no {CONFIG}; {_instead(run)}") from None
        raise UserError(
            f"run {str(run)!r} has no {DOCTOR}: a run writes it some seconds after its first update; wait for that, or "
            "train anew if it was trained with an earlier version"
        ) from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{str(path)!r} cannot be read ({error!r:.80}); train anew") from None
    return dict(content)


def _instead(folder: Path) -> str:
    """What to give in place of a folder that is no run: a run in it, such as one of a population."""
    first = min(folder.glob(f"*/{CONFIG}"), default=None)
    return "give the run directory" if first is None else f"give one of the runs in it, such as {first.parent}"


def read_diagnosis(run: Path) -> tuple[Diagnosis, bool]:
    """What the doctor said last, and whether it is of the whole run; otherwise it is of the last seconds."""
    content = read_doctor(run)
    return Diagnosis.from_dict(content), bool(content.get("over"))


def report(run: Path) -> list[str]:
    """The whole diagnosis, as lines."""
    diagnosis, over = read_diagnosis(run)
    span = "as a whole" if over else "over the last seconds"
    also = [line for finding in diagnosis.findings[1:] for line in _told(finding)]
    change = diagnosis.change
    advice = [f"  {change.words}"] if change else [f"  nothing: {_why_nothing(diagnosis)}"]
    if change and change.gain is not None:
        advice.append(f"  promises {change.gain:.1f} times the speed of {diagnosis.speed:,.0f} steps/s")
    if change and change.costs:
        advice.append(f"  costs: {change.costs}")
    return [
        f"{run}, {span}: {diagnosis.speed:,.0f} steps/s", "", "what is the matter", *_told(diagnosis.top), "",
        "what to change", *advice, "", *(["also true", *also, ""] if also else []),
        "where the time goes", *(f"  {fact}" for fact in diagnosis.facts),
    ]


def _why_nothing(diagnosis: Diagnosis) -> str:
    if diagnosis.top.what == STALL:
        return "while it stands still, nobody can say what a setting would gain"
    return diagnosis.silence or "no setting that the doctor knows of would make it faster here"


def _told(finding: Finding) -> list[str]:
    return [f"  {finding.sentence}", *(f"    {text}" for text in finding.evidence)]
