"""A real JupyterLab in a real browser, for tests and for the picture in the README.

The server listens on the loopback address only, works on a copy of the labs, and keeps its settings
in a folder of its own; the browser is the machine's Chromium, without its background traffic.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import ConsoleMessage, Page, sync_playwright

from inms_lab.terminal.doctor import find_chromium

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM_FLAGS = (
    *("--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
)
COMMANDS = "window.jupyterapp.commands"
PANEL = "window.jupyterapp.shell.currentWidget"
NOTEBOOK, KERNEL = f"{PANEL}.content", f"{PANEL}?.sessionContext?.session?.kernel"
# Text of the dashboards that is cut off, too small to read, or lies outside its frame.
CLASHES = """() => [...document.querySelectorAll('.inms-dash')].flatMap(dash => {
  const frame = dash.getBoundingClientRect(), found = [];
  for (const node of dash.querySelectorAll('*')) {
    const box = node.getBoundingClientRect(), words = node.textContent.trim().slice(0, 30);
    if (!box.width || !words || node.closest('.inms-say, pre, svg')) continue;
    if (box.left < frame.left - 1 || box.right > frame.right + 1)
      found.push(`${words} leaves the frame`);
    const own = [...node.childNodes].some(c => c.nodeType === 3 && c.textContent.trim());
    if (own && parseFloat(getComputedStyle(node).fontSize) < 11)
      found.push(`${words} is too small`);
  }
  return found;
})"""
REFS = """least => [...document.querySelectorAll('.inms-dash')].some(dash => dash.hub &&
  [...dash.hub.state().pools.values()].some(pool => pool.refs.some(n => n >= least)))"""
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}


@contextmanager
def jupyterlab(folder: Path) -> Iterator[str]:
    """A server on a copy of the labs in `folder`; gives its address with the token."""
    shutil.copytree(ROOT / "labs", folder / "labs")
    own = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    _write_settings(folder / "settings")
    environment = os.environ | {name: str(folder / path) for name, path in own.items()}
    environment["OMP_NUM_THREADS"] = "1"  # as fast for so small a model, calm on a busy machine
    port, token = _free_port(), "inms-test"
    flags = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "ServerApp.root_dir": folder / "labs",
        "IdentityProvider.token": token,
        "LabApp.expose_app_in_browser": True,
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += [f"--{name}={value}" for name, value in flags.items()]
    log = folder / "server.log"
    with log.open("w") as out:
        server = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
    try:
        base = f"http://127.0.0.1:{port}"
        _wait_for(f"{base}/api/status?token={token}", server, log)
        yield f"{base}/lab/tree/{{notebook}}?token={token}&reset"
    finally:
        server.terminate()  # it shuts its kernels down
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()


def _write_settings(folder: Path) -> None:
    """No question about news, which would lie over the notebook."""
    plugin = folder / "@jupyterlab" / "apputils-extension"
    plugin.mkdir(parents=True)
    quiet = {"fetchNews": "false", "checkForUpdates": False}
    (plugin / "notification.jupyterlab-settings").write_text(json.dumps(quiet))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(
    address: str, server: subprocess.Popen[bytes], log: Path, seconds: float = 60
) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            assert server.poll() is None, log.read_text()
            time.sleep(0.1)
    raise AssertionError(f"no answer within {seconds} s\n{log.read_text()}")


@contextmanager
def chromium(**context: Any) -> Iterator[Page]:
    """A page of the machine's Chromium."""
    path = find_chromium()
    assert path is not None, "no Chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(path), args=[*CHROMIUM_FLAGS])
        try:
            yield browser.new_page(**context)
        finally:
            browser.close()


class LabPage:
    """A notebook in JupyterLab; `errors` are those of the page's console, and uncaught ones."""

    def __init__(self, page: Page, address: str, notebook: str) -> None:
        self.page = page
        self.errors: list[str] = []
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.goto(address.format(notebook=notebook))
        page.wait_for_function("window.jupyterapp !== undefined", timeout=60_000)
        page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=60_000)

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} ({message.location.get('url')})")

    def command(self, name: str, **options: Any) -> None:
        """One of JupyterLab's own commands."""
        self.page.evaluate(
            f"window.jupyterapp.commands.execute({json.dumps(name)}, {json.dumps(options)})"
        )

    def run_all(self) -> None:
        """Start all cells, as the Run menu does; does not wait for them."""
        self.page.wait_for_function(f"{KERNEL}?.status === 'idle'", timeout=60_000)
        self.page.evaluate(f"void {COMMANDS}.execute('notebook:run-all-cells')")

    def run_above(self, index: int) -> None:
        """Start the cells before cell `index`; does not wait for them."""
        self.page.wait_for_function(f"{KERNEL}?.status === 'idle'", timeout=60_000)
        self.page.evaluate(f"{NOTEBOOK}.activeCellIndex = {index}")
        self.page.evaluate(f"void {COMMANDS}.execute('notebook:run-all-above')")

    def wait_until_run(self, seconds: float = 120) -> None:
        """Until no cell waits or runs any more."""
        prompts = "[...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')]"
        idle = f"{KERNEL}.status === 'idle' && !{prompts}.some(p => p.textContent.includes('*'))"
        self.page.wait_for_function(idle, timeout=1000 * seconds)

    def scroll_to(self, index: int) -> None:
        """Put cell `index` at the top."""
        self.page.evaluate(f"{NOTEBOOK}.widgets[{index}].node.scrollIntoView()")
        self.page.wait_for_timeout(700)

    def theme(self, name: str) -> None:
        """Light or dark."""
        self.command("apputils:change-theme", theme=THEMES[name])
        self.page.wait_for_timeout(700)

    def tidy(self) -> None:
        """Room for the notebook: no file browser."""
        self.command("application:toggle-left-area")

    def wait_for_refcount(self, least: int, seconds: float = 120) -> None:
        """Until a live view shows a block with so many holders."""
        self.page.wait_for_function(REFS, arg=least, timeout=1000 * seconds)

    def clashes(self) -> list[str]:
        """Words of live views that leave their frame or are too small to read."""
        return list(self.page.evaluate(CLASHES))
