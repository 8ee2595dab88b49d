"""Filling the global tier: the sealed prompt that every agent of the lab starts with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from inms_lab.errors import BadInput
from inms_lab.label import PUBLIC
from inms_lab.outcome import StepReport
from inms_lab.request import Request

if TYPE_CHECKING:
    from inms_lab.lab import Lab


@dataclass(frozen=True, slots=True)
class Prompt:
    """A sealed part of the global tier: its tokens and their place in the token table."""

    tokens: tuple[int, ...]
    offset: int

    def request(self, seq_id: int) -> Request:
        """Take it into a holder's context."""
        return Request(seq_id, "append", self.tokens, "global", offset=self.offset, seal=True)


def preload(lab: Lab, system: str | Sequence[int], tools: Any, progress: bool) -> None:
    """Encode, seal and hold a system prompt and tools, with a progress bar when it takes long."""
    if lab.agents:
        raise BadInput("preload before the first agent: contexts that exist do not change")
    texts = [lab.text.encode(system, "system")]
    if not lab.prompts and lab.text.chat is not None and isinstance(system, str):
        texts[0] = [*lab.text.encode(lab.text.chat.start), *texts[0]]
    if tools is not None:
        ready = isinstance(tools, str) or (len(tools) > 0 and isinstance(tools[0], int))
        texts.append(lab.text.encode(tools if ready else json.dumps(tools), "system"))
    future = lab.driver.call(lambda: _submit(lab, texts))
    if future is None:
        return
    total = sum(map(len, texts))
    with tqdm(total=total, desc="preload", unit="token", disable=not progress, delay=1) as bar:

        def show(report: StepReport) -> None:
            bar.update(sum(chunk.num_written for chunk in report.chunks))

        with lab.watching(show):
            lab.driver.drive_sync(future)


def _submit(lab: Lab, texts: list[list[int]]) -> Future[Any] | None:
    engine = lab.engine
    for tokens in texts:
        engine.check(tokens)
    holders = (s.seq_id for s in engine.ledger.sequences.values() if s.kind == "prompt")
    seq_id = next(holders, None)
    if seq_id is None:
        seq_id = engine.register("prompt", "prompt", PUBLIC)
    future = None
    for tokens in texts:
        prompt = Prompt(tuple(tokens), engine.log.add_tokens(tokens)[0])
        lab.prompts.append(prompt)
        if engine.policy.encodes_prompts:
            future = lab.submit(prompt.request(seq_id)).future
    return future
