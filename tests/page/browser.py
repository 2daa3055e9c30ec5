"""A headless Chromium, driven over a pipe: messages are JSON, each ended by NUL, on the file descriptors 3 and 4."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HOW_TO_GET_ONE = "no browser is installed; `make browser` installs Debian's chromium where it may, or put one into PATH"
PATIENCE = 120.0
"""Seconds that an answer, or a condition, may take on a machine that does much else."""


def find_browser() -> str | None:
    """The command of a Chromium, if there is one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def pipe() -> tuple[int, int]:
    """Ends to read from and to write to, neither of which is 3 or 4."""
    ends = os.pipe()
    read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return read, write


class Browser:
    """One window. It keeps what the page asked for, and what it complained about."""

    def __init__(self, command: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pappus-browser-", ignore_cleanup_errors=True)
        heard, self._say = pipe()
        self._hear, said = pipe()
        options = [
            "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-component-update",
            "--hide-scrollbars", "--mute-audio", f"--user-data-dir={self._folder.name}", "about:blank",
        ]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec 3<&{heard} 4>&{said} && exec "$0" "$@"', command, *options],
            pass_fds=(heard, said), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        os.close(heard)
        os.close(said)
        self._unread, self._last, self._session = b"", 0, ""
        self.requests: list[str] = []
        """Addresses that the page asked for, of data: addresses none."""
        self.complaints: list[str] = []
        """Exceptions, console errors, and what the browser refused the page."""
        self._open_window()

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it by its process id, and its folder with it."""
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._say)
        os.close(self._hear)
        self._folder.cleanup()

    def show(self, address: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a page in a window of that size, and wait until it is there."""
        self.requests.clear()
        self.complaints.clear()
        self.resize(width, height, dark)
        self.send("Page.navigate", url=address)
        self.until(f"location.href !== 'about:blank' && document.readyState === 'complete' && {has('main > *')}")

    def resize(self, width: int, height: int = 900, dark: bool = False) -> None:
        """A window of another size, on a phone or not, light or dark."""
        phone = width < 500
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, mobile=phone,
            deviceScaleFactor=2 if phone else 1,
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[theme])

    def value(self, expression: str) -> Any:
        """What a JavaScript expression is worth in the page, as JSON; of a promise, what it comes to."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {json.dumps(answer['exceptionDetails'])[:1000]}")
        return answer["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait until a JavaScript expression is true."""
        self._wait(lambda: bool(self.value(f"Boolean({expression})")), expression)

    def screenshot(self, path: Path) -> None:
        """The window, as PNG."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the DevTools protocol, and its answer."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._say, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._next(deadline, method)
            if answer.get("id") != self._last:
                continue
            if "error" in answer:
                raise AssertionError(f"{method}: {answer['error']}")
            result: dict[str, Any] = answer["result"]
            return result

    def _open_window(self) -> None:
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {PATIENCE:.0f} s: {what}; complaints: {self.complaints}")
            self._listen(0.05)

    def _listen(self, seconds: float) -> None:
        """Hear what the page does meanwhile."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and select.select([self._hear], [], [], left)[0]:
            self._read()

    def _next(self, deadline: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._unread:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._hear], [], [], left)[0]:
                raise AssertionError(f"the browser did not answer {what} within {PATIENCE:.0f} s")
            self._fill(what)
        return self._read()

    def _fill(self, what: str) -> None:
        if not (more := os.read(self._hear, 1 << 16)):
            raise AssertionError(f"the browser ended (exit code {self._process.poll()}) at {what}")
        self._unread += more

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            self._fill("a message")
        line, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        """Keep what a page asks for and complains about."""
        method, said = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent" and not said["request"]["url"].startswith("data:"):
            self.requests.append(said["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(said["exceptionDetails"])[:600])
        elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(said["args"])[:600])
        elif method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{said['entry']['text']} {said['entry'].get('url', '')}")


def has(selector: str) -> str:
    """JavaScript that is true if an element is there."""
    return f"document.querySelector({json.dumps(selector)}) !== null"
