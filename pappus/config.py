"""What a run is made of: frozen dataclasses. `settings.py` fills them: defaults < preset < file < command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypedDict

AUTO = -(1 << 31)
"""Stands for `auto` where a number is wanted: one that is chosen for the machine."""
DATA_SHARE = 0.5
"""The share of batches that comes from data where actors see some, too, and nothing is said."""


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
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for the env's constructor; on the command line NAME VALUE pairs, values in YAML."""
    last_inputs: bool = False
    """Show the network its last action and reward, too (R2D2)."""
    threads: int = 0
    """Threads that step the envs of an actor. Those of ale and envpool: 0 is its share of the cores. Those that
    Gymnasium makes one by one: 0 is none beside its own; more help only envs that wait for something outside, and these
    envs must not share state. A vector env of your own has its own way."""
    metrics: tuple[str, ...] = ()
    """Keys of the envs' infos that are metrics, too, such as `is_success`; those in info["metrics"] always are."""
    step_timeout: float = 0.0
    """Seconds after which a step (of all envs of an actor, resets included) that has not ended hangs, and the actor's
    process is replaced; 0: when --supervision.hang-seconds says so."""
    atari: AtariOptions = AtariOptions()


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
    layer_norm: bool = False
    """Layer normalisation before every activation of MLP and CNN (PQN), of continuous control in critics and CNN alone;
    impala-deep has none."""
    normalize: bool = False
    """Observations that are no pictures get mean 0 and deviation 1, by running moments that the learner keeps."""
    deviation: Literal["free", "predicted"] = "free"
    """Of continuous policies: one for all states, a parameter of its own, or an output of the network."""
    factory: str = ""
    """A network of your own: module:function of (EnvSpec, NetworkConfig) → nn.Module."""


@dataclass(frozen=True)
class OptimizerConfig:
    """How gradients become weights."""

    name: Literal["adam", "radam", "rmsprop", "adagrad"] = "adam"
    """RMSProp is the papers' choice for IMPALA and Ape-X on Atari, AdaGrad that of Gorila, RAdam that of PQN."""
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
    """Evaluate each time so many env steps were trained on; 0: at the end only (and to confirm a target), offline ten
    times in a run. A number beyond --steps leaves only the last one."""
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
class StorageConfig:
    """What happens when the disk fails."""

    on_failure: Literal["go-on", "stop"] = "go-on"
    """What to do when metrics, logs, events or checkpoints cannot be written (also as --on-storage-failure). go-on:
    train on, keep what fits into memory, and try again. stop: save where that is possible, and end the run."""
    fallback_dir: str = ""
    """Where checkpoints go that cannot be written to the run directory (also as --fallback-dir): a folder on another
    disk, where the run gets a directory of its own that can be resumed; empty: nowhere, they are tried again later."""


@dataclass(frozen=True)
class SupervisionConfig:
    """What happens when parts die."""

    max_deaths_in_a_row: int = 5
    """Restarts of one process with neither progress nor a minute's life between its deaths; the next death ends the
    run. Only a checkpoint is progress of a process whose state checkpoints hold."""
    hang_seconds: float = 30.0
    """A role that gives no sign of life for so long, and for 20 times its longest silence before, hangs: its process is
    killed and replaced as if it had died; 0: never."""
    stall_seconds: float = 5.0
    """When nothing moves for so long, and for twice the longest pause before, log and view say who waits for whom, and
    where the one is that all wait for; 0: never."""
    stop_seconds: float = 5.0
    """A role that has not stopped after so long is killed."""
    grace_seconds: float = 15.0
    """After Ctrl-C, SIGTERM, SIGHUP or SIGUSR1 the run ends within so long, saved or not: give tables that take minutes
    to write more, and a machine that is taken away sooner less."""

    @property
    def saving_seconds(self) -> float:
        """The part of the grace in which the last checkpoint must be written; in the rest the roles are stopped."""
        return max(self.grace_seconds / 3, self.grace_seconds - self.stop_seconds - 3.0)


@dataclass(frozen=True)
class ClusterConfig:
    """Where the ray runtime runs, and what roles get there. Roles are named by their kind, such as `actor`."""

    address: str = ""
    """A running Ray cluster (also as --address): HOST:PORT, or `auto` for this machine's; empty: one for this run."""
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
    certificate: str = ""
    """TLS between nodes: a node's certificate chain (PEM), which names its address. The file lies at the same path on
    every node, and so do the next two."""
    key: str = ""
    """TLS between nodes: the certificate's private key (PEM)."""
    authority: str = ""
    """TLS between nodes: who must have signed the certificates of all nodes (PEM)."""


