"""`pappus replay serve`, as somebody uses it: another process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from pappus.cli import main
from pappus.errors import UserError
from pappus.replay import Client, Trajectory, col, connect
from pappus.replay.serve.config_file import load_tables
from pappus.replay.wire.remote import FarSession, NearSession

TABLES = """
max_steps: 400
tables:
  - name: replay
    sampler: {prioritized: 0.6}
    remover: fifo
    rate_limiter: {min_size: 10}
    max_size: 300
    lead: 1
    steps_per_item: 1.5
    signature:
      number: {shape: [], dtype: int64}
"""


@contextmanager
def served(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    config = folder / "tables.yaml"
    config.write_text(TABLES)
    server = subprocess.Popen(
        [sys.executable, "-m", "pappus", "replay", "serve", "--config", str(config), *words],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(folder)},
    )
    try:
        assert server.stderr is not None
        lines = []
        for line in server.stderr:
            lines.append(line)
            if "listening on" in line:
                break
        assert lines and "listening on" in lines[-1], lines
        yield server, lines[-1].split("listening on ")[1].split(";")[0]
    finally:
        server.kill()
        server.wait()


def write(client: Client, count: int) -> None:
    with client.writer() as writer:
        for number in range(count):
            writer.append({"number": number})
            writer.create_item("replay", number + 1.0, {"number": writer.history["number"][-1:]})


def numbers(client: Client) -> set[int]:
    shape = Trajectory(number=col("number")[0])
    return set(np.concatenate([client.sample("replay", 100, shape).data["number"] for _ in range(20)]).tolist())


def test_the_same_machine_is_reached_through_shared_memory_and_tcp_through_grpc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with served(tmp_path, "--listen", "127.0.0.1:0") as (_, address):
        near, far = connect(address), connect(f"tcp:{address}")
        assert isinstance(near._session, NearSession) and isinstance(far._session, FarSession)
        write(near, 20)
        assert far.info("replay")["size"] == 20
        assert numbers(far) == numbers(near) == set(range(20))


def test_everything_up_to_the_checkpoint_survives_kill_9(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    where = f"unix:{tmp_path}/replay.sock"
    with served(tmp_path, "--listen", where, "--checkpoints", str(saved)) as (server, address):
        client = connect(address)
        write(client, 30)
        client.checkpoint(str(saved / "replay-1"))
        write(client, 5)
        before = client.info("replay")
        server.kill()
        server.wait()
    with served(tmp_path, "--listen", where, "--checkpoints", str(saved)) as (_, address):
        after = connect(address)
        assert after.info("replay")["size"] == 30 and before["size"] == 35
        assert numbers(after) == set(range(30))


def test_a_signal_ends_it_after_a_last_checkpoint(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    with served(tmp_path, "--listen", f"unix:{tmp_path}/r.sock", "--checkpoints", str(saved)) as (server, address):
        write(connect(address), 12)
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
    assert [path.name.startswith("replay-") for path in saved.iterdir()] == [True]
    assert not (tmp_path / "r.sock.near").exists()


def test_a_killed_writer_leaves_no_partial_item_and_no_chunk(tmp_path: Path) -> None:
    script = """
import sys, numpy as np
from pappus.replay import connect
writer = connect(sys.argv[1]).writer(history=50)
for number in range(40):
    writer.append({"number": number})
    if number < 25:
        writer.create_item("replay", 1.0, {"number": writer.history["number"][-1:]})
writer.flush()
for number in range(40, 45):
    writer.append({"number": number})
