"""Opening JupyterLab on the first lab, and saying how long it took to the first live picture."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from inms_lab.errors import BadInput
from inms_lab.model.source import resolve

FIRST = "00_start_here.ipynb"
# No announcements and no search for updates: a lab needs no network once it is set up.
QUIET = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}
}
MARKER = "INMS_LAB_FIRST_PICTURE"  # a file that the first live picture touches


def find_labs() -> Path:
    """The folder with the labs: in the working directory, else beside the package's sources."""
    for folder in (Path.cwd() / "labs", Path(__file__).resolve().parents[2] / "labs"):
        if (folder / FIRST).is_file():
            return folder
    raise BadInput(f"there is no labs/{FIRST} here: run this in the project's folder")


def open_lab(arguments: list[str]) -> int:
    """Fetch the model if it is not there, then run JupyterLab until it is stopped.

    Prints how long it took until everything was ready, and until the first live picture was drawn
    (counted from the command, or from `INMS_LAB_STARTED`, seconds since the epoch, if that is set).
    """
    started = float(os.environ.get("INMS_LAB_STARTED", time.time()))
    notebook = find_labs() / FIRST
    resolve("smollm2-135m")
    print(f"ready after {time.time() - started:.1f} s; opening {notebook.name}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        marker = Path(folder) / "first-picture"
        settings = Path(folder) / "overrides.json"
        settings.write_text(json.dumps(QUIET))
        flags = [f"--LabApp.app_settings_dir={folder}"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            flags.append("--allow-root")
        command = [sys.executable, "-m", "jupyterlab", *flags, *arguments, str(notebook)]
        # Threads that wait must not spin: the browser needs the cores too.
        environment = {"OMP_WAIT_POLICY": "passive", **os.environ, MARKER: str(marker)}
        server = subprocess.Popen(command, env=environment)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the server goes with us
        try:
            while server.poll() is None:
                time.sleep(0.2)
                if marker.exists():
                    seconds = marker.stat().st_mtime - started
                    print(f"first live picture after {seconds:.1f} s", flush=True)
                    break
            return server.wait()
        except KeyboardInterrupt:
            return server.wait()
        finally:
            server.terminate()
            server.wait()


def first_picture() -> None:
    """Called by a view when it has drawn a running lab for the first time."""
    marker = os.environ.get(MARKER)
    if marker and Path(marker).parent.is_dir():
        Path(marker).touch(exist_ok=True)
