"""What a run is made of: frozen dataclasses. `settings.py` fills them: defaults < preset < file < command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypedDict

AUTO = -(1 << 31)
"""Stands for `auto` as a number: a value chosen for the machine."""
DATA_SHARE = 0.5
"""The default share of batches that comes from data, in systems that also have actors."""


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
    """Emulator frames per action; the observation is the maximum of the last two."""
    frame_stack: int = 4
    """Newest frames that the network stacks; each is stored and sent once."""
    noop_max: int = 30
    """Maximum number of no-op actions at the start of a game."""
    screen_size: int = 84
    """Side of the grayscale image in pixels."""
    full_action_space: bool = False
    """All 18 actions instead of the game's own."""
    max_frames: int = 108_000
    """Emulator frames after which a game is truncated (30 minutes)."""


@dataclass(frozen=True)
class EnvOptions:
    """Creation of envs."""

    backend: str = "auto"
    """auto, gymnasium, ale, envpool, an installed one, or module:name. auto: ale-py for ALE/*, else Gymnasium."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for the env's constructor; on the command line NAME VALUE pairs, values in YAML."""
    last_inputs: bool = False
    """Also give the network its last action and reward (R2D2)."""
    threads: int = 0
    """Threads that step the envs of an actor. ale and envpool: 0 is the actor's share of the cores. Single Gymnasium
    envs: 0 is no extra thread; more threads help only envs that wait for something external and share no state. Your
    own vector env may ignore this."""
    metrics: tuple[str, ...] = ()
    """Keys of the envs' infos to report as metrics, such as `is_success`, besides those in info["metrics"]."""
    step_timeout: float = 0.0
    """Timeout in seconds for a step (of all envs of an actor, including resets); then the actor's process is replaced.
    0: --supervision.hang-seconds applies."""
    atari: AtariOptions = AtariOptions()


@dataclass(frozen=True)
class NetworkConfig:
    """The network; `auto` chooses by the observation."""

    torso: Literal["auto", "mlp", "nature", "minatar", "impala-deep"] = "auto"
    """auto: nature for images, minatar for binary grids, mlp otherwise."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Units of each layer of the MLP; a single image uses only its CNN."""
    activation: Literal["relu", "tanh"] = "relu"
    """Activation of the MLP; the CNNs use relu, as in their papers."""
    core: Literal["none", "lstm", "gru"] = "none"
    """Recurrent core between torso and heads (also as --core)."""
    core_size: int = 64
    """Units of the recurrent core."""
    layer_norm: bool = False
    """Layer normalisation before every activation of MLP and CNN (PQN); for continuous control only in critics and CNN;
    impala-deep has none."""
    normalize: bool = False
    """Normalise observations other than images to mean 0 and deviation 1, with running moments kept by the learner."""
    deviation: Literal["free", "predicted"] = "free"
    """Deviation of continuous policies: free: one parameter for all states; predicted: an output of the network."""
    factory: str = ""
    """Your own network: module:function of (EnvSpec, NetworkConfig) → nn.Module."""


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer."""

    name: Literal["adam", "radam", "rmsprop", "adagrad"] = "adam"
    """Optimizer. Papers use RMSProp for IMPALA and Ape-X on Atari, AdaGrad for Gorila, RAdam for PQN."""
    learning_rate: float = 1e-3
    """Initial step size."""
    anneal: bool = True
    """Anneal the step size linearly to 0 over --steps."""
    decay: float = 0.999
    """Decay of RMSProp's squared-gradient average, or Adam's second beta."""
    momentum: float = 0.9
    """Momentum of RMSProp, or Adam's first beta."""
    centered: bool = False
    """RMSProp divides by the variance of the gradient, not by its second moment (Ape-X)."""
    epsilon: float = 1e-5
    """Added to the denominator."""
    clip_norm: float = 40.0
    """Gradients are clipped to this global norm."""


