"""The page in a real browser: of a run that lives, from a disk, of a folder of runs, and of hundreds of roles."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import imageio
import numpy as np
import pytest

from pappus.page.assemble import assembled
from pappus.page.command import shown
from pappus.page.document import Page
from pappus.page.folder import OneRun
from pappus.page.following import FollowedRun
from pappus.page.server import PageServer
from pappus.page.serving import write_page
from pappus.page.written import Moment
from tests.page.browser import HOW_TO_GET_ONE, Browser, find_browser
from tests.page.fake import fake_page
from tests.process_tools import Training, eventually

TALL = 3000
"""Height of a window in which all of a page can be seen: curves beyond it are not drawn."""
FITS = "document.documentElement.scrollWidth <= innerWidth"
UNKNOWN = "–"
DRAWN = """[...document.querySelectorAll('.chart canvas')].filter(canvas => {
    const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    return new Set(new Uint32Array(data.buffer)).size > 20;
}).length"""
"""Charts that are not blank: axes and a line have many shades."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all; who has none gets a sentence, and on CI a failure."""
    command = find_browser()
    if command is None:
        if os.environ.get("CI") == "true":
            pytest.fail(HOW_TO_GET_ONE)
        pytest.skip(HOW_TO_GET_ONE)
    with Browser(command) as browser:
        yield browser


