"""The exported page as a file: small, whole or absent, and without anybody's private text.

What a browser makes of it is test_offline.py's.
"""

from __future__ import annotations

import gzip
import json
import logging
import re
from array import array
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_widgets import dry_lab, work
from typer.testing import CliRunner

from inms_lab import Lab, cli
from inms_lab.errors import BadInput
from inms_lab.logs.log import Log
from inms_lab.terminal.scenario import texts
from inms_widgets import Dashboard, export
from inms_widgets.export import export_html, page


@pytest.fixture
def lab() -> Iterator[Lab]:
    with dry_lab() as lab:
        work(lab)
        yield lab


def inside(html: str) -> tuple[dict[str, Any], list[array[int]]]:
    """What the page carries: the message, and its tables of events and tokens."""
    found = re.search(r'<script type="application/octet-stream" id="log">([^<]*)</script>', html)
    assert found is not None
    data = gzip.decompress(b64decode(found.group(1)))
    head = int.from_bytes(data[:4], "little")
    message = json.loads(data[4 : 4 + head])
    at, tables = 4 + head, []
    for size in message["sizes"]:
        tables.append(array("i", data[at : at + size]))
        at += size
    return message, tables


@pytest.mark.model
@pytest.mark.slow
def test_the_demos_page_is_small_and_tells_no_private_text(tmp_path: Path) -> None:
    path = tmp_path / "demo.html"
    args = ["demo", "--scale", "0.02", "--own-texts", "--html", str(path)]
    out = CliRunner().invoke(cli.app, args)
    assert out.exit_code == 0, out.output
    html = path.read_text("utf-8")
    assert len(html.encode()) < 2_000_000
    message, (_, tokens, _) = inside(html)
    pieces = {
        number: b64decode(text).decode("utf-8", "replace") for number, text in message["pieces"]
    }
    told = "".join(pieces[token] if token >= 0 else "\n" for token in tokens)
    own = texts()
    assert own.system[:100] in told  # the prompt is everybody's
    assert own.decisions[0][:40] in told  # and so is what was published
    everything = html + told + json.dumps(message)
    secrets = [*own.private.values(), *own.task.values()]
    for text in secrets:
        for line in filter(lambda line: len(line) > 25, text.splitlines()):
            assert line[:25] not in everything, line
    assert not re.search(r"https?://(?!www\.w3\.org/)", html)


def test_a_page_that_would_be_too_large_is_refused_and_nothing_is_written(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pytorch#176290: a trace of a gigabyte crashes the browser."""
    monkeypatch.setattr(export, "MOST_BYTES", 10_000)
    with pytest.raises(BadInput, match="MiB, more than"):
        export_html(lab.log, tmp_path / "run.html")
    assert list(tmp_path.iterdir()) == []


def test_wrong_options_are_named(lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="redact is one of"):
        export_html(lab.log, tmp_path / "run.html", redact="some")
    with pytest.raises(BadInput, match="en and zh"):
        export_html(lab.log, tmp_path / "run.html", lang="fr")
    assert list(tmp_path.iterdir()) == []


def test_a_title_and_names_cannot_put_code_into_the_page() -> None:
    evil = "</script><script>alert(1)</script>"
    with dry_lab() as lab:
        lab.agent(evil).read([1] * 20).result()
        html = page(lab.log, title=evil, redact="nothing")
    assert html.count("<script") == 2  # the log, and the code
    assert "alert(1)</script>" not in html


def test_the_default_is_to_mask_and_each_level_masks_more(lab: Lab) -> None:
    seen = {}
    for level in ("nothing", "private", "all"):
        _, (_, tokens, _) = inside(page(lab.log, redact=level))
        seen[level] = [token for token in tokens if token >= 0]
    prompt, record = set(range(40)) | set(range(50, 80)), {7}
    assert set(seen["private"]) == prompt | record
    assert seen["all"] == []
    assert len(seen["nothing"]) > len(seen["private"])
    assert page(lab.log) == page(lab.log, redact="private")


def test_a_page_of_a_running_lab_is_a_page_of_one_moment(lab: Lab, tmp_path: Path) -> None:
    dash = Dashboard(lab)
    agent = lab.agent("late")
    pending = agent.write(300, role=None, stop=False) if agent.read([1]).result() else None
    lab.controls.run()
    path = dash.export_html(tmp_path / "run.html")
    message, tables = inside(path.read_text("utf-8"))
    assert message["from"] == 0
    assert len(tables[0]) > 100
    assert pending is not None
    pending.result()
    dash.close()


def test_a_short_runs_page_has_each_decision_in_the_other_modes_too(lab: Lab) -> None:
    message, _ = inside(page(lab.log))
    found = message["about"]["whatif"]
    assert set(found) == {str(number) for number in range(len(lab.log.decisions))}
    for sides in found.values():
        assert [side["other"]["mode"] for side in sides] == ["independent", "global"]
        assert all(side["real"]["mode"] == "inms" for side in sides)


def test_an_empty_log_and_one_that_was_cut_off_have_pages(lab: Lab) -> None:
    assert inside(page(Log()))[0]["explained"] == []
    lab.driver.call(lambda: lab.log.forget(60))
    message, tables = inside(page(lab.log, redact="nothing"))
    assert message["from"] == 60
    assert message["hasKeyframe"]
    assert tables[2]


def test_the_refcount_logger_says_cause_and_agent(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="inms_lab.refcount"), dry_lab() as lab:
        lab.agent("backend").read([1] * 20).result()
    lines = [record.message for record in caplog.records if record.name == "inms_lab.refcount"]
    assert any("backend" in line and "0 -> 1" in line for line in lines), lines
    assert any("1 -> 0" in line and "close" in line for line in lines), lines
