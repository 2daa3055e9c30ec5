"""What a run is made of: frozen dataclasses, built from defaults < preset < file < command line.

All three sources of settings become command-line words and go through one parser (tyro), so a value means the
same and fails with the same sentence wherever it was written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import tyro
import yaml

from pappus.errors import UserError, closest

ALIASES = {"core": "network.core", "listen": "topology.wire.listen", "address": "cluster.address"}
"""Short names for settings that live deeper."""
PAIRS = ("kwargs", "cluster.placement", "cluster.resources")
"""Settings that are NAME VALUE pairs; all other mappings are settings within settings."""


@dataclass(frozen=True)
class AtariOptions:
    """The standard preprocessing (Mnih 2015, Machado 2018), every choice explicit."""

    sticky_actions: float = 0.0
    """Probability of repeating the last action (0.25 is Machado's protocol)."""
    life_loss_ends_episode: bool = False
    """Losing a life terminates for the learner; returns are still reported per game."""
    clip_rewards: bool = True
    """Rewards clipped to [-1, 1] for the learner; returns are always reported raw."""
    frame_skip: int = 4
    """Emulator frames per action, with the maximum of the last two shown."""
    frame_stack: int = 4
    """Newest frames that the network sees at once; each is stored and sent once."""
    noop_max: int = 30
    """Up to this many no-op actions at the start of a game."""
    screen_size: int = 84
    """Side of the gray picture in pixels."""
    full_action_space: bool = False
    """All 18 actions instead of the game's own."""
    max_frames: int = 108_000
    """Emulator frames after which a game is truncated (30 minutes)."""


@dataclass(frozen=True)
class EnvOptions:
    """How envs are made."""

    backend: str = "auto"
    """auto, gymnasium, ale, envpool, an installed one, or module:name. auto: ale-py for ALE/*, else Gymnasium."""
    kwargs: dict[str, str] = field(default_factory=dict)
    """Keyword arguments for the env's constructor, as NAME VALUE pairs; values are read as YAML."""
    last_inputs: bool = False
    """Show the network its last action and reward, too (R2D2)."""
    threads: int = 0
    """Threads that step a natively vectorised env (ale, envpool); 0 chooses."""
    atari: AtariOptions = AtariOptions()
    """Atari preprocessing."""


@dataclass(frozen=True)
class NetworkConfig:
    """Which network; `auto` chooses from the observation."""

    torso: Literal["auto", "mlp", "nature", "minatar", "impala-deep"] = "auto"
    """auto: nature for pictures, minatar for grids of flags, mlp for everything else."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Units of each layer of the MLP; an observation that is a single picture has its CNN and no MLP."""
    activation: Literal["relu", "tanh"] = "relu"
    """What follows each layer of the MLP; the CNNs use relu, as their papers do."""
    core: Literal["none", "lstm", "gru"] = "none"
    """Memory between torso and heads (also as --core)."""
    core_size: int = 64
    """Units of the memory."""
    normalize: bool = False
    """Observations that are no pictures get mean 0 and deviation 1, by running moments that the learner keeps."""
    deviation: Literal["free", "predicted"] = "free"
    """Of continuous policies: one for all states, a parameter of its own, or an output of the network."""
    factory: str = ""
    """A network of your own: module:function of (EnvSpec, NetworkConfig) → nn.Module."""


@dataclass(frozen=True)
class OptimizerConfig:
    """How gradients become weights."""

    name: Literal["adam", "rmsprop", "adagrad"] = "adam"
    """RMSProp is the papers' choice for IMPALA and Ape-X on Atari, AdaGrad that of Gorila."""
    learning_rate: float = 1e-3
    """Step size at the start."""
    anneal: bool = True
    """Fall linearly to zero over --steps."""
    decay: float = 0.999
    """Decay of RMSProp's squared-gradient average, or Adam's second beta."""
    momentum: float = 0.9
    """Momentum of RMSProp, or Adam's first beta."""
    centered: bool = False
    """RMSProp divides by the variance of the gradient and not by its square (Ape-X)."""
    epsilon: float = 1e-5
    """Added to the denominator."""
    clip_norm: float = 40.0
    """Gradients are scaled down to this global norm."""


@dataclass(frozen=True)
class EvaluationConfig:
    """Greedy evaluation, apart from training."""

    episodes: int = 20
    """Episodes per evaluation."""
    max_seconds: float = 600.0
    """An evaluation that takes longer is given up."""
    every_steps: int = 0
    """Evaluate each time so many env steps were trained on; 0: at the end only (and to confirm a target)."""
    at_steps: tuple[int, ...] = ()
    """Evaluate once when each of these numbers of env steps was trained on, too."""
    every_seconds: float = 0.0
    """Evaluate each time so many seconds have passed since the first env step, which is evaluated, too; 0: never."""


@dataclass(frozen=True)
class CheckpointConfig:
    """What survives."""

    every_seconds: float = 60.0
    """Seconds between checkpoints; one is always written at the end."""
    keep_last: int = 3
    """Checkpoints kept, beside the best."""


@dataclass(frozen=True)
class SupervisionConfig:
    """What happens when parts die."""

    max_deaths_in_a_row: int = 5
    """Deaths of one role with neither progress nor a minute's life between them that end the run."""
    stop_seconds: float = 5.0
    """A role that has not stopped after so long is killed."""


@dataclass(frozen=True)
class ClusterConfig:
    """Where the ray runtime runs, and what roles get there. Roles are named by their kind, such as `actor`."""

    address: str = ""
    """A running Ray cluster: HOST:PORT, or `auto` for the one that this machine belongs to; empty: Ray is started here,
    for this run alone (also as --address)."""
    strategy: Literal["PACK", "SPREAD"] = "PACK"
    """PACK: roles on as few nodes as they fit on. SPREAD: on as many as there are."""
    placement: dict[str, str] = field(default_factory=dict)
    """The same for some kinds of roles, as ROLE STRATEGY pairs: `--cluster.placement actor SPREAD`."""
    resources: dict[str, str] = field(default_factory=dict)
    """What a role reserves, as ROLE AMOUNTS pairs: `--cluster.resources learner CPU=4,GPU=1,memory=8GiB`. Whatever a
    node was started with can be asked for. Without: one CPU for each process, and a GPU for a learner on cuda."""
    fewest_actors: int = 0
    """With --actors 4..64 this is 4: so many must fit at the start, and the rest comes and goes with nodes. 0: all."""
    patience: float = 25.0
    """Seconds to wait for what others hold at the start; what no node has is refused at once."""


@dataclass(frozen=True)
class AlgorithmConfig:
    """Base of every algorithm's own settings."""


@dataclass(frozen=True)
class WireConfig:
    """Who may join from elsewhere, and how it proves itself."""

    listen: str = ""
    """HOST:PORT or unix:PATH where envs may join (also as --listen); empty: nowhere. Port 0 takes a free one."""
    token_file: str = ""
    """A file that holds the secret which clients must know."""
    certificate: str = ""
    """TLS: the server's certificate chain (PEM)."""
    key: str = ""
    """TLS: the certificate's private key (PEM)."""
    client_authority: str = ""
    """Mutual TLS: who must have signed the clients' certificates (PEM)."""
    insecure: bool = False
    """Listen beyond this machine with neither token nor TLS."""
    max_envs: int = 65_536
    """Envs that may be connected at once."""


@dataclass(frozen=True)
class ReplayConfig:
    """What is kept and how often it is used. Items are transitions or sequences, as the algorithm has it."""

    capacity: int = 100_000
    """Items that are kept; the oldest go."""
    warm_up: int = 1_000
    """Items that must be there before the first update."""
    samples_per_insert: float = 8.0
    """How often an item is used on average: updates × batch size per item that comes."""
    tolerance: float = 8.0
    """Batches by which samples may be ahead of that ratio or behind it at any time."""
    priority_exponent: float = 0.6
    """α: 0 draws evenly, 1 in proportion to the error."""
    importance_exponent: float = 0.4
    """β: how far importance weights make up for that; 1 fully."""


@dataclass(frozen=True)
class TopologyConfig:
    """Base of every topology's own settings."""

    many_learners: ClassVar[bool] = False
    """Whether several learners can share its updates."""
    waits_for_all_actors: ClassVar[bool] = False
    """Whether a missing actor keeps the others waiting: then their number cannot change while a run goes on."""

    def check(self, config: RunConfig) -> None:
        """Raise `UserError` for a rule that the run's config breaks."""

    def settled(self, config: RunConfig) -> TopologyConfig:
        """The same with everything chosen that must stay the same for the life of a run, such as a free port."""
        return self

    def fewest_actors(self, learners: int) -> int:
        """Without so many actors of its own, some of so many learners would have nothing to learn from."""
        return 0

    def takes_turns(self, config: RunConfig) -> bool:
        """Whether at any time only one of the roles can do anything: then one thread is as fast, and deterministic."""
        return False

    @property
    def slack_option(self) -> str:
        """The option that says how far actors may run ahead of the learner; empty where there is none."""
        return ""


@dataclass(frozen=True)
class RunConfig:
    """One run. Steps are agent steps: after frame skip, summed over all envs."""

    algorithm: AlgorithmConfig
    """The algorithm's settings."""
    system: str = "impala"
    """Named pair of topology and algorithm."""
    env: str = ""
    """Gymnasium id, module:id, or module:function that makes an env."""
    steps: int = 1_000_000
    """Agent steps to train on."""
    seconds: float | None = None
    """Train for so long at most, from the first env step on; the run then ends as one that has all its steps. Of a
    resumed run each part counts from its own first env step."""
    seed: int = 1
    """All random states derive from it."""
    actors: int = 1
    """Processes that step envs; --learners without --actors may bring more."""
    envs_per_actor: int = 64
    """Envs that an actor steps at once."""
    unroll_length: int = 20
    """Steps per unroll."""
    batch_size: int = 0
    """Unrolls (of one env each) per update and learner; 0: one of every env of every actor, shared among the learners
    (32 where there are no actors here)."""
    queue_size: int = 2
    """Unrolls of all its envs that an actor may be ahead of the learner."""
    learners: int = 1
    """Learners that share every update; each takes --batch-size unrolls of its own."""
    all_reduce: Literal["auto", "memory", "gloo", "nccl"] = "auto"
    """Through what their gradients meet: memory that they share, or torch.distributed; auto: nccl on GPUs, memory
    otherwise."""
    runtime: Literal["auto", "inline", "local", "ray"] = "auto"
    """inline: one thread, deterministic. local: a process per role, shared memory between them. ray: the same on the
    nodes of a Ray cluster. auto: inline where there is one actor and nobody could do anything meanwhile, local
    otherwise."""
    device: str = "cpu"
    """Where the learner computes."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: measured at the start for convolutional networks, float32 otherwise and in the inline runtime."""
    target_return: float | None = None
    """Stop when a greedy evaluation reaches this: one is made when the last 100 training episodes do, on average, and
    every --evaluation.every-steps."""
    run_dir: str = ""
    """Where the run is written; empty: runs/SYSTEM-ENV-SEED-TIME."""
    topology: TopologyConfig = TopologyConfig()
    """The topology's settings."""
    env_options: EnvOptions = EnvOptions()
    """How envs are made."""
    network: NetworkConfig = NetworkConfig()
    """Which network."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """How gradients become weights."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Greedy evaluation."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """What survives."""
    supervision: SupervisionConfig = SupervisionConfig()
    """What happens when parts die."""
    cluster: ClusterConfig = ClusterConfig()
    """The ray runtime."""

    @property
    def inline(self) -> bool:
        """Whether one thread does everything."""
        return self.runtime == "inline" or (self.runtime == "auto" and self.topology.takes_turns(self))

    @property
    def batch_envs(self) -> int:
        """Unrolls (of one env each) per update and learner."""
        return self.batch_size or self.steady_actors * self.envs_per_actor // self.learners or 32

    @property
    def steady_actors(self) -> int:
        """Actors that are always there: all, or the fewest where more come and go."""
        return self.cluster.fewest_actors or self.actors

    @property
    def steps_per_batch(self) -> int:
        """Env steps of one batch."""
        return self.batch_envs * self.unroll_length


def override(config: RunConfig, settings: Mapping[str, Any], source: str = "settings") -> RunConfig:
    """`config` with dotted (or nested) settings replaced; unknown names and wrong values raise `UserError`."""
    return parse(config, _as_words(settings), source)


def parse(config: RunConfig, words: Sequence[str], source: str = "pappus train") -> RunConfig:
    """`config` with command-line words such as `--algorithm.entropy-cost 0.01` applied."""
    words = _with_range([_resolve_alias(word) for word in words])
    _refuse_unknown_options(config, words)
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output):
            parsed = tyro.cli(type(config), default=config, args=words, prog=source)
    except SystemExit as exit:
        if exit.code in (0, None):
            raise
        raise UserError(f"{_sentence(output.getvalue())}; see {source} --help") from None
    return _with_actors(parsed, words)


