"""Runs that were made with the presets, as docs/results has them. Later runs go here with their own date and commit."""

from __future__ import annotations

from pappus.evidence import Evidence

FIVE, THREE = (1, 2, 3, 4, 5), (1, 2, 3)
LEARNING, PPO, ATARI = "docs/results/learning.md", "docs/results/ppo.md", "docs/results/atari.md"
SOLVED = 475.0
GPU_BOX = "one H200, 16 cores"

EVIDENCE: tuple[Evidence, ...] = (
    Evidence(
        "impala", "CartPole-v1", FIVE, (426_495, 438_772, 479_726, 635_763, 502_681), "2026-11-15", "4e73a3c", SOLVED,
        steps_per_second=209_450, source=LEARNING,
    ),
    Evidence(
        "seed-vtrace", "CartPole-v1", FIVE, (519_729, 390_209, 513_117, 443_142, 491_304), "2026-11-15", "4e73a3c",
        SOLVED, steps_per_second=183_256, source=LEARNING,
    ),
    Evidence(
        "impala", "Acrobot-v1", THREE, (283_119, 365_046, 237_051), "2026-11-15", "b580873", -100.0,
        steps_per_second=26_215, source=LEARNING,
    ),
    Evidence(
        "impala", "Pendulum-v1", THREE, (334_976, 770_560, 366_848), "2026-11-15", "b580873", -300.0,
        steps_per_second=59_733, source=LEARNING,
    ),
    Evidence(
        "a2c", "CartPole-v1", FIVE, (241_000, 212_000, 226_000, 300_000, 239_000), "2026-11-16", "ef68fd1", SOLVED,
        source=PPO,
    ),
    Evidence(
        "ppo", "CartPole-v1", FIVE, (114_000, 108_000, 110_000, 94_000, 98_000), "2026-11-16", "ef68fd1", SOLVED,
        source=PPO,
    ),
    Evidence(
        "appo", "CartPole-v1", FIVE, (548_000, 442_000, 512_000, 466_000, 476_000), "2026-11-16", "c7bb430", SOLVED,
        source=PPO,
    ),
    Evidence(
        "seed-appo", "CartPole-v1", FIVE, (538_000, 354_000, 548_000, 428_000, 661_000), "2026-11-16", "c7bb430",
        SOLVED, source=PPO,
    ),
    Evidence("ppo", "Pendulum-v1", THREE, (41_000, 41_000, 41_000), "2026-11-16", "ef68fd1", -200.0, source=PPO),
    Evidence(
        "ppo", "MountainCarContinuous-v0", THREE, (20_000, 20_000, 20_000), "2026-11-16", "ef68fd1", 90.0, source=PPO,
    ),
    Evidence(
        "ppo", "LunarLander-v3", THREE, (102_000, 151_000, 400_000), "2026-11-16", "ef68fd1", 200.0, source=PPO,
    ),
    Evidence(
        "a3c", "CartPole-v1", FIVE, (155_055, 116_686, 146_352, 142_325, 147_718), "2026-11-16", "2deeb52", SOLVED,
        source=LEARNING,
    ),
    Evidence(
        "dqn", "CartPole-v1", FIVE, (100_072, 105_181, 25_059, 60_040, 70_238), "2026-11-15", "0a744bc", SOLVED,
        source=LEARNING,
    ),
    Evidence(
        "apex-dqn", "CartPole-v1", FIVE, (136_769, 47_622, 87_232, 120_737, 120_845), "2026-11-15", "0a744bc", SOLVED,
        source=LEARNING,
    ),
    Evidence(
        "gorila-dqn", "CartPole-v1", FIVE, (30_853, 55_662, 176_840, 221_518, 230_634), "2026-11-15", "0a744bc",
        SOLVED, source=LEARNING,
    ),
    Evidence(
        "r2d2", "CartPole-v1", FIVE, (150_363, 165_791, 56_296, 126_001, 166_334), "2026-11-15", "0a744bc", SOLVED,
        source=LEARNING,
    ),
    Evidence(
        "seed-r2d2", "CartPole-v1", FIVE, (120_410, 155_645, 146_221, 120_594, 111_146), "2026-11-15", "0a744bc",
        SOLVED, source=LEARNING,
    ),
    Evidence("ddpg", "Pendulum-v1", THREE, (4_056, 10_020, 4_056), "2026-11-15", "0a744bc", -200.0, source=LEARNING),
    Evidence("td3", "Pendulum-v1", THREE, (8_056, 10_020, 8_056), "2026-11-15", "0a744bc", -200.0, source=LEARNING),
    Evidence(
        "apex-ddpg", "Pendulum-v1", THREE, (8_208, 8_208, 6_288), "2026-11-15", "0a744bc", -200.0, source=LEARNING,
    ),
    Evidence(
        "apex-dqn", "benchmarks.minatar:breakout", THREE, (14.3, 17.1, 15.4), "2026-11-16", "c7bb430",
        options=("--steps", "1500000"), source=LEARNING,
    ),
    Evidence(
        "ppo@seed", "ALE/Pong-v5", (41, 42, 43), (483_580, 1_350_979, 675_473), "2026-11-18", "19602cb", 18.0,
        steps_per_second=15_094, source=ATARI, machine=GPU_BOX, on_gpu=True,
    ),
    Evidence(
        "impala", "ALE/Pong-v5", (61,), (1_500_970,), "2026-11-18", "1eaae88", 18.0, steps_per_second=10_719,
        source=ATARI, machine=GPU_BOX, on_gpu=True,
    ),
    Evidence(
        "appo", "ALE/Pong-v5", (61,), (1_832_898,), "2026-11-18", "1eaae88", 18.0, steps_per_second=10_800,
        source=ATARI, machine=GPU_BOX, on_gpu=True,
    ),
    Evidence(
        "apex-dqn", "ALE/Pong-v5", (61,), (1_726_497,), "2026-11-18", "1eaae88", 18.0, steps_per_second=9_521,
        source=ATARI, machine=GPU_BOX, on_gpu=True,
    ),
    Evidence(
        "r2d2", "ALE/Pong-v5", (62,), (2_189_699,), "2026-11-19", "b6da4d7", 18.0, steps_per_second=7_758,
        source=ATARI, machine=GPU_BOX, on_gpu=True,
    ),
    Evidence(
        "pqn@seed", "ALE/Pong-v5", (61,), (406_790,), "2026-11-18", "898a8c7", 18.0, steps_per_second=4_603,
        source=ATARI, machine=GPU_BOX, on_gpu=True,
    ),
    Evidence(
        "seed-vtrace", "ALE/Pong-v5", (61,), (1_516_399,), "2026-11-18", "898a8c7", 18.0, steps_per_second=7_212,
        source=ATARI, machine=GPU_BOX, on_gpu=True,
    ),
    Evidence(
        "seed-appo", "ALE/Pong-v5", (61,), (1_246_477,), "2026-11-18", "898a8c7", 18.0, steps_per_second=3_699,
        source=ATARI, machine=GPU_BOX, on_gpu=True,
    ),
)
