"""What the documentation shows works as it stands there, and names only what exists."""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import pappus
import pappus.listing as listing
from docs import hooks, tables
from pappus.cli import COMMANDS
from pappus.config import NetworkConfig
from pappus.networks.build import own_network
from pappus.networks.q_networks import FORBIDDEN
from pappus.networks.steps import BatchForward
from pappus.systems import SYSTEMS
from pappus.types import ACTION_MASK, ArraySpec, DiscreteAction, EnvSpec

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "RESULTS.md"]
IDS = [str(page.relative_to(ROOT)) for page in PAGES]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\.venv/bin/)?pappus (.+?)(?: +#.*)?$")
OPTION = re.compile(r"(?<![\w-])--([a-z][\w.-]*)")
CLI_OPTIONS = {
    "config", "resume", "resume-or-start", "seeds", "vary", "jobs", "plan", "tune", "env-spec", "help", "version",
}
"""Options of `pappus train` and `pappus serve` that are not fields of the config."""
PROCESS_TITLE = r"learner|actor-\d+|evaluator|forkserver"
"""What `ps` shows behind `pappus`."""
TINY: dict[str, Any] = {
    "runtime": "inline", "actors": 1, "envs_per_actor": 2, "batch_size": 8, "steps": 300, "network.hidden_sizes": [8],
    "evaluation.episodes": 1, "topology.replay.warm_up": 5, "topology.replay.samples_per_insert": 1.0,
}


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network of docs/guide/own-network.md as a module of a user's."""
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "guide" / "own-network.md").read_text(), re.DOTALL)
    (tmp_path / "mine.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)


@pytest.mark.parametrize(
    ("system", "env", "settings"),
    [
        ("dqn", "CartPole-v1", {}),
        ("gorila-dqn", "CartPole-v1", {}),
        ("r2d2", "CartPole-v1", {"network.core": "gru"}),
        ("ddpg", "Pendulum-v1", {}),
    ],
)
def test_systems_train_with_the_networks_of_the_docs(
    system: str, env: str, settings: dict[str, Any], mine: None, tmp_path: Path
) -> None:
    factory = "mine:policy_and_critics" if system == "ddpg" else "mine:values"
    result = pappus.train(system, env, run_dir=tmp_path / "run", **{**TINY, "network.factory": factory, **settings})
    assert result.summary.updates > 0


@pytest.mark.parametrize(
    ("system", "env", "network"),
    [
        ("dqn", "CartPole-v1", "Values"), ("gorila-dqn", "CartPole-v1", "Values"),
        ("r2d2", "CartPole-v1", "Remembering"), ("seed-r2d2", "CartPole-v1", "Remembering"),
        ("ddpg", "Pendulum-v1", "PolicyAndCritic"), ("td3", "Pendulum-v1", "PolicyAndCritic"),
    ],
)
def test_the_members_that_the_docs_ask_of_a_network_are_enough(
    system: str, env: str, network: str, tmp_path: Path
) -> None:
    settings = {**TINY, "network.factory": f"tests.networks.bare_networks:{network}"}
    assert pappus.train(system, env, run_dir=tmp_path / "run", **settings).summary.updates > 0


def test_the_network_of_the_docs_stacks_frames_and_leaves_masks_to_the_values(mine: None) -> None:
    spec = {"seen": ArraySpec((4,), "float32"), ACTION_MASK: ArraySpec((2,), "int8")}
    env = EnvSpec(spec, DiscreteAction(2), frame_stack=3)
    network: Any = own_network(env, NetworkConfig(hidden_sizes=(8,), factory="mine:values"))
    frames, mask = torch.randn(3, 1, 4), torch.tensor([0, 1], dtype=torch.int8).expand(3, 1, 2)
    first = torch.tensor([[True], [False], [False]])
    unrolled = network({"seen": frames, ACTION_MASK: mask}, first, network.initial_state(1)).q[-1]
    stacked = {"seen": frames.transpose(0, 1), ACTION_MASK: mask.transpose(0, 1)}  # as DQN sees them out of replay
    torch.testing.assert_close(BatchForward()(network, stacked).q, unrolled)
    assert unrolled.argmax() == 1 and unrolled[0, 0] == FORBIDDEN


def test_the_nav_lists_every_page_once() -> None:
    listed = list(leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
        path, _, anchor = target.partition("#")
        if target.startswith(("http:", "https:")):
            continue
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{page.name} links {target}"
        assert not anchor or anchor in anchors(found), f"{page.name} links {target}, which has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands_name_systems_that_exist(page: Path) -> None:
    for words in (command.split() for command in commands_in(page)):
        assert words[0] in (*COMMANDS, "--help"), words
        if words[0] in ("train", "serve", "chaos", "sweep", "tune") and len(words) > 1 and not words[1].startswith("-"):
            assert is_system(words[1]), f"{page.name}: pappus {' '.join(words)}"


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_options_exist(page: Path) -> None:
    known = known_options()
    for text in [*commands_in(page), *code_spans(page)]:
        for option in OPTION.findall(text):
            name = re.sub(r"(^|\.)no-", r"\1", option.replace("_", "-"))
            assert name in known, f"{page.name} names --{option}"


def test_the_options_page_holds_every_setting_of_every_system() -> None:
    listed = hooks.option_names()
    for system in SYSTEMS.values():
        missing = [name for name in settings_of(system.defaults) if name not in listed and name != "system"]
        assert not missing, f"{system.name} has {missing}"


def test_the_commands_page_holds_every_command() -> None:
    page = hooks.on_page_markdown((DOCS / "reference" / "cli.md").read_text())
    own = ("data record", "data info", "data list", "data convert", "data import")
    runs = ("train", "serve", "actor", "eval", "verify", "chaos", "replay serve")
    others = ("compare", "sweep", "tune", "presets", "systems", "check-env", "export", "push", "pull")
    for command in (*runs, *own, *others):
        assert f"## `pappus {command}`" in page
    for option in ("--connect", "--video", "--checkpoints", "--backend"):
        assert f"| `{option}` |" in page


@pytest.mark.parametrize("page", [DOCS / "systems" / "index.md", ROOT / "README.md"], ids=["index", "README"])
def test_the_table_of_systems_is_complete(page: Path) -> None:
    rows = [line for line in page.read_text().splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row.split("|")[1])} == set(SYSTEMS)


def test_every_metric_is_explained() -> None:
    page = (DOCS / "reference" / "metrics.md").read_text()
    for name in recorded_metrics():
        assert re.search(rf"[`/]{name}(_per_second|_max)?`", page), f"no word about {name}"


def test_files_that_the_docs_name_exist() -> None:
    for page in PAGES:
        for path in re.findall(r"`((?:pappus|tests|benchmarks|clients|docs|examples)/[\w./-]+)`", page.read_text()):
            assert (ROOT / path).exists(), f"{page.name} names {path}"


def test_pages_that_the_code_names_exist() -> None:
    files = [file for folder in ("pappus", "tests", "clients", "benchmarks") for file in (ROOT / folder).rglob("*.py")]
    for file in files:
        for path in re.findall(r"\bdocs/[\w/-]+\.(?:md|png)", file.read_text()):
            assert (ROOT / path).exists(), f"{file.name} names {path}"


def test_generated_parts_have_content() -> None:
    markers = [marker for page in DOCS.rglob("*.md") for marker in hooks.MARKER.findall(page.read_text())]
    assert {name for name, _ in markers} == set(hooks.GENERATORS)
    for name, argument in markers:
        assert name == "pairs" or len(hooks.GENERATORS[name](argument)) > 100, name


def test_the_tables_of_results_are_there_as_json() -> None:
    for page in tables.pages():
        stored = ROOT / "benchmarks" / "results" / f"{page.stem}.json"
        assert stored.read_text() == tables.content_of(page), f"run python docs/tables.py: {page.name} has changed"


def test_columns_of_the_same_name_are_refused() -> None:
    rows = "| run | ratio | ratio |\n| --- | --- | --- |\n| one | 1 | 2 |"
    with pytest.raises(ValueError, match="different names"):
        tables.tables_of(rows)
    assert tables.tables_of(rows.replace("ratio", "part", 1))[0]["rows"] == [{"run": "one", "part": "1", "ratio": "2"}]


def test_the_headlines_fit_on_a_page() -> None:
    assert len((ROOT / "benchmarks" / "RESULTS.md").read_text().splitlines()) <= 150


def leaves(nav: Any) -> Iterator[str]:
    """The pages of a nav, in order."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from leaves(part)


def without_code(page: Path) -> str:
    """A page without code blocks and code spans."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))


def anchors(page: Path) -> set[str]:
    """What a link to a page may have behind its #."""
    text = hooks.on_page_markdown(page.read_text()) if page.is_relative_to(DOCS) else page.read_text()
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def commands_in(page: Path) -> list[str]:
    """What follows `pappus` in code blocks and code spans."""
    text = page.read_text()
    lines = [line for _, block in FENCE.findall(text) for line in block.splitlines()]
    lines += [line.strip() for line in text.splitlines() if line.startswith("    ")]
    lines += [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", FENCE.sub("", text))]
    found = [match[1] for line in lines if (match := COMMAND.match(line))]
    return [command for command in found if not re.fullmatch(PROCESS_TITLE, command)]


def code_spans(page: Path) -> list[str]:
    """Code spans that hold options of ours: those of other programs begin with their names."""
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", FENCE.sub("", page.read_text()))]
    return [span for span in spans if span.startswith(("--", "… --", "python -m benchmarks"))]


@cache
def known_options() -> set[str]:
    """Options of our commands and of the benchmarks, without their dashes."""
    files = [*hooks.COMMAND_FILES, *hooks.PACKAGE.glob("replay/**/*.py"), *ROOT.glob("benchmarks/**/*.py")]
    arguments = {name for file in files for name, _, _ in hooks.arguments_in(hooks.tree(file))}
    return hooks.option_names() | CLI_OPTIONS | {name.removeprefix("--") for name in arguments}


def is_system(name: str) -> bool:
    """A system by its name, as ALGORITHM@TOPOLOGY, or as module:name; or a placeholder."""
    algorithm, _, topology = name.partition("@")
    if topology and ":" not in algorithm:
        return " " not in listing.pair_table()[algorithm][topology]  # else it is the sentence of a refusal
    return name in SYSTEMS or bool(re.fullmatch(r"\w+:\w+(@\w+)?", name)) or name in ("SYSTEM", "…")


def settings_of(config: Any, prefix: str = "") -> Iterator[str]:
    """The dotted names of all settings of a config."""
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), prefix + field.name.replace("_", "-")
        if dataclasses.is_dataclass(value):
            yield from settings_of(value, f"{name}.")
        else:
            yield name


def recorded_metrics() -> Iterator[str]:
    """Names that roles record, as literals."""
    for file in (ROOT / "pappus" / "roles").rglob("*.py"):
        for node in ast.walk(hooks.tree(file)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                name = node.args[0]
                if node.func.attr in ("count", "mean", "maximum", "gauge") and isinstance(name, ast.Constant):
                    yield str(name.value)
