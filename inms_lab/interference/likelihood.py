"""How likely a model finds each of some answers: behind many contexts, in one forward."""

from __future__ import annotations

from collections.abc import Sequence

from inms_lab.errors import BadInput
from inms_lab.interference.compare import surprise
from inms_lab.interference.contexts import Part, Scratch


def log_likelihoods(
    scratch: Scratch, contexts: Sequence[Sequence[Part]], answers: Sequence[Sequence[int]]
) -> list[list[float]]:
    """log p in nats of each answer's tokens, behind each context: [contexts, answers].

    Answers that begin with the same tokens share the forward of these.
    """
    if not all(answers):
        raise BadInput("an answer has at least one token")
    beginnings = list(dict.fromkeys(tuple(answer[:-1]) for answer in answers))
    for context in contexts:
        for beginning in beginnings:
            scratch.ask(beginning, context)
    logits = iter(scratch.compute())
    out = []
    for _ in contexts:
        rows = {beginning: next(logits) for beginning in beginnings}
        out.append([-float(surprise(rows[tuple(a[:-1])], a).sum()) for a in answers])
    return out
