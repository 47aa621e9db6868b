"""Headless Chromium behind chromedriver, by its HTTP protocol (https://www.w3.org/TR/webdriver2/)."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

_ANY_PORT = "ChromeDriver was started successfully on port "
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--no-first-run", "--force-color-profile=srgb"),
)
_TIMEOUT_S = 60.0
# Requests that stay inside of the page.
_INLINE = ("data:", "blob:", "about:")


def missing_browser() -> str | None:
    """Return why no browser can be started, None if one can."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"needs {' and '.join(missing)} (Debian: apt-get install chromium chromium-driver)" if missing else None


@dataclass(frozen=True)
class LoadedPage:
    """Console messages and requests of a page since it was opened."""

    messages: list[str]
    requests: list[str]  # addresses, without the page itself and data inside of it


class Browser:
    """One tab of a browser."""

    def __init__(self, address: str) -> None:
        self._address = address
        options = {"args": list(_FLAGS), "binary": shutil.which("chromium")}
        capabilities = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        answer = self._post("/session", {"capabilities": {"alwaysMatch": capabilities}})
        self._session = f"/session/{answer['sessionId']}"
        self._url = ""
        self.command("Network.enable")

    def open(self, path: Path, *, width: int = 1280, height: int = 900, is_dark: bool = False) -> None:
        """Open a file in a window of this width."""
        phone = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.command("Emulation.setDeviceMetricsOverride", **phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])
        self.loaded()  # empties the logs
        self._url = path.resolve().as_uri()
        self._post(f"{self._session}/url", {"url": self._url})

    def run(self, script: str, *arguments: object) -> Any:
        """Return the result of JavaScript with `return`; a promise is awaited."""
        return self._post(f"{self._session}/execute/sync", {"script": script, "args": list(arguments)})

    def command(self, name: str, **parameters: object) -> Any:
        return self._post(f"{self._session}/goog/cdp/execute", {"cmd": name, "params": parameters})

    def press(self, key: str, *, code: int) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.command("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def loaded(self) -> LoadedPage:
        messages = [entry["message"] for entry in self._log("browser")]
        events = [json.loads(entry["message"])["message"] for entry in self._log("performance")]
        addresses = [
            event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"
        ]
        return LoadedPage(messages, [url for url in addresses if url != self._url and not url.startswith(_INLINE)])

    def screenshot(self, path: Path, *, is_whole_page: bool = True) -> None:
        picture = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole_page)
        path.write_bytes(base64.b64decode(picture["data"]))

    def close(self) -> None:
        self._request("DELETE", self._session, None)

    def _log(self, kind: str) -> list[dict[str, str]]:
        return self._post(f"{self._session}/se/log", {"type": kind})

    def _post(self, path: str, content: object) -> Any:
        return self._request("POST", path, content)

    def _request(self, method: str, path: str, content: object) -> Any:
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self._address + path, data, method=method)
        request.add_header("Content-Type", "application/json")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=_TIMEOUT_S) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise RuntimeError(json.load(cast(Any, error))["value"]["message"]) from None


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Start a driver on a free port, and yield a browser."""
    driver = subprocess.Popen(
        ["chromedriver", "--port=0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    try:
        assert driver.stdout is not None
        line = next(line for line in driver.stdout if line.startswith(_ANY_PORT))
        browser = Browser(f"http://127.0.0.1:{int(line.removeprefix(_ANY_PORT).rstrip('.' + chr(10)))}")
        try:
            yield browser
        finally:
            browser.close()
    finally:
        driver.terminate()
        driver.communicate()
