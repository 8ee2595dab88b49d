"""Filling the global tier: the sealed prompt that every agent of the lab starts with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from inms_lab.books.label import PUBLIC
from inms_lab.decisions.outcome import StepReport
from inms_lab.decisions.policy import DEFAULT
from inms_lab.errors import BadInput, InmsError
from inms_lab.publishing.records import Prompt

if TYPE_CHECKING:
    from inms_lab.notebook.tenants import Tenant


def preload(tenant: Tenant, system: str | Sequence[int], tools: Any, progress: bool) -> None:
    """Encode, seal and hold a system prompt and tools, with a progress bar when it takes long."""
    lab = tenant.lab
    if tenant.agents:
        raise BadInput("preload before the first agent: contexts that exist do not change")
    texts = [lab.text.encode(system, "system")]
    if not tenant.prompts and lab.text.chat is not None and isinstance(system, str):
        texts[0] = [*lab.text.encode(lab.text.chat.start), *texts[0]]
    if tools is not None:
        ids = isinstance(tools, (list, tuple)) and len(tools) > 0 and isinstance(tools[0], int)
        ready = isinstance(tools, str) or ids
        texts.append(lab.text.encode(tools if ready else json.dumps(tools), "system"))
    lab.driver.refuse_inside("preload")
    prompts, holder, future = lab.driver.call(lambda: _submit(tenant, texts))
    if future is not None:
        total = sum(map(len, texts))
        with tqdm(total=total, desc="preload", unit="token", disable=not progress, delay=1) as bar:

            def show(report: StepReport) -> None:
                bar.update(sum(chunk.num_written for chunk in report.chunks))

            with lab.watching(show):
                try:
                    lab.driver.drive_sync(future)
                except InmsError as error:  # nobody starts with half a prompt
                    cause = str(error)
                    lab.driver.call(lambda: lab.engine.end(holder, "fail", cause))
                    raise
    tenant.prompts.extend(prompts)


def _submit(tenant: Tenant, texts: list[list[int]]) -> tuple[list[Prompt], int, Future[Any] | None]:
    lab, engine = tenant.lab, tenant.lab.engine
    for tokens in texts:
        engine.check(tokens)
    prompts = [Prompt(tuple(tokens), engine.log.add_tokens(tokens)[0]) for tokens in texts]
    live = (s for s in engine.ledger.holders() if s.kind == "prompt" and s.is_live)
    ours = (s.seq_id for s in live if s.tenant == tenant.name)
    holder, needed = next(ours, None), list(prompts)
    if holder is None:  # the first, or one failed: what was sealed before it is found again
        holder, needed = _register(tenant), [*tenant.prompts, *prompts]
    future = None
    if engine.policy.encodes_prompts:
        for prompt in needed:
            future = lab.submit(prompt.request(holder)).future
    return prompts, holder, future


def _register(tenant: Tenant) -> int:
    own = "" if tenant.name == DEFAULT else f"{tenant.name}/"
    return tenant.lab.engine.register("prompt", f"{own}prompt", PUBLIC, tenant.name)
