"""Ray is an extra: without it everything else works, and who asks for it is told how to get it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pappus.errors import install_line

HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "ray":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "ray" else find_spec(name, package)
"""


def python(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HIDDEN + code], capture_output=True, text=True, cwd=directory, timeout=120
    )


def test_a_local_run_works_and_ray_is_never_imported(tmp_path: Path) -> None:
    done = python(
        "import pappus\n"
        "pappus.train('impala', env='CartPole-v1', steps=5000, evaluation={'episodes': 1})\n"
        "assert 'ray' not in sys.modules\n", tmp_path,
    )
    assert done.returncode == 0, done.stderr


def test_who_asks_for_ray_is_told_how_to_get_it(tmp_path: Path) -> None:
    done = python(
        "from pappus.cli import main\n"
        "sys.exit(main(['train', 'impala', '--env', 'CartPole-v1', '--runtime', 'ray']))\n", tmp_path,
    )
    assert done.returncode == 2 and install_line("ray") in done.stderr
    assert not (tmp_path / "runs").exists()
