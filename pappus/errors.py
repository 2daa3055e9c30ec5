"""What can go wrong, by who must act: the user (`UserError`), or whoever reads the traceback (`RunError`)."""

from __future__ import annotations

from pathlib import Path

INCOMPLETE = 3
"""Exit code of a command that went its way but lost metrics, logs or its last checkpoint to failing storage, and of a
run that --on-storage-failure stop ended."""


class PappusError(Exception):
    """Base of every error that Pappus raises on purpose."""


class UserError(PappusError):
    """Input that cannot work. The message is one sentence: thing, value, rule, remedy. Exit code 2."""


class RunError(PappusError):
    """A run that could not go on: a dead role, a deadlock, a broken file. Exit code 1."""


class RunOver(PappusError):
    """The run elsewhere that an actor steps envs for has come to its end; the message says why."""


class DeadlockError(RunError):
    """No role of an inline program can make progress; the message says who waits for what."""


class RoleDied(RunError):
    """A role that may not be restarted (or died too often) ended; the message carries its first traceback."""


class NonFiniteError(RunError):
    """A loss stopped being finite; the message names the metric that went first."""


class RecordingError(RunError):
    """What actors experience cannot be written down; the message says where and why."""


class CallbackError(RunError):
    """A callback raised, and `--hooks.on-error stop` ended the run; the message holds its traceback."""


class StorageError(RunError):
    """Something cannot be written to disk; the message says what and why. A run goes on without it."""


class WireError(RunError):
    """What came over the wire breaks the protocol; the message says how."""


def install_line(extra: str = "") -> str:
    """How pip installs Pappus with an extra: out of the checkout that this is, or by name."""
    root = Path(__file__).resolve().parents[1]
    source = str(root) if (root / "pyproject.toml").is_file() else "pappus"
    return f'pip install "{source}[{extra}]"' if extra else f"pip install {source}"


def closest(word: str, choices: list[str]) -> str:
    """`"; did you mean X?"` for a misspelt word, or an empty string when nothing is near."""
    import difflib

    near = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""
