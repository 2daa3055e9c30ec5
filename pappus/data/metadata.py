"""What `metadata.json` of a data set says, checked: every way in which it can be wrong is a sentence."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from pappus.envs.spaces import Space
from pappus.errors import UserError, install_line
from pappus.trust import check_trust, env_asked

DataFormat: TypeAlias = Literal["hdf5", "arrow", "parquet"]
FORMATS: tuple[str, ...] = get_args(DataFormat)

METADATA = "metadata.json"
OWN = "pappus"
"""Key of the metadata that only we need."""
INSTALL = f"run {install_line('data')}"


def minari_root() -> Path:
    """Where Minari keeps data sets by their ids."""
    return Path(os.environ.get("MINARI_DATASETS_PATH", Path.home() / ".minari" / "datasets"))


def find_dataset(data: str | Path) -> Path:
    """The folder with a set's `metadata.json`; `UserError` if there is none."""
    for folder in (Path(data) / "data", Path(data), minari_root() / data / "data"):
        if (folder / METADATA).is_file():
            return folder.resolve()
    raise UserError(
        f"data {str(data)!r} is no data set: there is no metadata.json in it, and no Minari id of that name; record "
        "one with pappus train … --record DIR"
    )


def read_metadata(folder: Path) -> dict[str, Any]:
    """The metadata with its spaces as spaces."""
    content = raw_metadata(folder)
    check_version(content, folder)
    for key in ("observation_space", "action_space"):
        content[key] = _space(content, key, folder)
    return content


def raw_metadata(folder: Path) -> dict[str, Any]:
    """The metadata as it stands in the file; totals and format are what they must be."""
    path = folder / METADATA
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{str(path)!r} is no JSON ({error}); the set was not written to its end, or damaged") from None
    if not isinstance(content, dict):
        raise UserError(f"{str(path)!r} holds a {type(content).__name__}, not an object; it is no data set of Minari's")
    for key in ("total_episodes", "total_steps"):
        if not isinstance(content.get(key), int) or content[key] < 0:
            raise UserError(f"{str(path)!r} says {key}={content.get(key)!r}; it must be a whole number")
    if content.get("data_format") not in FORMATS:
        said = content.get("data_format")
        raise UserError(f"{str(path)!r} says data_format={said!r}; readable are {', '.join(FORMATS)}")
    return content


def check_version(content: Mapping[str, Any], folder: Path) -> None:
    """`UserError` where the installed Minari does not read sets of that version."""
    version = content.get("minari_version")
    if version is None:
        return
    minari = minari_package()
    if str(version) not in minari.supported_dataset_versions:
        raise UserError(
            f"data set {str(folder)!r} was written by Minari {version}, which Minari {minari.__version__} here does "
            f"not read; it reads {min(minari.supported_dataset_versions)} to {max(minari.supported_dataset_versions)}"
        )


def minari_package() -> Any:
    """The package, or the sentence that says how to get it."""
    try:
        import minari
    except ModuleNotFoundError as error:
        raise UserError(f"data sets need {error.name}, which is not installed; {INSTALL}") from None
    return minari


def _space(content: Mapping[str, Any], key: str, folder: Path) -> Space:
    from minari.serialization import deserialize_space

    if key not in content:
        remedy = "import it first, then record or import the set again"
        check_trust(f"data set {str(folder)!r}", env_asked(env_of(content)), remedy)
    try:
        found: Space = deserialize_space(content[key]) if key in content else _space_of_env(content, key)
    except Exception as error:  # whatever stands there: it describes no space
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(f"data set {str(folder)!r} has no readable {key} ({text}); record or import it again") from None
    return found


def _space_of_env(content: Mapping[str, Any], key: str) -> Space:
    """Older sets leave a space out that is the env's."""
    import gymnasium as gym

    env = gym.make(env_of(content))
    try:
        return env.observation_space if key == "observation_space" else env.action_space
    finally:
        env.close()


def env_of(content: Mapping[str, Any]) -> str:
    """The env's id; empty where it is not known."""
    return str(_own(content).get("env") or _env_spec(content).get("id") or "")


def frame_stack_of(content: Mapping[str, Any]) -> int:
    """Newest frames that a network should see at once; 1 where nothing is said."""
    stack = _own(content).get("frame_stack", 1)
    return stack if isinstance(stack, int) and stack > 0 else 1


def kwargs_of(content: Mapping[str, Any]) -> Any:
    """What the env was made with; None where that is not known."""
    options = _own(content).get("env_options")
    return options.get("kwargs") if isinstance(options, Mapping) else None


def rewards_are_clipped(content: Mapping[str, Any]) -> bool:
    """Whether the rewards were clipped before they were recorded."""
    return _own(content).get("clipped_rewards") is True


def _own(content: Mapping[str, Any]) -> Mapping[str, Any]:
    own = content.get(OWN)
    return own if isinstance(own, Mapping) else {}


def time_limit_of(content: Mapping[str, Any]) -> int | None:
    """Steps after which the env truncates an episode, where that is known."""
    import gymnasium as gym

    limit = _env_spec(content).get("max_episode_steps")
    known = gym.registry.get(env_of(content))
    return limit if isinstance(limit, int) else known.max_episode_steps if known is not None else None


def _env_spec(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Gymnasium's spec of the env; empty where there is none that can be read."""
    try:
        spec = json.loads(content.get("env_spec") or "{}")
    except (TypeError, ValueError):
        return {}
    return spec if isinstance(spec, dict) else {}