@dataclass(frozen=True)
class HooksConfig:
    """Who sees the run while it goes on, each in a thread beside it."""

    callbacks: tuple[str, ...] = ()
    """Callbacks, each as module:name (also as --callback, which may be repeated)."""
    loggers: tuple[str, ...] = ("tensorboard",)
    """Where metrics go beside metrics.jsonl (also as --log, which may be repeated): tensorboard, csv, parquet, wandb,
    mlflow, trackio, your own as module:name, or none."""
    on_error: Literal["stop", "log"] = "stop"
    """When a callback raises: save and end the run with the traceback, or log that and go on. A logger that fails is
    logged."""
    queue_size: int = 1000
    """Events that may wait for each callback and logger; of more the newest are dropped, counted and told."""
    end_seconds: float = 60.0
    """How long the end of a run waits for them (5 at most when it is interrupted)."""


@dataclass(frozen=True)
class CostConfig:
    """What a run may cost. Both are NAME=VALUE pairs, or a YAML file of such."""

    price: dict[str, float] = field(default_factory=dict)
    """What things cost, in any currency (also as --price): an hour of the machine (hour), an hour of computing on one
    core (core-hour), an hour of holding one GPU (gpu-hour), a GB moved between roles (gb), energy (kwh). Such as
    core-hour=0.04,gpu-hour=3."""
    budget: dict[str, float] = field(default_factory=dict)
    """Train until so much is spent, in all parts of the run together (also as --budget): money, core-hours, gpu-hours,
    joules. Such as core-hours=0.5,money=2.5: whatever is spent first. With --seeds and --vary it is for all runs
    together, in equal parts."""


@dataclass(frozen=True)
class AlgorithmConfig:
    """Base of every algorithm's own settings."""

    def check_batch(self, length: int, envs: int, sequences: bool) -> None:
        """Raise `UserError` if a batch of `length` steps of `envs` envs cannot be cut into minibatches; `sequences`
        stay whole."""


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
    max_message_mib: int = 64
    """MiB of one message: the steps of an env group. So much may be sent before it is known who sends it."""
    max_client_mib: int = 0
    """MiB that the envs of one client may take here, with the unrolls that they fill; 0: a quarter of the memory."""
    max_clients_mib: int = 0
    """The same for all clients together; 0: half of the memory."""
    unusual_factor: float = 1_000.0
    """An observation without bounds is refused beyond so many times the usual magnitude; 0: only beyond ±1e8."""


@dataclass(frozen=True)
class PageConfig:
    """Where the page of a run is served, and to whom."""

    listen: str = ""
    """HOST:PORT of the page (also as --page-listen, which asks for a page, too); empty: a free port of this machine,
    for this machine only."""
    token_file: str = ""
    """A file that holds the secret which a browser must give once, as ?token=…; needed beyond this machine."""
    certificate: str = ""
    """TLS: the server's certificate chain (PEM)."""
    key: str = ""
    """TLS: the certificate's private key (PEM)."""


@dataclass(frozen=True)
class ReplayConfig:
    """The replay table. Its items are transitions or sequences, depending on the algorithm."""

    capacity: int = 100_000
    """Maximum number of items."""
    warm_up: int = 1_000
    """Items in the table before the first update."""
    samples_per_insert: float = 8.0
    """Mean number of times that an item is sampled: updates × batch size per inserted item."""
    tolerance: float = 8.0
    """Batches by which samples may be ahead of that ratio, or behind it, at any time."""
    priority_exponent: float = 0.6
    """α: 0 draws uniformly, 1 in proportion to the error."""
    importance_exponent: float = 0.4
    """β: how far importance weights correct for that; 1: fully."""
    sampler: str = "prioritized"
    """Selector of sampled items: prioritized, uniform, fifo, lifo, min_heap, max_heap, or your own as module:name."""
    remover: str = "fifo"
    """Selector of the items that are removed from a full table; the same names."""
    keep_on_device: bool = True
    """A learner on a GPU keeps pictures and other large observations of the table there, too, if they take at most half
    of its free memory: each is sent to it once, and batches are gathered there."""