@dataclass(frozen=True)
class EvaluationConfig:
    """Greedy evaluation, independent of training."""

    episodes: int = 20
    """Episodes per evaluation."""
    max_seconds: float = 600.0
    """An evaluation that takes longer is aborted."""
    every_steps: int = 0
    """Env steps between evaluations; 0: only at the end (and to confirm a target), @offline ten times per run. A number
    above --steps leaves only the last one."""
    at_steps: tuple[int, ...] = ()
    """Also evaluate once at each of these numbers of env steps."""
    every_seconds: float = 0.0
    """Seconds between evaluations by the clock, the first at the first env step; 0: never."""


@dataclass(frozen=True)
class CheckpointConfig:
    """Checkpoints."""

    every_seconds: float = 60.0
    """Seconds between checkpoints; one is always written at the end."""
    keep_last: int = 3
    """Newest checkpoints to keep, besides the best."""


@dataclass(frozen=True)
class StorageConfig:
    """Handling of storage failures."""

    on_failure: Literal["go-on", "stop"] = "go-on"
    """What to do when metrics, logs, events or checkpoints cannot be written (also as --on-storage-failure). go-on:
    continue, buffer what fits into memory, and retry. stop: save if possible, and end the run."""
    fallback_dir: str = ""
    """A folder on another disk for checkpoints that cannot be written to the run directory (also as --fallback-dir).
    The run gets its own directory there, which can be resumed; empty: none, writing is retried later."""


@dataclass(frozen=True)
class SupervisionConfig:
    """Handling of processes that die or hang."""

    max_deaths_in_a_row: int = 5
    """Restarts of one process with neither progress nor a minute of uptime between its deaths; the next death ends the
    run. For a process whose state is in checkpoints, only a checkpoint is progress."""
    hang_seconds: float = 30.0
    """A role that has been silent for this many seconds, and for 20 times its longest silence before, hangs: its
    process is killed and handled as dead; 0: never."""
    stall_seconds: float = 5.0
    """After this many seconds without an env step or update, and twice the longest pause before, log and view report
    who waits for whom, and where the role is stuck that blocks the others; 0: never."""
    stop_seconds: float = 5.0
    """A role that has not stopped after this many seconds is killed."""
    grace_seconds: float = 15.0
    """Seconds within which the run ends after Ctrl-C, SIGTERM, SIGHUP or SIGUSR1, saved or not: increase it for tables
    that take minutes to write, decrease it if preemption leaves less time."""

    @property
    def saving_seconds(self) -> float:
        """The part of the grace in which the last checkpoint must be written; in the rest the roles are stopped."""
        return max(self.grace_seconds / 3, self.grace_seconds - self.stop_seconds - 3.0)


@dataclass(frozen=True)
class ClusterConfig:
    """The Ray cluster, and the resources of roles. Roles are named by their kind, such as `actor`."""

    address: str = ""
    """A running Ray cluster (also as --address): HOST:PORT, or `auto` for this machine's; empty: one for this run."""
    strategy: Literal["PACK", "SPREAD"] = "PACK"
    """PACK: roles on as few nodes as possible. SPREAD: on as many as possible."""
    placement: dict[str, str] = field(default_factory=dict)
    """The same for some kinds of roles, as ROLE STRATEGY pairs: `--cluster.placement actor SPREAD`."""
    resources: dict[str, str] = field(default_factory=dict)
    """Resources that a role reserves, as ROLE AMOUNTS pairs: `--cluster.resources learner CPU=4,GPU=1,memory=8GiB`.
    Custom resources of nodes work too. Default: one CPU per process, and a GPU for a learner on cuda."""
    fewest_actors: int = 0
    """With --actors 4..64 this is 4: these must fit at the start; the others come and go with nodes. 0: all."""
    patience: float = 25.0
    """Seconds to wait at the start for resources that others hold; resources that no node has are refused at once."""
    certificate: str = ""
    """TLS between nodes: a node's certificate chain (PEM), which names its address. This file and the next two have the
    same paths on every node."""
    key: str = ""
    """TLS between nodes: the certificate's private key (PEM)."""
    authority: str = ""
    """TLS between nodes: the authority that signed the certificates of all nodes (PEM)."""