@pytest.fixture(scope="module")
def run(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was looked at while it lived, and is over."""
    directory = tmp_path_factory.mktemp("runs") / "cartpole"
    words = ["impala", "--env", "CartPole-v1", "--actors", "2", "--seconds", "4", "--steps", "9000000", "--page"]
    training = Training(directory, *words, "--evaluation.episodes", "1", "--run-dir", str(directory))
    try:
        address = eventually(lambda: next(
            (line.removeprefix("page: ") for line in training.output().splitlines() if line.startswith("page: ")), None
        ))
        check_live_page(browser, address)
        assert training.wait(60) == 0, training.output()
    finally:
        training.end()
    browser.until("document.querySelector('.status').textContent.startsWith('over')")
    return directory


def check_live_page(browser: Browser, address: str) -> None:
    """What is new appears by itself, and nobody else is asked for anything."""
    browser.show(address, height=TALL)
    browser.until("document.querySelector('.status').textContent === 'live'")
    browser.until("Number(document.querySelector('.progress').getAttribute('aria-valuenow')) >= 1")
    browser.until("document.querySelectorAll('.chart canvas').length > 1")
    browser.until(f"({DRAWN}) > 1")
    check_figure(browser)
    sound(browser, address)


def check_figure(browser: Browser) -> None:
    """Boxes for kinds of roles, labelled edges between them, and a verdict."""
    titles = texts(browser, ".box-title")
    assert titles == ["actor×2", "learner", "evaluator"]
    assert {"unrolls", "weights"} <= set(texts(browser, ".edge-name"))
    assert browser.value("document.querySelectorAll('svg.edges path.edge').length") >= 3
    assert len(texts(browser, ".verdict-text")[0]) > 20


def sound(browser: Browser, address: str) -> None:
    """No complaint, and no request but to the page's own server."""
    assert browser.complaints == []
    assert browser.requests and all(one.startswith(address) for one in browser.requests), browser.requests


def texts(browser: Browser, selector: str) -> list[str]:
    found: list[str] = browser.value(f"[...document.querySelectorAll('{selector}')].map(one => one.textContent)")
    return found


def brightness(browser: Browser, colour: str) -> int:
    """Red, green and blue of a colour together."""
    return sum(map(int, browser.value(f"{colour}.match(/\\d+/g).slice(0, 3)")))


def written(page: Page, path: Path) -> str:
    """A page as a file, and its address."""
    path.write_bytes(assembled(page))
    return path.as_uri()


def test_a_run_that_is_over_opens_from_its_directory(browser: Browser, run: Path) -> None:
    address = (run / "page.html").as_uri()
    browser.show(address, height=TALL)
    browser.until(f"({DRAWN}) > 1")
    check_figure(browser)
    assert texts(browser, ".status") == ["over: time is up"]
    assert texts(browser, ".progress-line p span")[0].startswith("100 % of the time · ")
    assert texts(browser, "table.roles tbody th") == ["actor-0", "actor-1", "learner", "evaluator"]
    assert "seconds" in texts(browser, "table.config tbody th")
    sound(browser, address)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_fits_on_a_phone(browser: Browser, run: Path, dark: bool) -> None:
    browser.show((run / "page.html").as_uri(), 375, dark=dark)
    browser.until("document.querySelector('.upright')")
    assert browser.value(FITS)
    for element in ("body", ".card"):
        style = f"getComputedStyle(document.querySelector('{element}'))"
        paper, ink = (brightness(browser, f"{style}.{name}") for name in ("backgroundColor", "color"))
        assert (paper < 200 < 500 < ink) if dark else (ink < 200 < 500 < paper)
    assert browser.complaints == []


def test_a_folder_of_runs_is_compared_and_leads_to_each(browser: Browser, run: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copytree(run, tmp_path / name)
    config = tmp_path / "two" / "config.yaml"
    text = config.read_text().replace("entropy_cost:", "entropy_cost: 0.5 #").replace("page: true", "page: false")
    config.write_text(text.replace("price: {}", "price: {core-hour: 0.04}"))
    server = PageServer(shown(tmp_path))
    server.start()
    try:
        browser.show(server.url, height=TALL)
        browser.until(f"({DRAWN}) > 0")
        assert texts(browser, "table.runs tbody th") == ["one", "two"]
        took = json.loads((run / "summary.json").read_text())["wall_seconds"]
        assert browser.value(f"duration({took})") in texts(browser, "table.runs tbody td"), "as on the axis of time"
        assert texts(browser, "#differences tbody th") == ["algorithm.entropy_cost", "cost.price.core-hour"]
        reached = texts(browser, "#target tbody td")
        assert len(reached) == 2 * 4 and UNKNOWN not in reached, "steps, time and CPU time are known of both"
        browser.value("document.querySelector('table.runs tbody input').click()")
        browser.until("document.querySelector('.count').textContent === '1 of 2 chosen'")
        browser.resize(375)
        assert browser.value(FITS)
        sound(browser, server.url)
        browser.value("document.querySelector('table.runs tbody a').click()")
        browser.until("document.querySelectorAll('.box-title').length === 3")
        assert browser.value("location.pathname") == "/run/one/"
        sound(browser, server.url)
    finally:
        server.close()


def test_hundreds_of_roles_stay_readable(browser: Browser, tmp_path: Path) -> None:
    browser.show(written(fake_page(roles=300, live=False), tmp_path / "many.html"))
    assert texts(browser, ".box-title")[0] == "actor×298"
    assert browser.value("document.querySelectorAll('.cells i').length") == 298
    assert "busy: median" in texts(browser, ".box .spread")[0]
    assert texts(browser, "table.roles tbody th") == ["actor ×298", "learner", "evaluator"]
    assert browser.value("document.querySelector('.figure').clientHeight < innerHeight")
    browser.value("document.querySelector('.opener').click()")
    assert len(texts(browser, "table.roles tbody th")) == 301
    browser.resize(375)
    assert browser.value(FITS)
    assert browser.complaints == []


def test_a_film_travels_with_the_file_and_one_that_is_missing_leaves_no_player(
    browser: Browser, run: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(run, moved)
    (moved / "videos").mkdir()
    film = moved / "videos" / "episode-0.mp4"
    with imageio.get_writer(film, fps=10, macro_block_size=2) as writer:
        for shade in (0, 128, 255):
            writer.append_data(np.full((64, 64, 3), shade, np.uint8))
    alone = tmp_path / "alone.html"
    write_page(shown(moved), alone)
    film.unlink()
    browser.show(alone.as_uri())
    browser.until("document.querySelector('video').duration > 0")
    assert not browser.value("document.querySelector('#video').hidden")
    sound(browser, alone.as_uri())
    page = shown(moved).page()
    assert page["run"] is not None
    page["run"]["video"] = "videos/episode-0.mp4"
    browser.show(written({**page, "live": False}, tmp_path / "without.html"))
    browser.until("document.querySelector('#video').hidden")


def test_figures_that_a_system_has_not_leave_no_empty_box(browser: Browser, tmp_path: Path) -> None:
    page = fake_page(live=False)
    assert page["run"] is not None and page["run"]["now"] is not None
    page["run"]["now"]["lag"] = None
    del page["run"]["curves"]["columns"]["learner/policy_lag"]
    browser.show(written(page, tmp_path / "run.html"))
    tiles = "[...document.querySelectorAll('.tile')].filter(one => one.offsetWidth).map(one => one.textContent)"
    shown = browser.value(tiles)
    assert len(shown) == 5 and not any("Policy lag" in text for text in shown)
    assert browser.complaints == []


def test_options_in_the_verdict_stay_in_one_piece(browser: Browser, tmp_path: Path) -> None:
    page = fake_page(live=False)
    assert page["run"] is not None and page["run"]["now"] is not None
    page["run"]["now"]["verdict"]["text"] = "the envs compute: actor-0 computes 91 %; --actors 2 promises 1.8 times"
    browser.show(written(page, tmp_path / "run.html"))
    assert texts(browser, ".verdict-text .option") == ["--actors"]
    lines = "document.querySelector('.verdict-text .option').getClientRects().length"
    for width in range(320, 720, 8):
        browser.resize(width)
        assert browser.value(lines) == 1, f"broken at {width} pixels"
    assert browser.complaints == []


def test_what_runs_say_is_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    page = fake_page(live=False)
    evil = "</script><img src=x onerror=alert(1)>"
    assert page["run"] is not None
    page["run"]["about"]["env"] = evil
    page["run"]["config"]["resolved"][evil] = evil
    page["run"]["curves"]["columns"][f"losses/{evil}"] = page["run"]["curves"]["columns"]["losses/value"]
    address = written(page, tmp_path / "evil.html")
    browser.show(address)
    assert evil in texts(browser, "h1")[0]
    assert "died: <b>not bold</b> & killed by signal 9" in texts(browser, ".events li > :last-child")
    assert browser.value("document.querySelector('main img, main b b, main script')") is None
    sound(browser, address)


def test_time_adds_up_over_the_parts_of_a_run(browser: Browser, tmp_path: Path) -> None:
    page = fake_page(live=False)
    browser.show(written(page, tmp_path / "run.html"))
    about, parts = {"began": 5000}, {"time": [1000, 1010, 5002, 5012], "cost/wall_seconds": [1, 11, 14, 24]}
    taken = "elapsed({})".format
    assert browser.value(taken(json.dumps({"about": about, "curves": {"columns": parts}}))) == [1, 11, 14, 24]
    del parts["cost/wall_seconds"]
    assert browser.value(taken(json.dumps({"about": about, "curves": {"columns": parts}}))) == [0, 10, 4002, 4012]
    assert browser.complaints == []


def test_a_program_that_is_odd_leaves_the_rest_of_the_page(browser: Browser, tmp_path: Path) -> None:
    page = fake_page(live=False)
    assert page["run"] is not None and page["run"]["program"] is not None
    program = page["run"]["program"]
    program["kinds"][1]["name"] = program["roles"][-2]["kind"] = "deep learner"
    program["roles"][0]["kind"] = "unheard of"
    browser.show(written(page, tmp_path / "odd.html"))
    assert texts(browser, ".box-title") == ["actor×3", "deep learner", "evaluator"]
    browser.until("document.querySelectorAll('svg.edges path.edge').length === 3")
    assert browser.complaints == []

    page["run"]["now"]["edges"] = page["run"]["now"]["roles"] = None  # type: ignore[index, typeddict-item]
    browser.show(written(page, tmp_path / "odder.html"))
    assert "cannot be shown" in texts(browser, "#page > .empty")[0] and texts(browser, "#config h2") == ["Config"]
    assert browser.complaints


def test_only_curves_that_can_be_seen_are_drawn(browser: Browser, tmp_path: Path) -> None:
    page = fake_page(live=False)
    assert page["run"] is not None
    columns = page["run"]["curves"]["columns"]
    columns |= {f"losses/{i}": columns["losses/value"] for i in range(100)}
    browser.show(written(page, tmp_path / "many.html"))
    browser.value("document.querySelector('#curves').scrollIntoView()")
    browser.until(f"({DRAWN}) > 2")
    assert browser.value("document.querySelectorAll('.chart').length") > 100
    assert browser.value("document.querySelectorAll('.chart canvas').length") < 40


def test_a_page_says_when_its_server_is_gone_and_finds_it_again(browser: Browser, run: Path) -> None:
    moment: Moment = json.loads((run / "now.json").read_text())
    moment["phase"] = "running"
    (lost := run.with_name("lost")).mkdir()
    for name in ("config.yaml", "program.json", "metrics.jsonl"):
        shutil.copy(run / name, lost)

    def serve(port: int) -> PageServer:
        server = PageServer(OneRun(FollowedRun(lost, newest=lambda: moment)), port=port)
        server.start()
        return server

    server = serve(0)
    browser.show(server.url)
    browser.until("document.querySelector('.status').textContent === 'live'")
    server.close()
    browser.until("document.querySelector('.status').textContent.startsWith('connection lost')")
    server = serve(server.port)
    try:
        browser.until("document.querySelector('.status').textContent === 'live'")
    finally:
        server.close()
