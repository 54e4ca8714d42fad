"""A headless Chromium, driven over its DevTools protocol through a pipe.

The protocol: one JSON object a message, each ended by a zero byte. The browser reads from file
descriptor 3 and writes to 4 (``--remote-debugging-pipe``).
"""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any, Self

CHROMIUM = Path("/usr/bin/chromium")
PATIENCE = 60
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--remote-debugging-pipe"),
)


class Browser:
    """One page. What it logs as an error, and every address that it asks for, is noted.

    Args:
        profile: an empty folder for the browser's files.
        size: of the window, in pixels.
    """

    def __init__(self, profile: Path, *, size: tuple[int, int] = (1400, 800)) -> None:
        self.errors: list[str] = []
        self.requested: list[str] = []
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        # The shell gives the descriptors the numbers that the browser expects.
        script = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        window = f"--window-size={size[0]},{size[1]}"
        command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", window, "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._count, self._session = b"", 0, ""
        targets = self.call("Target.getTargets")["targetInfos"]
        (page,) = (target["targetId"] for target in targets if target["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._to)  # the browser ends with its pipe
        try:
            self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._from)

    def call(self, method: str, **params: object) -> Any:
        """Ask the browser, and give its answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._note(answer)

    def _receive(self) -> Any:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            left = until - time.monotonic()
            assert left > 0, "the browser does not answer"
            if select.select([self._from], [], [], left)[0]:
                data = os.read(self._from, 1 << 20)
                assert data, "the browser has ended"
                self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: Any) -> None:
        match event["method"], event["params"]:
            case "Runtime.exceptionThrown", params:
                details = params["exceptionDetails"]
                thrown = details.get("exception", {}).get("description", details["text"])
                self.errors.append(thrown)
            case "Log.entryAdded", {"entry": {"level": "error", "text": text}}:
                self.errors.append(text)
            case "Network.requestWillBeSent", {"request": {"url": url}}:
                self.requested.append(url)
            case _:
                pass

    def open(self, address: str, *, ready: str = "true") -> None:
        """Load a page and wait until an expression holds in it."""
        self.call("Page.navigate", url=address)
        self.wait(ready)

    def wait(self, expression: str) -> None:
        """Wait until an expression holds."""
        until = time.monotonic() + PATIENCE
        while not self.evaluate(f"Boolean({expression})"):
            assert time.monotonic() < until, f"never true: {expression}; errors: {self.errors}"
            time.sleep(0.05)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; of a promise, what it comes to."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, **more: object) -> None:
        """``Moved``, ``Pressed``, ``Released`` or ``Wheel`` at a point of the window."""
        self.call("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        """A click with the left button."""
        for kind in ("Pressed", "Released"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def key(self, key: str) -> None:
        """Press a key and let it go."""
        text = key if len(key) == 1 else ""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def prefer(self, scheme: str) -> None:
        """Prefer ``dark`` or ``light`` pages."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self) -> bytes:
        """What is seen, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])
