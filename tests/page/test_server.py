"""The page over HTTP: what it answers, and to whom."""

from __future__ import annotations

import json
import random
import re
import socket
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from benchmarks.fuzz import mutate
from pappus.config import PageConfig
from pappus.errors import UserError
from pappus.page import server as servers
from pappus.page.access import is_loopback
from pappus.page.folder import OneRun
from pappus.page.following import FollowedRun
from pappus.page.server import PageServer
from pappus.page.serving import shown
from pappus.page.streams import REMEMBERED, WAITING, Stream, WatchedRun
from pappus.transports.addresses import check_page
from tests.page.runs import add_lines, end, write_program, write_run


@pytest.fixture
def served() -> Iterator[Callable[..., PageServer]]:
    """Serves a folder until the test is over."""
    running: list[PageServer] = []

    def serve(folder: Path, config: PageConfig | None = None) -> PageServer:
        running.append(PageServer(shown(folder), config))
        running[-1].start()
        return running[-1]

    yield serve
    for one in running:
        one.close()


def get(server: PageServer, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=10)) as connection:
        connection.request("GET", path, headers={name.replace("_", "-"): one for name, one in headers.items()})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()


@contextmanager
def events(server: PageServer, after: str = "") -> Iterator[Iterator[tuple[str, str, dict[str, object]]]]:
    """Events as they come: name, id, data."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/events?after={after}", timeout=10) as answer:
        def told() -> Iterator[tuple[str, str, dict[str, object]]]:
            fields: dict[str, str] = {}
            for line in answer:
                name, colon, value = line.decode().rstrip("\n").partition(": ")
                if colon:
                    fields[name] = value
                elif "event" in fields:
                    yield fields["event"], fields.get("id", ""), json.loads(fields["data"])
                    fields = {}

        yield told()


def test_the_page_holds_its_data_and_allows_nothing_else(tmp_path: Path, served: Callable[..., PageServer]) -> None:
    run = write_run(tmp_path / "run", env="</script><script>alert(1)</script>")
    server = served(run)
    status, headers, body = get(server, "/")
    assert status == 200 and b"<script>alert(1)" not in body
    found = re.search(rb'<script type="application/json" id="pappus-data">(.*?)</script>', body, re.DOTALL)
    assert found is not None and json.loads(found[1])["run"]["about"]["env"].startswith("</script>")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "connect-src 'self'" in policy
    assert headers["Cache-Control"] == "no-store"
    assert json.loads(get(server, "/data")[2])["run"]["summary"]["exit_reason"] == "steps done"


@pytest.mark.parametrize("path", [
    "/nope", "/run/", "/run/other/", "/run/../../etc/passwd", "/videos/../config.yaml", "/videos/%2e%2e%2fconfig.yaml",
    "/config.yaml", "//evil.com", "/%ff", "/videos/a.mp4%00", "/run/%2e%2e/data", "*",
])
def test_everything_else_is_refused_with_a_sentence(
    tmp_path: Path, served: Callable[..., PageServer], path: str
) -> None:
    server = served(write_run(tmp_path / "run"))
    status, headers, body = get(server, path)
    assert status in (400, 404) and headers["Content-Type"].startswith("text/plain") and len(body) < 100


def test_strangers_sites_are_refused_by_the_name_of_the_host(
    tmp_path: Path, served: Callable[..., PageServer]
) -> None:
    server = served(write_run(tmp_path / "run"))
    for host in ("evil.com", "127.0.0.1.evil.com", "localhost.evil.com:80", "", "[::2]:80", "0x7f.1"):
        assert get(server, "/", Host=host)[0] == 403, host
    assert get(server, "/events", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors")[0] == 403
    assert get(server, "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")[0] == 200
    for host in ("localhost", "localhost:1", "127.0.0.1:99", "[::1]:80", "LOCALHOST"):
        assert is_loopback(host), host


def test_a_token_becomes_a_cookie(tmp_path: Path, served: Callable[..., PageServer]) -> None:
    (tmp_path / "token").write_text("sesame\n")
    server = served(write_run(tmp_path / "run"), PageConfig("127.0.0.1:0", str(tmp_path / "token")))
    assert "sesame" not in server.url
    for path, cookie in (("/", ""), ("/?token=wrong", ""), ("/data", f"pappus-{server.port}=sesame"), ("/", "a\x01=b")):
        assert get(server, path, Cookie=cookie)[0] == 403
    status, headers, _ = get(server, "/?token=sesame")
    assert status == 200 and headers["Refresh"] == "0; url=/"
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "sesame" not in cookie
    mine = cookie.partition(";")[0]
    assert get(server, "/", Cookie=mine, Host="gpu-box")[0] == 200
    for others in (
        'k={"x":1}; {}', "flag; {}", "x=a b; {}; y", "{}; =;;", "\xe9=\xe9; {}", f"pappus-{server.port}=old; {{}}",
    ):
        assert get(server, "/", Cookie=others.replace("{}", mine))[0] == 200, "cookies of other programs do not matter"


def test_others_may_not_look_without_a_token() -> None:
    with pytest.raises(UserError, match="anybody could see the run; give --token-file"):
        check_page(PageConfig("0.0.0.0:8000"), "--")
    with pytest.raises(UserError, match="give HOST:PORT"):
        check_page(PageConfig("unix:/tmp/x"))


def test_an_address_that_is_taken_is_a_sentence(tmp_path: Path, served: Callable[..., PageServer]) -> None:
    server = served(write_run(tmp_path / "run"))
    with pytest.raises(UserError, match=f"no page can be served at 127.0.0.1:{server.port}"):
        PageServer(server.shown, port=server.port)


def test_films_come_whole_or_in_parts(tmp_path: Path, served: Callable[..., PageServer]) -> None:
    run = write_run(tmp_path / "run")
    (run / "videos").mkdir()
    (run / "videos" / "episode-0.mp4").write_bytes(bytes(range(200)))
    (run / "videos" / "link.mp4").symlink_to(run / "config.yaml")
    server = served(run)
    assert json.loads(get(server, "/data")[2])["run"]["video"] == "videos/episode-0.mp4"
    assert get(server, "/videos/episode-0.mp4")[2] == bytes(range(200))
    status, headers, body = get(server, "/videos/episode-0.mp4", Range="bytes=10-19")
    assert (status, headers["Content-Range"], body) == (206, "bytes 10-19/200", bytes(range(10, 20)))
    assert get(server, "/videos/episode-0.mp4", Range="bytes=190-")[2] == bytes(range(190, 200))
    assert get(server, "/videos/link.mp4")[0] == 404


def test_events_follow_a_run_to_its_end(
    tmp_path: Path, served: Callable[..., PageServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "LOOK_SECONDS", 0.01)
    run = write_run(tmp_path / "run", over=False)
    server = served(run)
    page = json.loads(get(server, "/data")[2])
    add_lines(run, [6])
    with events(server, page["after"]) as told:
        columns = {"step": [600], "time": [1.760000006e9], "losses/value": [0.166667]}
        assert next(told)[::2] == ("rows", {"columns": columns})
        write_program(run)
        names = [next(told)[0] for _ in range(2)]
        assert names == ["now", "changes"]
        add_lines(run, [2])
        assert next(told)[0] == "curves", "a resumed run went back"
        end(run)
        name, last, changed = next(told)
        assert name == "over" and changed["summary"] and changed["about"]["phase"] == "over"  # type: ignore[index]
    add_lines(run, [3])
    with events(server, last) as told:
        assert next(told)[0] == "rows", "who comes back gets what was missed"
    with events(server, "other.7") as told:
        assert next(told)[0] == "run", "who missed too much gets all"


def test_a_browser_that_takes_nothing_is_cut_off(tmp_path: Path) -> None:
    run = WatchedRun(FollowedRun(write_run(tmp_path / "run", over=False)))
    slow, fast = run.subscribe(""), run.subscribe("")
    for number in range(6, 7 + WAITING):
        add_lines(tmp_path / "run", [number])
        run.look()
        assert fast.get(1.0)
    assert slow.closed and slow.get(0.0) == b"" and not fast.closed
    run.leave(fast)
    assert not run.watched and REMEMBERED < WAITING
    assert isinstance(run.subscribe("x"), Stream)


def test_no_more_than_so_many_look(
    tmp_path: Path, served: Callable[..., PageServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "run")
    for limit, refusal in (("MOST_STREAMS", b"retry: 30000"), ("MOST_CONNECTIONS", b"too many look at it")):
        with monkeypatch.context() as patch:
            patch.setattr(servers, limit, 1)
            server = served(run)
        with events(server, "0") as told:
            assert next(told)[0] == "run"
            assert refusal in get(server, "/events")[2]


def test_a_look_that_fails_leaves_room_for_others(
    tmp_path: Path, served: Callable[..., PageServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(servers, "MOST_STREAMS", 1)
        server = served(write_run(tmp_path / "run"))
    with monkeypatch.context() as patch:
        patch.setattr(FollowedRun, "look", lambda run: 1 / 0)
        get(server, "/events")
    with events(server, "0") as told:
        assert next(told)[0] == "run"


def test_nonsense_gets_an_answer_and_harms_nobody(
    tmp_path: Path, served: Callable[..., PageServer], capfd: pytest.CaptureFixture[str]
) -> None:
    server, rng = served(write_run(tmp_path / "run")), random.Random(1)
    good = b"GET /data HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: a.1\r\nRange: bytes=0-3\r\n\r\n"
    heads = [b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"]
    heads += [b"x" * 20_000, good[:20], *(mutate(rng, good) for _ in range(100))]
    for head in heads:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(head)
            connection.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        assert answer, head
    assert get(server, "/data")[0] == 200
    assert capfd.readouterr() == ("", ""), "no traceback"


def test_a_run_that_cannot_be_shown_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    followed = FollowedRun(write_run(tmp_path / "run"))
    server = PageServer(OneRun(followed))
    server.start()
    monkeypatch.setattr(followed, "look", lambda: 1 / 0)
    assert get(server, "/")[::2] == (500, b"the run cannot be shown: ZeroDivisionError\n")
    server.close()