@dataclass(frozen=True)
class TopologyConfig:
    """Base of every topology's own settings."""

    many_learners: ClassVar[bool] = False
    """Whether several learners can share its updates."""
    actors_train: ClassVar[bool] = False
    """Whether each actor makes updates of its own: their number is part of what is learnt."""
    waits_for_all_actors: ClassVar[bool] = False
    """Whether a missing actor keeps the others waiting: then their number cannot change while a run goes on."""
    uses_gpu: ClassVar[bool] = True
    """Whether its learner can compute on a GPU."""
    uses_data: ClassVar[Literal["no", "beside", "only"]] = "no"
    """Whether it learns from a data set (`--data`): not at all, beside what its actors see, or from nothing else."""
    fresh_start: ClassVar[str] = "envs start new episodes, and unrolls that were in queues are lost"
    """What a run lacks that is resumed, but not exactly."""
    evaluations: ClassVar[int] = 0
    """Evaluations of a run whose config asks for none before the end."""

    @property
    def others_may_join(self) -> bool:
        """Whether it learns from envs that it did not start."""
        return False

    def check(self, config: RunConfig) -> None:
        """Raise `UserError` for a rule that the run's config breaks."""

    def settled(self, config: RunConfig) -> TopologyConfig:
        """The same with everything chosen that must stay the same for the life of a run, such as a free port."""
        return self

    def fewest_actors(self, learners: int) -> int:
        """The fewest local actors with which each of `learners` learners has data."""
        return 0

    def actors_for(self, config: RunConfig, cores: int, heavy: bool) -> int:
        """Actors that a machine with so many cores has use for; `heavy` envs take a core each."""
        return 1

    def items_per_update(self, config: RunConfig) -> int:
        """Unrolls (of one env each), or items of replay, from which all learners of an update learn together."""
        return config.batch_envs * config.learners

    def policy_lag(self, config: RunConfig) -> float:
        """Updates by which the weights that act may be behind, where actors are as far ahead as they can be."""
        return 0.0

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
    system: str = "impala"
    """Named pair of topology and algorithm."""
    env: str = ""
    """Gymnasium id, module:id, or module:function that makes an env."""
    data: str = ""
    """Data set to learn from, a folder or a Minari id: @offline, or in online replay beside what actors see."""
    data_share: float | None = None
    """Share of every batch that comes from --data, in systems that have actors, too; none: 0.5."""
    init_from: str = ""
    """Run directory: begin with the weights of its newest checkpoint."""
    steps: int = 1_000_000
    """Agent steps to train on; of systems @offline, updates."""
    seconds: float | None = None
    """Train for so long at most, from the first env step on. Of a resumed run all parts count together, each from its
    own first env step."""
    seed: int = 1
    """All random states derive from it."""
    actors: int = AUTO
    """Processes that step envs; auto: as many as this machine has use for."""
    envs: int = 0
    """Envs in total, shared among the actors; 0: --envs-per-actor for each."""
    envs_per_actor: int = 64
    """Envs that an actor steps at once, where --envs does not say how many there are in total."""
    max_envs: int = 0
    """Limit of all envs together: with many actors, each has fewer than --envs-per-actor, but at least one; 0: no
    limit."""
    unroll_length: int = 20
    """Steps per unroll."""
    batch_size: int = 0
    """Unrolls (of one env each) per update and learner; 0: one of every env of every actor, shared among the learners
    (32 where there are no actors here). With replay: items (transitions or sequences) per update, at least 1."""
    queue_size: int = 2
    """impala: unrolls of all its envs that an actor may be ahead of the learner. seed: finished batches that may wait
    for the learner. It means nothing to synchronous batches, a3c and replay."""
    learners: int = 1
    """Learners that share every update; each takes --batch-size unrolls of its own."""
    all_reduce: Literal["auto", "memory", "gloo", "nccl"] = "auto"
    """All-reduce backend: shared memory, or torch.distributed; auto: nccl with --device cuda, memory otherwise."""
    runtime: Literal["auto", "inline", "local", "ray"] = "auto"
    """inline: one thread, deterministic. local: a process per role, with shared memory. ray: the same on the nodes of a
    Ray cluster. auto: inline where only one role can work at any time, local otherwise."""
    device: str = "auto"
    """Where the learner computes: cpu, cuda, cuda:1 …; auto: on a GPU if there is one and the network sees pictures;
    several learners and the inline runtime stay on the CPU."""
    precision: Literal["auto", "float32", "mixed", "bfloat16"] = "auto"
    """mixed: float32, but for the products of hidden layers of policies and critics, which a learner on a CPU makes in
    bfloat16. auto: for convolutional networks that learn from unrolls, bfloat16 on a GPU that has it, and on a CPU
    where it is measured to be 1.2 times as fast; with replay, mixed on a CPU with such instructions, if layers have
    256 units and batches 256 rows; float32 otherwise, and for unrolls always in the inline runtime."""
    on_non_finite: Literal["auto", "skip", "stop"] = "auto"
    """What a learner does with a batch whose loss or gradient is not finite. skip: it goes on with the weights that it
    had, and stops after ten such batches in a row. stop: at once, as the env or a setting is at fault. auto: skip where
    others may join (--listen), stop elsewhere. Either way the first such batch is kept."""
    target_return: float | None = None
    """Stop when a greedy evaluation reaches this; one is made when the mean of the last 100 training episodes does."""
    run_dir: str = ""
    """Where the run is written; empty: runs/SYSTEM-ENV-SEED-TIME."""
    record: str = ""
    """Where everything that the actors experience is written, as a Minari data set; empty: nowhere."""
    trace: bool = False
    """Write down in what order the roles met each other, so that pappus replay-run can repeat the run in one thread."""
    page: bool = False
    """Serve a page that shows the run in a browser while it goes on. It is written as page.html in any case."""
    topology: TopologyConfig = TopologyConfig()
    env_options: EnvOptions = EnvOptions()
    network: NetworkConfig = NetworkConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    storage: StorageConfig = StorageConfig()
    supervision: SupervisionConfig = SupervisionConfig()
    cluster: ClusterConfig = ClusterConfig()
    hooks: HooksConfig = HooksConfig()
    cost: CostConfig = CostConfig()
    page_server: PageConfig = PageConfig()

    @property
    def has_page(self) -> bool:
        """Whether the run is shown by a page."""
        return self.page or bool(self.page_server.listen)

    @property
    def system_name(self) -> str:
        """What users call the system; `system` marks one that was given as a Python value with `python:`."""
        return self.system.removeprefix("python:")

    @property
    def skips_non_finite(self) -> bool:
        """`on_non_finite` with auto decided."""
        return self.topology.others_may_join if self.on_non_finite == "auto" else self.on_non_finite == "skip"

    @property
    def inline(self) -> bool:
        """Whether one thread does everything."""
        return self.runtime == "inline" or (self.runtime == "auto" and self.topology.takes_turns(self))

    def precision_on(self, device: str) -> str:
        """The precision of networks on `device`: it was chosen for the learner's."""
        return self.precision if device == self.device else "float32"

    @property
    def batch_envs(self) -> int:
        """Unrolls (of one env each) per update and learner."""
        return self.batch_size or self.steady_actors * self.envs_per_actor // self.learners or 32

    @property
    def mixes_data(self) -> bool:
        """Whether batches come from data and from actors."""
        return bool(self.data) and self.topology.uses_data == "beside"

    @property
    def share_of_data(self) -> float:
        """`data_share` where batches are mixed, with none decided."""
        return DATA_SHARE if self.data_share is None else self.data_share

    @property
    def batch_from_data(self) -> int:
        """Items of every batch that come from data, in systems that have actors, too."""
        return round(self.share_of_data * self.batch_size) if self.mixes_data else 0

    @property
    def steady_actors(self) -> int:
        """Actors that are always there: all, or the fewest where more come and go."""
        return self.cluster.fewest_actors or self.actors