def _with_range(words: Sequence[str]) -> list[str]:
    """`--actors 4..64` is two settings: how many there may be, and how many there must be."""
    out = list(words)
    for i, word in enumerate(words):
        text = word.partition("=")[2] if word.startswith("--actors=") else "".join(words[i + 1 : i + 2])
        found = re.fullmatch(r"(\d+)\.\.(\d+)", text) if word.partition("=")[0] == "--actors" else None
        if found:
            if not 1 <= int(found[1]) <= int(found[2]):
                raise UserError(f"--actors {text} must go from 1 or more up to as many or more, such as 4..64")
            out[i : i + 1 + ("=" not in word)] = ["--actors", found[2], "--cluster.fewest-actors", found[1]]
            break
    return out


def _with_actors(config: RunConfig, words: Sequence[str]) -> RunConfig:
    """Whoever asks for more learners, and says nothing of actors, gets as many of these as the learners need."""
    given = {word.partition("=")[0] for word in words}
    if "--learners" not in given or "--actors" in given:
        return config
    return dataclasses.replace(config, actors=max(config.actors, config.topology.fewest_actors(config.learners)))


def load_file(path: Path) -> dict[str, Any]:
    """Settings of a YAML file, as `override` takes them."""
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"config file {str(path)!r} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise UserError(f"config file {str(path)!r} holds no settings; write NAME: VALUE lines")
    return content


