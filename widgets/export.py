"""One offline page of a log: the same browser code, the log compressed, the whole scrubber.

Private text is left out unless asked for: the log is redacted first (inms_lab/logs/redact.py), and
only then is anything made of it. The page loads nothing from anywhere.
"""

from __future__ import annotations

import gzip
import json
import os
from base64 import b64encode
from html import escape
from pathlib import Path
from typing import Any

from inms_lab.errors import BadInput
from inms_lab.logs.log import Log
from inms_lab.logs.logfile import REDACT
from inms_lab.logs.redact import redacted

from . import esm
from .answers import Answers
from .feed import Feed, Position
from .frames import snapshot_at
from .picture import render_html
from .words import strings, teller

MOST_BYTES = 64 << 20  # of a page; a browser takes more, a mail or a course page does not
MOST_WHAT_IFS = 60  # decisions up to which each is planned in the other modes too
MOST_EXPLAINED = 2000  # decisions whose checks are put into the page: the newest

PAGE = """<!doctype html>
<html lang="{lang}"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline';
 style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>body{{margin:0 auto;padding:12px;max-width:1880px;background:#0d121b;color:#dfe5ef;
font:15px system-ui,sans-serif}}h1{{font-size:1.15rem;margin:4px 0 10px}}{css}</style></head>
<body><h1>{title}</h1><p>{note}</p><div id="inms"></div>
<noscript>{fallback}</noscript>
<script type="application/octet-stream" id="log">{data}</script>
<script type="module">{esm}
offline(document.getElementById("inms"), document.getElementById("log").textContent, {options});
</script></body></html>
"""


def page(
    log: Log,
    *,
    redact: str = "private",
    lang: str = "en",
    projector: bool = False,
    title: str = "INMS Lab",
) -> str:
    """The page. `redact`: what is masked, "private" (all but prompts and what was published),
    "all" or "nothing"."""
    tell = teller(lang)
    if redact not in REDACT:
        raise BadInput(f"redact is one of {', '.join(REDACT)}, not {redact!r}")
    keep, shown = REDACT[redact], log.copy()  # a running lab may go on meanwhile
    if keep is not None:
        shown = redacted(shown, keep)
    data = b64encode(gzip.compress(_packed(shown), 9, mtime=0)).decode()
    source = esm.esm(offline=True).replace("</script", "<\\/script")
    options = {"lang": lang, "projector": bool(projector), "strings": strings()}
    out = PAGE.format(
        lang="zh-Hans" if lang == "zh" else "en",
        title=escape(title),
        note=escape(" ".join((tell(f"export_{redact}"), log.note)).strip()),
        css=esm.css(),
        fallback=render_html(snapshot_at(shown), lang),
        data=data,
        esm=source,
        options=json.dumps(options, ensure_ascii=False),
    )
    if len(out) > MOST_BYTES:
        raise BadInput(
            f"the page would have {len(out) / 2**20:.0f} MiB, more than {MOST_BYTES >> 20}: "
            "save the log with log.save(...) and open it with View(path), or export a shorter run"
        )
    return out


def export_html(log: Log, path: str | Path, **options: Any) -> Path:
    """Write the page to a file, all of it or nothing."""
    text, target = page(log, **options), Path(path)
    part = target.with_name(target.name + ".part")
    part.write_text(text, "utf-8")
    os.replace(part, target)
    return target


def _packed(log: Log) -> bytes:
    feed, answers = Feed(log), Answers(log)
    message = feed.next(Position(), None)
    newest = log.decisions_since(log.first_decision)[-MOST_EXPLAINED:]
    message.content["explained"] = [answers.explain(decided, n) for n, decided in newest]
    about = {"sources": answers.sources()}
    if len(newest) <= MOST_WHAT_IFS:
        about["whatif"] = {number: answers.what_ifs(decided) for number, decided in newest}
    message.content["about"] = log.about | about
    return message.packed()
