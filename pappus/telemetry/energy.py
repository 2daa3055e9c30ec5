"""Energy that the processors of this machine use, whoever computes on them: Linux's powercap (RAPL)."""

from __future__ import annotations

from pathlib import Path

MICRO = 1e-6


class Processors:
    """Joules since this was made. A counter that has begun anew is carried on."""

    def __init__(self, root: str = "/") -> None:
        self._zones = [zone for zone in _zones(Path(root)) if _counter(zone) is not None]
        self._before = {zone: _counter(zone) or 0 for zone in self._zones}
        self._used = 0.0

    def joules(self) -> float | None:
        """None where the kernel does not say, as for most users and in most virtual machines."""
        for zone in self._zones:
            now = _counter(zone)
            if now is not None:
                step = now - self._before[zone]
                self._used += MICRO * (step if step >= 0 else step + _range(zone))
                self._before[zone] = now
        return self._used if self._zones else None


def _zones(root: Path) -> list[Path]:
    """Packages, and memory, which no package counts; other zones are parts of these."""
    found = sorted((root / "sys/class/powercap").glob("intel-rapl:*"))
    return [zone for zone in found if _text(zone / "name").startswith(("package", "dram"))]


def _counter(zone: Path) -> int | None:
    text = _text(zone / "energy_uj")
    return int(text) if text.isdigit() else None


def _range(zone: Path) -> int:
    text = _text(zone / "max_energy_range_uj")
    return int(text) if text.isdigit() else 0


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
