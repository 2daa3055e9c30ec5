"""One virtual environment per peer, so that their pins meet neither ours nor each other's.

Installed on first use by `benchmarks.peers.run`, or beforehand by

    python -m benchmarks.peers.environments [PEER …]
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = tuple(sorted(path.stem for path in HERE.glob("*.txt")))
STAMP = "installed.sha256"
PIP_DEADLINE_SECONDS = 1800.0


class PeerError(Exception):
    """A peer that cannot be installed or measured; the message is one sentence."""


def peers_root() -> Path:
    """Where the environments live: `$PAPPUS_PEERS`, or `.peers` in the repository's root."""
    return Path(os.environ.get("PAPPUS_PEERS") or HERE.parents[1] / ".peers").resolve()


def ensure_environment(peer: str) -> Path:
    """The peer's own python, after installing its requirements unless the stamp says that they are there."""
    if peer not in PEERS:
        raise PeerError(f"unknown peer {peer!r}; use one of {', '.join(PEERS)}")
    requirements = HERE / f"{peer}.txt"
    home = peers_root() / peer
    python, stamp = home / "bin" / "python", home / STAMP
    wanted = _fingerprint(requirements)
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    # The stamp goes first and comes last: an install cut short is started afresh, never taken for whole.
    stamp.unlink(missing_ok=True)
    _install(peer, [sys.executable, "-m", "venv", "--clear", str(home)])
    _install(peer, [str(python), "-m", "pip", "install", "--quiet", "--requirement", str(requirements)])
    stamp.write_text(wanted)
    return python


def _fingerprint(requirements: Path) -> str:
    """Changes with the pins and with the interpreter that the environment would be made from."""
    return hashlib.sha256(sys.version.encode() + requirements.read_bytes()).hexdigest()


def _install(peer: str, command: list[str]) -> None:
    print(f"{peer}: {' '.join(command)}", file=sys.stderr, flush=True)
    try:
        subprocess.run(command, check=True, stdout=sys.stderr, timeout=PIP_DEADLINE_SECONDS)
    except (subprocess.SubprocessError, OSError) as error:
        raise PeerError(f"could not install {peer}: {error}") from error


def main() -> None:
    """Installs the peers named on the command line, or all of them."""
    for peer in sys.argv[1:] or PEERS:
        print(f"{peer}: {ensure_environment(peer)}")


if __name__ == "__main__":
    main()