def to_yaml(config: RunConfig) -> str:
    """The resolved config, readable by `load_file`."""
    plain = dataclasses.asdict(config, dict_factory=lambda items: {key: _plain(value) for key, value in items})
    return str(yaml.safe_dump(plain, sort_keys=False))


def option_names(config: object, prefix: str = "") -> list[str]:
    """Every dotted option name of a config, with dashes as on the command line."""
    names: list[str] = []
    for item in dataclasses.fields(config):  # type: ignore[arg-type]
        value, name = getattr(config, item.name), prefix + item.name.replace("_", "-")
        names += option_names(value, f"{name}.") if dataclasses.is_dataclass(value) else [name]
    return names


def _word(value: Any) -> str:
    """A value of `kwargs`, which are read as YAML again."""
    return value if isinstance(value, str) else str(yaml.safe_dump(value, default_flow_style=True)).split("\n")[0]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _as_words(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    words: list[str] = []
    for key, value in settings.items():
        name = f"{prefix}{key}".replace("_", "-")
        if isinstance(value, Mapping) and not name.endswith(PAIRS):
            words += _as_words(value, f"{name}.")
        elif isinstance(value, bool):
            head, _, last = name.rpartition(".")
            words.append(f"--{name}" if value else f"--{head}{'.' if head else ''}no-{last}")
        elif isinstance(value, Mapping):
            words += [f"--{name}", *(_word(word) for pair in value.items() for word in pair)]
        elif isinstance(value, list | tuple):
            words += [f"--{name}", *map(str, value)]
        else:
            words += [f"--{name}", str(value)]
    return words


def _resolve_alias(word: str) -> str:
    name, equals, value = word[2:].partition("=")
    return f"--{ALIASES[name]}{equals}{value}" if word.startswith("--") and name in ALIASES else word


def _refuse_unknown_options(config: RunConfig, words: Sequence[str]) -> None:
    known = option_names(config)
    for word in words:
        name = word[2:].partition("=")[0].replace("_", "-")
        positive = re.sub(r"(^|\.)no-", r"\1", name)
        if word.startswith("--") and name != "help" and name not in known and positive not in known:
            if name.startswith("topology.wire."):
                raise UserError(
                    f"system {config.system!r} takes no envs from elsewhere, so there is no --{name}; "
                    "seed-vtrace and seed-r2d2 do"
                )
            raise UserError(f"unknown option --{name}{closest(name, [*known, *ALIASES])}")


def _sentence(box: str) -> str:
    """The first statement of tyro's error box (title, statement, hints, with rules between them) on one line."""
    lines = [line.strip(" │|+╭╮╰╯") for line in box.splitlines()]
    texts = "\n".join(line if line.strip("─-") else "" for line in [line for line in lines if line][1:])
    statement = texts.strip().partition("\n\n")[0]
    return " ".join(statement.split()).rstrip(".") or "the command line could not be read"