@dataclass(frozen=True)
class HooksConfig:
    """Callbacks and loggers, each in its own thread."""

    callbacks: tuple[str, ...] = ()
    """Callbacks, each as module:name (also as --callback, which may be repeated)."""
    loggers: tuple[str, ...] = ("tensorboard",)
    """Loggers besides metrics.jsonl (also as --log, which may be repeated): tensorboard, csv, parquet, wandb, mlflow,
    trackio, your own as module:name, or none."""
    on_error: Literal["stop", "log"] = "stop"
    """When a callback raises: stop: save and end the run with the traceback; log: log it and continue. Failures of
    loggers are only logged."""
    queue_size: int = 1000
    """Events queued for each callback and logger; beyond that the newest are dropped, counted and reported."""
    end_seconds: float = 60.0
    """Seconds that the end of a run waits for callbacks and loggers (at most 5 when it is interrupted)."""


@dataclass(frozen=True)
class CostConfig:
    """Prices and budget, each as NAME=VALUE pairs or a YAML file of them."""

    price: dict[str, float] = field(default_factory=dict)
    """Prices in any currency (also as --price): an hour of the machine (hour), an hour of computing on one core
    (core-hour), an hour of holding one GPU (gpu-hour), a GB moved between roles (gb), energy (kwh). Example:
    core-hour=0.04,gpu-hour=3."""
    budget: dict[str, float] = field(default_factory=dict)
    """Stop training when one of these is spent, over all parts of a resumed run (also as --budget): money, core-hours,
    gpu-hours, joules. Example: core-hours=0.5,money=2.5. With --seeds and --vary it is divided equally among the
    runs."""


@dataclass(frozen=True)
class AlgorithmConfig:
    """Base of every algorithm's own settings."""

    def check_batch(self, length: int, envs: int, sequences: bool) -> None:
        """Raise `UserError` if a batch of `length` steps of `envs` envs cannot be cut into minibatches; `sequences`
        stay whole."""


@dataclass(frozen=True)
class WireConfig:
    """Access for remote actors and simulators."""

    listen: str = ""
    """HOST:PORT or unix:PATH at which remote envs may join (also as --listen); empty: none. Port 0 picks a free one."""
    token_file: str = ""
    """A file with the secret that clients must send."""
    certificate: str = ""
    """TLS: the server's certificate chain (PEM)."""
    key: str = ""
    """TLS: the certificate's private key (PEM)."""
    client_authority: str = ""
    """Mutual TLS: the authority that must have signed the clients' certificates (PEM)."""
    insecure: bool = False
    """Listen beyond this machine without authentication."""
    max_envs: int = 65_536
    """Maximum number of connected envs."""
    max_message_mib: int = 64
    """Maximum MiB of one message (the steps of an env group), even before the sender is identified."""
    max_client_mib: int = 0
    """Maximum MiB of memory for the envs of one client, with the unrolls that they fill; 0: a quarter of the memory."""
    max_clients_mib: int = 0
    """The same for all clients together; 0: half of the memory."""
    unusual_factor: float = 1_000.0
    """An observation without bounds is refused if it exceeds the usual magnitude by this factor; 0: only beyond
    ±1e8."""