class Settings(TypedDict, total=False):
    """The settings of `RunConfig` as `pappus.train` takes them, for editors and type checkers: a group of settings is a
    config object or a mapping, and there are short names."""

    algorithm: AlgorithmConfig | Mapping[str, Any]
    data: str | Path
    data_share: float | None
    init_from: str | Path
    steps: int
    seconds: float | None
    seed: int
    actors: int | Literal["auto"]
    envs: int
    envs_per_actor: int
    max_envs: int
    unroll_length: int
    batch_size: int
    queue_size: int
    learners: int
    all_reduce: Literal["auto", "memory", "gloo", "nccl"]
    runtime: Literal["auto", "inline", "local", "ray"]
    device: str
    precision: Literal["auto", "float32", "mixed", "bfloat16"]
    target_return: float | None
    on_non_finite: Literal["auto", "skip", "stop"]
    run_dir: str | Path
    record: str | Path
    trace: bool
    page: bool
    topology: TopologyConfig | Mapping[str, Any]
    env_options: EnvOptions | Mapping[str, Any]
    network: NetworkConfig | Mapping[str, Any]
    optimizer: OptimizerConfig | Mapping[str, Any]
    evaluation: EvaluationConfig | Mapping[str, Any]
    checkpoint: CheckpointConfig | Mapping[str, Any]
    storage: StorageConfig | Mapping[str, Any]
    supervision: SupervisionConfig | Mapping[str, Any]
    cluster: ClusterConfig | Mapping[str, Any]
    hooks: HooksConfig | Mapping[str, Any]
    cost: CostConfig | Mapping[str, Any]
    price: Mapping[str, float]
    budget: Mapping[str, float]
    page_server: PageConfig | Mapping[str, Any]
    core: Literal["none", "lstm", "gru"]
    listen: str
    address: str
    on_storage_failure: Literal["go-on", "stop"]
    fallback_dir: str | Path
    callback: Sequence[str]
    log: Sequence[str]
    page_listen: str
