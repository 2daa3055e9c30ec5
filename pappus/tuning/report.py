"""What `pappus tune` prints, and the file that it writes."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Collection
from pathlib import Path

from pappus.config import RunConfig
from pappus.errors import RunError
from pappus.machine import this_machine
from pappus.system import System
from pappus.tuning.command import Options, check_out
from pappus.tuning.tuner import Found, Tuner, found_json
from pappus.tuning.wording import file_text, learning, settings_of, table

INTERRUPTED = 130
NOTICEABLE = 0.2
"""Cores."""


def find(
    options: Options, system: System, config: RunConfig, plain: RunConfig, fixed: Collection[str], began: float
) -> tuple[list[str], int]:
    """Tune, and tell of it; what was found, as options of `pappus train`, and the exit code. `plain` is the config
    without what a file or options say."""
    path = Path(options.out or f"{re.sub('[^A-Za-z0-9.@_-]+', '-', f'{system.name}-{config.env}')}-tuned.yaml")
    if options.writes:
        check_out(path)

    def told(text: str) -> None:
        out = sys.stderr if options.as_json else sys.stdout
        print(f"{time.monotonic() - began:5.1f} s  {text}", file=out, flush=True)

    told(f"{system.name} on {config.env}, {this_machine().cores} cores: what does a step cost here?")
    found = Tuner(system, config, plain, fixed, options.allowed, options.seconds, began, told).run()
    if found.choice is None and not found.interrupted:
        raise RunError("none of the settings that were tried could run; the lines above say why")
    written = None
    if found.choice is not None and options.writes:
        setting, written = found.choice.setting, path
        settings = settings_of(setting.applied(found.asked), plain, setting)
        written.write_text(file_text(settings, [*gains(found), *learns(found)]), encoding="utf-8")
    seconds = time.monotonic() - began
    if options.as_json:
        print(json.dumps({
            "system": config.system, "env": config.env, "cores": this_machine().cores, "gpu": this_machine().gpu,
            "seconds": seconds, **found_json(found), "learning": learns(found),
            "file": "" if written is None else str(written),
        }))
    else:
        print("\n".join(_page(found, seconds, written)))
    words = found.choice.setting.words(fixed) if found.choice is not None else []
    return words, INTERRUPTED if found.interrupted else 0


def gains(found: Found) -> list[str]:
    """What the choice gains."""
    if found.choice is None or found.first is None:
        return []
    choice, first = found.choice, found.first
    if not choice.measured:
        return [f"{choice.predicted.rate:,.0f} steps/s with {choice.setting}, as predicted: nothing was tried"]
    if choice.setting == first.setting and sum(bool(trial.measured) for trial in found.trials) < 2:
        return [f"{choice.rate:,.0f} steps/s: only the settings that it started with were tried; give more --seconds"]
    if choice.setting == first.setting:
        return [f"{choice.rate:,.0f} steps/s: the settings that it started with are the fastest"]
    how = "measured" if first.measured else "predicted"
    before = f"{first.rate or first.predicted.rate:,.0f} ({how}) with {first.setting}"
    return [f"{choice.rate:,.0f} steps/s with {choice.setting}", f"{before}: {found.gain:.2f} times as fast"]


def learns(found: Found) -> list[str]:
    """What it changes in learning."""
    if found.choice is None:
        return []
    lag = next((one.lag for one in found.choice.measured if one.lag is not None), None)
    return learning(found.choice.setting.applied(found.reference), found.reference, lag)


def _page(found: Found, seconds: float, written: Path | None) -> list[str]:
    if found.choice is None:
        return ["stopped before anything was tried"]
    lines = ["", *table(found.trials, found.choice), "", "gain", *(f"  {line}" for line in gains(found))]
    lines += ["learning, beside the preset", *(f"  {line}" for line in learns(found))]
    if written is not None:
        lines += [f"config  {written}", f"  use   pappus train --config {written}"]
    if found.others >= NOTICEABLE:
        lines.append(f"others used {found.others:.1f} cores meanwhile: without them the figures would differ")
    stopped = ", stopped before its time" if found.interrupted else ""
    return [*lines, f"tuned in {seconds:.0f} s{stopped}"]
