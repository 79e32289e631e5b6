"""Chromium without a window, spoken to over two pipes: its own protocol, and nothing to install."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
LAUNCH = """import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""The browser reads from descriptor 3 and writes to descriptor 4."""
PATIENCE = 60.0
"""Seconds that an answer may take on a busy machine."""


def find() -> str | None:
    """The browser of this machine, if there is one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """A tab: what it is told to do, and what it has told so far."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._buffer = b""
        self._count = 0
        self._session: str | None = None
        self.told: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Does one thing and returns what came of it."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._writing, data) :]
        until = time.monotonic() + PATIENCE
        while True:
            answer = self._read(until)
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.told.append(answer)

    def _read(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._reading], [], [], max(0.0, until - time.monotonic()))
            data = os.read(self._reading, 2**20) if ready else b""
            if not data:
                raise RuntimeError("the browser did not answer")
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found

    def evaluate(self, expression: str) -> Any:
        """The value of some JavaScript, waited for if it is promised."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"])
        return found["result"].get("value")

    def open(self, path: Path, width: int, *, dark: bool = False, height: int = 900) -> float:
        """Loads a file at a width and returns the seconds until it had drawn itself."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media="", features=scheme)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.told.clear()
        began = time.monotonic()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.evaluate(
            "new Promise(done => document.readyState === 'complete' ? done() : "
            "addEventListener('load', done))"
        )
        self.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)))")
        return time.monotonic() - began

    def complaints(self) -> list[str]:
        """Errors and warnings of the console and of the page's own policy, and exceptions."""
        found = []
        for each in self.told:
            text = json.dumps(each.get("params"))[:1000]
            match each.get("method"):
                case "Runtime.exceptionThrown":
                    found.append(text)
                case "Runtime.consoleAPICalled" if each["params"]["type"] in ("error", "warning"):
                    found.append(text)
                case "Log.entryAdded" if each["params"]["entry"]["level"] in ("error", "warning"):
                    found.append(text)
        return found

    def requests(self) -> list[str]:
        """Addresses of all that was asked for since the page was opened."""
        sent = [each for each in self.told if each.get("method") == "Network.requestWillBeSent"]
        return [each["params"]["request"]["url"] for each in sent]

    def click(self, selector: str) -> None:
        """Clicks as a person does; a browser refuses several downloads that nobody asked for."""
        expression = f"document.querySelector({json.dumps(selector)}).click()"
        found = self.call("Runtime.evaluate", expression=expression, userGesture=True)
        assert "exceptionDetails" not in found, found

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Presses the mouse at one place of the window, moves it to another and releases it."""
        for kind, (x, y) in (("Pressed", start), ("Moved", end), ("Released", end)):
            held: dict[str, Any] = {"button": "left", "buttons": 1, "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **held)

    def download(self, selector: str, folder: Path) -> Path:
        """Clicks and returns the file that comes of it."""
        self.call(
            "Browser.setDownloadBehavior",
            behavior="allow",
            downloadPath=str(folder.resolve()),
            eventsEnabled=True,
        )
        seen = len(self.told)
        self.click(selector)
        until, name = time.monotonic() + PATIENCE, ""
        while True:
            if seen == len(self.told):
                self.told.append(self._read(until))
            event, seen = self.told[seen], seen + 1
            if event.get("method") == "Browser.downloadWillBegin":
                name = event["params"]["suggestedFilename"]
            elif event.get("method") == "Browser.downloadProgress":
                state = event["params"]["state"]
                assert state != "canceled", name
                if state == "completed":
                    return folder / name

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        found = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def pdf(self, path: Path) -> None:
        """Prints the page."""
        found = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        path.write_bytes(base64.b64decode(found["data"]))


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are out of the way of descriptors 3 and 4."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return high[0], high[1]


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A page of a browser that keeps what it needs in a folder and ends with the block."""
    program = find()
    assert program is not None
    (to_browser, from_here), (to_here, from_browser) = _pipe(), _pipe()
    words = [
        program,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={folder}",
        "--remote-debugging-pipe",
    ]
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", LAUNCH, str(to_browser), str(from_browser), *words],
        pass_fds=(to_browser, from_browser),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        page = Page(to_here, from_here)
        yield page
        page._session = None
        page.call("Browser.close")
    finally:
        os.close(from_here)
        os.close(to_here)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
