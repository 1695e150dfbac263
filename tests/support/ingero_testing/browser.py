"""Drives a real headless browser with the DevTools protocol over a pipe: no driver, no port."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LAUNCH = """
import os, sys
ends = [os.dup2(int(end), 100 + place) for place, end in enumerate(sys.argv[1:3])]
for place, end in enumerate(ends):
    os.dup2(end, 3 + place)
os.execv(sys.argv[3], sys.argv[3:])
"""
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_browser() -> str | None:
    """Path of an installed browser, or `None`."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """A running browser."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._buffer = b""
        self._number = 0

    def call(
        self,
        method: str,
        *,
        session: str = "",
        note: Callable[[dict[str, Any]], None] | None = None,
        seconds: float = 60.0,
        **parameters: Any,
    ) -> Any:
        """One command of the protocol and its result; `note` gets the session's events until then."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + seconds
        while True:
            answer = self._receive(deadline, method)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            if note and answer.get("sessionId") == session:
                note(answer)

    def _receive(self, deadline: float, method: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._reading], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise AssertionError(f"the browser does not answer {method}")
            part = os.read(self._reading, 1 << 20)
            if not part:
                raise AssertionError("the browser is gone")
            self._buffer += part
        raw, self._buffer = self._buffer.split(b"\0", 1)
        found: dict[str, Any] = json.loads(raw)
        return found

    @contextlib.contextmanager
    def page(self) -> Iterator["Page"]:
        """A new tab that shares nothing with others; it is closed with the block."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        try:
            yield Page(self, context)
        finally:
            self.call("Target.disposeBrowserContext", browserContextId=context)


class Page:
    """One tab."""

    def __init__(self, browser: Browser, context: str) -> None:
        self._browser = browser
        self.complaints: list[str] = []
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """One command of the protocol for this tab, and its result."""
        return self._browser.call(method, session=self._session, note=self._note, **parameters)

    def _note(self, event: dict[str, Any]) -> None:
        """Record errors of the page and requests to other hosts."""
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.complaints.append(str(details.get("exception", {}).get("description", details["text"])))
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.complaints.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
        elif event.get("method") == "Network.requestWillBeSent":
            url = parameters["request"]["url"]
            if not url.startswith(("http://127.0.0.1:", "data:", "about:")):
                self.complaints.append(f"asked for {url}")

    def size(self, width: int, height: int, phone: bool = False, dark: bool = False) -> None:
        """Set the size of a window or a phone."""
        scale = 2 if phone else 1
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url: str) -> None:
        """Open a URL."""
        self.call("Page.navigate", url=url)
        self.wait(f"location.href === {url!r} && document.readyState === 'complete'", url)

    def run(self, script: str) -> Any:
        """The value of an expression; promises are awaited."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise AssertionError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait(self, script: str, what: str, seconds: float = 60.0, feed: Callable[[], None] | None = None) -> None:
        """Wait, bounded, until an expression is true; `feed` is called meanwhile."""
        deadline = time.monotonic() + seconds
        while not self.run(script):
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {seconds} s for {what}; the page complains of {self.complaints}")
            if feed:
                feed()
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """Press and release a key."""
        text = {"Enter": "\r"}.get(key, "")
        code = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}.get(key, 0)
        event: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        typed: dict[str, Any] = {"text": text} if text else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **event, **typed)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def screenshot(self, file: Path, whole: bool = True) -> None:
        """Save a screenshot."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(found["data"]))

    def pixels(self, file: Path) -> NDArray[np.float64]:
        """The window as colours from 0 to 1, shape (height, width, 3), from a screenshot kept in a file."""
        from matplotlib.image import imread  # half a second, for the tests that look at pixels

        self.screenshot(file, whole=False)
        return np.asarray(imread(file), dtype=float)[:, :, :3]


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Start a new browser; it ends with the block."""
    program = find_browser()
    assert program, "no browser is installed"
    to_browser, from_us = os.pipe()
    from_browser, to_us = os.pipe()

    # The browser expects the pipe at file descriptors 3 and 4; `LAUNCH` moves ours there.
    command = [
        sys.executable, "-c", LAUNCH, str(to_browser), str(to_us), program, "--headless=new", "--no-sandbox",
        "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run", "--disable-extensions",
        "--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={folder / 'profile'}",
    ]  # fmt: skip
    with (folder / "browser.log").open("wb") as log:
        process = subprocess.Popen(
            command, pass_fds=(to_browser, to_us), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env={**os.environ, "HOME": str(folder)},
        )  # fmt: skip
    os.close(to_browser)
    os.close(to_us)
    try:
        yield Browser(from_browser, from_us)
    finally:
        os.close(from_us)
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(from_browser)