@dataclass(frozen=True)
class PageConfig:
    """Address and access of the page of a run."""

    listen: str = ""
    """HOST:PORT of the page (also as --page-listen, which implies --page); empty: a free port, for this machine
    only."""
    token_file: str = ""
    """A file with the secret that a browser must send once, as ?token=…; required beyond this machine."""
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
    """Items required before the first update."""
    samples_per_insert: float = 8.0
    """Mean number of times that an item is sampled: updates × batch size per inserted item."""
    tolerance: float = 8.0
    """Batches by which sampling may be ahead of that ratio, or behind it."""
    priority_exponent: float = 0.6
    """α: 0 samples uniformly, 1 in proportion to the error."""
    importance_exponent: float = 0.4
    """β: degree of the correction by importance weights; 1: full."""
    sampler: str = "prioritized"
    """Selector of sampled items: prioritized, uniform, fifo, lifo, min_heap, max_heap, or your own as module:name."""
    remover: str = "fifo"
    """Selector of the items to remove from a full table; the same names."""
    keep_on_device: bool = True
    """A learner on a GPU keeps a copy of the table's images and other large observations there if they take at most
    half of its free memory: each is sent once, and batches are gathered there."""


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
    """Gymnasium id, module:id, or module:function that creates an env."""
    data: str = ""
    """Data set to learn from, a folder or a Minari id: alone (@offline), or mixed with the actors' experience (online
    replay)."""
    data_share: float | None = None
    """Share of every batch that comes from --data, in systems that also have actors; none: 0.5."""
    init_from: str = ""
    """Run directory whose newest checkpoint provides the initial weights."""
    steps: int = 1_000_000
    """Agent steps to train on; for systems @offline, updates."""
    seconds: float | None = None
    """Maximum seconds of training, from the first env step. For a resumed run all parts add up, each from its own first
    env step."""
    seed: int = 1
    """Seed of all random states."""
    actors: int = AUTO
    """Processes that step envs; auto: chosen for this machine."""
    envs: int = 0
    """Total number of envs, divided among the actors; 0: --envs-per-actor for each."""
    envs_per_actor: int = 64
    """Envs that an actor steps at once, unless --envs sets the total."""
    max_envs: int = 0
    """Limit on the total number of envs: with many actors, each has fewer than --envs-per-actor, but at least one; 0:
    no limit."""
    unroll_length: int = 20
    """Steps per unroll."""
    batch_size: int = 0
    """Unrolls (of one env each) per update and learner; 0: one of every env of every actor, divided among the learners
    (32 without local actors). With replay: items (transitions or sequences) per update, at least 1."""
    queue_size: int = 2
    """impala: unrolls (of all its envs) that an actor may be ahead of the learner. seed: finished batches that may wait
    for the learner. No effect with synchronous batches, a3c and replay."""
    learners: int = 1
    """Learners that share every update; each trains on its own --batch-size unrolls."""
    all_reduce: Literal["auto", "memory", "gloo", "nccl"] = "auto"
    """All-reduce backend: shared memory, or torch.distributed; auto: nccl with --device cuda, memory otherwise."""
    runtime: Literal["auto", "inline", "local", "ray"] = "auto"
    """inline: one thread, deterministic. local: a process per role, with shared memory. ray: the same on the nodes of a
    Ray cluster. auto: inline if only one role can work at any time, local otherwise."""
    device: str = "auto"
    """Device of the learner: cpu, cuda, cuda:1 …; auto: a GPU if there is one and observations are images; several
    learners and the inline runtime stay on the CPU."""
    precision: Literal["auto", "float32", "mixed", "bfloat16"] = "auto"
    """mixed: float32, except that a learner on a CPU computes the matrix products of hidden layers of policies and
    critics in bfloat16. auto: for convolutional networks that learn from unrolls, bfloat16 on a GPU that supports it,
    and on a CPU if measured to be 1.2 times as fast; with replay, mixed on a CPU with such instructions, if layers have
    256 units and batches 256 rows; otherwise float32, and for unrolls always in the inline runtime."""
    on_non_finite: Literal["auto", "skip", "stop"] = "auto"
    """What to do with a batch whose loss or gradient is not finite. skip: keep the previous weights, and stop after ten
    such batches in a row. stop: end the run at once, because an env or a setting is at fault. auto: skip with --listen,
    stop otherwise. Either way the first such batch is saved."""
    target_return: float | None = None
    """Stop when a greedy evaluation reaches this return; an evaluation starts when the mean of the last 100 training
    episodes does."""
    run_dir: str = ""
    """Run directory; empty: runs/SYSTEM-ENV-SEED-TIME."""
    record: str = ""
    """Folder for a recording of the actors' experience as a Minari data set; empty: none."""
    trace: bool = False
    """Record the interactions of the roles, so that pappus replay-run can repeat the run in one thread."""
    page: bool = False
    """Serve a live page of the run for a browser. page.html is written in any case."""
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
