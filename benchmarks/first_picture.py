"""How long from `inms-lab lab` to the first live picture: `python benchmarks/first_picture.py`

Starts the real command, opens the page that it names in Chromium, runs all cells, and prints
what the command itself prints. Loopback only.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 120  # seconds

sys.path.insert(0, str(ROOT / "tests"))

import browser  # noqa: E402


def main() -> None:
    """Start, open, run, wait for the line."""
    code = "from inms_lab.cli import main; main()"
    command = [sys.executable, "-c", code, "lab", "--no-browser", "--port=0"]
    command += ["--IdentityProvider.token=first", "--LabApp.expose_app_in_browser=True"]
    with tempfile.NamedTemporaryFile("w+") as out, browser.chromium() as page:
        server = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
        try:
            base = _line(out.name, "http://127.0.0.1:").split()[-1].partition("?")[0]
            page.goto(f"{base}/tree/00_start_here.ipynb?token=first&reset")
            page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
            page.wait_for_timeout(2000)  # until the kernel is there; this counts as a reader's time
            page.evaluate("void window.jupyterapp.commands.execute('notebook:run-all-cells')")
            print(_line(out.name, "ready after"))
            print(_line(out.name, "first live picture after"))
        finally:
            server.terminate()
            server.wait(20)


def _line(path: str, words: str) -> str:
    """The first line with these words, once the command has printed it."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        lines = Path(path).read_text().splitlines()
        found = next((line for line in lines if words in line), None)
        if found:
            return found
        time.sleep(0.1)
    raise SystemExit(f"no line with {words!r} within {PATIENCE} s:\n{Path(path).read_text()}")


if __name__ == "__main__":
    main()