print("ready", flush=True)
sys.stdin.read()
"""
    with served(tmp_path, "--listen", f"unix:{tmp_path}/r.sock") as (_, address):
        writer = subprocess.Popen(
            [sys.executable, "-c", script, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
        client = connect(address)
        held = client.info("replay")["chunks"]
        writer.kill()
        writer.wait()
        _until(lambda: client.info("replay")["chunks"] < held)
        assert client.info("replay")["size"] == 25 and numbers(client) == set(range(25))
        client.reset("replay")
        _until(lambda: client.info("replay")["chunks"] == 0)


def _until(true: object) -> None:
    for _ in range(100):
        if true():  # type: ignore[operator]
            return
        signal.sigtimedwait([], 0.05)
    raise AssertionError("it did not become true in 5 s")


def test_a_token_is_asked_for(tmp_path: Path) -> None:
    from pappus.transports.grpc_request_client import Identity

    (tmp_path / "token").write_text("secret")
    (tmp_path / "wrong").write_text("guess")
    with served(tmp_path, "--listen", "127.0.0.1:0", "--token-file", str(tmp_path / "token")) as (_, address):
        with pytest.raises(UserError, match="token is wrong"):
            connect(f"tcp:{address}", Identity(token_file=str(tmp_path / "wrong")))
        right = connect(f"tcp:{address}", Identity(token_file=str(tmp_path / "token")))
        assert right.info("replay")["size"] == 0


@pytest.mark.parametrize(
    "before, after, complaint",
    [
        ("name: replay", "nane: replay", "unknown key 'nane'; did you mean 'name'"),
        ("max_size: 300", "max_size: many", "'many' must be a whole number"),
        ("remover: fifo", "remover: fiffo", "no selector is called 'fiffo'; did you mean 'fifo'"),
        ("{min_size: 10}", "{min_size: 10, queue: 3}", "is no limiter"),
        ("{min_size: 10}", "{min_size: 500}", "never opens"),
        ("dtype: int64", "dtype: text", "dtype='text' must be a number's"),
        ("shape: []", "shape: [-1]", "must be a list of whole numbers"),
        ("{prioritized: 0.6}", "{prioritized: -1}", "alpha=-1"),
        ("max_steps: 400", "max_steps: 0", "must be at least 1"),
        ("max_steps: 400", "max_steps: 400000000000000", "lower max_steps"),
    ],
)
def test_a_wrong_file_gets_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], before: str, after: str, complaint: str
) -> None:
    (tmp_path / "tables.yaml").write_text(TABLES.replace(before, after))
    assert main(["replay", "serve", "--config", str(tmp_path / "tables.yaml")]) == 2
    said = capsys.readouterr().err
    assert complaint in said and said.count("\n") == 1
    found = re.search(r"tables\.yaml, line (\d+): ", said)
    of_line, of_table = (TABLES[: TABLES.index(word)].count("\n") + 1 for word in (before, "name:"))
    if "max_steps" not in before:  # which the service as a whole refuses
        assert found and int(found[1]) in (of_line, of_table), "a rule of the table as a whole has the table's line"


@pytest.mark.parametrize(
    "words, complaint",
    [
        (["replay"], "use pappus replay serve"), (["replay", "server"], "is no command"),
        (["replay", "serve"], "--config"), (["replay", "serve", "--config", "missing.yaml"], "cannot be read"),
        (["replay", "serve", "--config", "{}", "--listen", "0.0.0.0:0"], "open to other machines"),
        (["replay", "serve", "--config", "{}", "--listen", "nowhere"], "neither HOST:PORT nor unix:PATH"),
        (["replay", "serve", "--config", "{}", "--every", "5"], "--every needs --checkpoints"),
        (["replay", "serve", "--config", "{}", "--every", "-5", "--checkpoints", "x"], "must be a number of seconds"),
    ],
)
def test_a_wrong_line_gets_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    (tmp_path / "tables.yaml").write_text(TABLES)
    assert main([word.replace("{}", str(tmp_path / "tables.yaml")) for word in words]) == 2
    said = capsys.readouterr().err
    assert complaint in said and said.count("\n") == 1


def test_a_file_describes_tables_completely(tmp_path: Path) -> None:
    (tmp_path / "tables.yaml").write_text(TABLES)
    found = load_tables(tmp_path / "tables.yaml")
    table = found.tables[0]
    assert (table.name, table.sampler.alpha, table.max_size, table.lead, table.steps) == ("replay", 0.6, 300, 1, 450)
    assert found.max_steps == 400
    assert table.rate_limiter.min_size == 10 and table.signature["number"].dtype == "int64"


def test_a_client_from_elsewhere_chooses_names_of_checkpoints_and_not_where_they_go(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    with served(tmp_path, "--listen", "127.0.0.1:0", "--checkpoints", str(saved)) as (_, address):
        client = connect(f"tcp:{address}")
        assert Path(client.checkpoint("replay-mine")) == saved / "replay-mine"
        for path in ("../outside", str(tmp_path / "elsewhere")):
            with pytest.raises(UserError, match="lies outside"):
                client.checkpoint(path)
    assert not (tmp_path / "outside").exists() and not (tmp_path / "elsewhere").exists()
    with served(tmp_path, "--listen", "127.0.0.1:0") as (_, address), pytest.raises(UserError, match="no checkpoints"):
        connect(f"tcp:{address}").checkpoint("replay-mine")
