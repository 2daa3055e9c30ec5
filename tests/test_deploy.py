"""Recipes for containers and clusters: what they ask of Pappus can be had, and their files are whole."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from pappus.commands.configs import check_early, check_feasible
from pappus.config import SupervisionConfig

DEPLOY = Path(__file__).parents[1] / "deploy"
PAGES = DEPLOY.parent / "docs" / "guide"
OPTIONS = {"runtime": "ray", "address": "auto"}
INSTRUCTIONS = ("FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "ENTRYPOINT", "CMD")


def instructions() -> list[tuple[str, str]]:
    """Those of the Dockerfile, without comments and continued lines."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in text.splitlines() if line]


def manifests() -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text()))


def commands() -> list[str]:
    """What the recipes train, as one would type it."""
    docker = re.findall(r"pappus (train .*)", (DEPLOY / "Dockerfile").read_text())
    ray = manifests()[1]["spec"]["entrypoint"].removeprefix("pappus ")
    slurm = (DEPLOY / "slurm.sh").read_text()
    given = re.search(r"slurm\.sh \S+ (\w+ --env.*)", slurm)
    typed = re.search(r'^ *pappus (train "\$@" .*) &$', slurm.replace("\\\n", ""), re.MULTILINE)
    assert given and typed
    filled = typed[1].replace('"$@"', given[1]).replace('"$address:$port"', "auto").replace('"$run_dir"', "runs/pong")
    return [*docker, ray, filled]


@pytest.mark.parametrize("command", commands())
def test_commands_are_accepted(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as the command line goes before a run starts: what follows would look for the cluster."""
    monkeypatch.chdir(tmp_path)
    words = [word for word in command.split()[1:] if word != "--resume-or-start"]
    check_early(None, words, trust=False, several=False)
    check_feasible(words, trust=False)


def test_the_container_has_what_it_copies_and_begins_with_our_command() -> None:
    found = instructions()
    assert found[0][0] == "FROM" and {name for name, _ in found} <= set(INSTRUCTIONS)
    for words in (value.split() for name, value in found if name == "COPY"):
        for source in words[:-1]:
            assert (DEPLOY.parent / source).exists(), source
    assert dict(found)["ENTRYPOINT"] == '["pappus"]'
    extras = re.search(r"\.\[([\w,]+)\]", dict(found)["RUN"])
    assert extras and set(extras[1].split(",")) >= {"ray", "grpc"}


def test_pods_give_a_run_its_grace_and_have_the_volumes_that_they_mount() -> None:
    claim, job = manifests()
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] > SupervisionConfig().grace_seconds
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
            assert container["resources"]["requests"] == container["resources"]["limits"]
        claims = [it["persistentVolumeClaim"]["claimName"] for it in volumes.values() if "persistentVolumeClaim" in it]
        assert set(claims) <= {claim["metadata"]["name"]}
    assert cluster["enableInTreeAutoscaling"], "else there are never more workers than at the start"
    workers = cluster["workerGroupSpecs"][0]
    fewest, most = re.search(r"--actors (\d+)\.\.(\d+)", job["spec"]["entrypoint"]).groups()  # type: ignore[union-attr]
    cores = int(workers["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"])
    assert workers["minReplicas"] * cores >= int(fewest) and workers["maxReplicas"] * cores >= int(most)


SLURM = {
    "scontrol": 'echo "scontrol $*" >> "$LOG"; [ "$1" != show ] || printf "one\\ntwo\\n"',
    "srun": """
        while [ "${1#-}" != "$1" ]; do shift; done
        echo "srun $*" >> "$LOG"
        [ "$1" != hostname ] || echo 127.0.0.1
        [ "$1" != ray ] || exec sleep "$RAY_LIVES"
    """,
    "ray": '[ "$RAY_LIVES" != 0 ]',
    "pappus": """
        echo "pappus $*" >> "$LOG"
        trap "exit 130" USR1 TERM
        until [ "$(grep -c "srun ray start" "$LOG")" = 2 ]; do sleep 0.01; done
        [ -z "$CODE" ] || exit "$CODE"
        kill -"$TOLD" "$PPID"
        while :; do sleep 0.01; done
    """,
}
"""Commands of a Slurm job that note what they were asked. `pappus` ends with `$CODE`, or is told that time is up."""


def slurm_job(folder: Path, code: str = "", told: str = "USR1", ray_lives: int = 30) -> tuple[int, list[str]]:
    """The exit code of a job on two nodes, and what it asked for."""
    for name, body in SLURM.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (folder / name).chmod(0o755)
    environment = {
        "PATH": f"{folder}:/usr/bin:/bin", "LOG": str(folder / "log"), "CODE": code, "TOLD": told,
        "RAY_LIVES": str(ray_lives), "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_CPUS_PER_TASK": "8", "SLURM_JOB_ID": "7",
    }
    words = ["runs/pong", "impala", "--env", "ALE/Pong-v5", "--actors", "auto"]
    job = subprocess.run(["bash", str(DEPLOY / "slurm.sh"), *words], env=environment, capture_output=True, timeout=60)
    return job.returncode, (folder / "log").read_text().splitlines()


@pytest.mark.parametrize(("code", "told"), [("", "USR1"), ("", "TERM"), ("0", ""), ("1", "")])
def test_a_slurm_job_saves_its_run_and_queues_again_when_time_is_up(code: str, told: str, tmp_path: Path) -> None:
    ended, lines = slurm_job(tmp_path, code, told)
    assert ended == int(code or 130)
    assert sum(line.startswith("srun ray start") for line in lines) == 2, lines
    (trained,) = (line for line in lines if line.startswith("pappus"))
    assert trained.startswith("pappus train impala --env ALE/Pong-v5") and "--resume-or-start" in trained
    assert ("scontrol requeue 7" in lines) == (told == "USR1")


def test_a_slurm_job_whose_ray_does_not_start_ends(tmp_path: Path) -> None:
    ended, lines = slurm_job(tmp_path, ray_lives=0)
    assert ended == 1 and not any(line.startswith("pappus") or "requeue" in line for line in lines)
