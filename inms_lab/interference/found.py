"""Samples out of message lists: messages that were seen before, with what stood around them.

A message that a request has in common with an earlier one, but not from the start, is the fragment;
what stands before it is the reader's own context, what follows it the continuation, and what stood
before it where it was seen first is the context of the other agent (`samples.Sample`). In front of
everything stands the public prompt of a lab: the record is encoded behind that alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

from inms_lab.errors import BadInput
from inms_lab.interference.measure import measure
from inms_lab.interference.samples import Sample, Sizes
from inms_lab.interference.variants import FULL, Settings
from inms_lab.model.runner import Runner
from inms_lab.notebook.text import ROLES, Text
from inms_lab.studies.messages import Message, Request

PUBLIC = "Several agents work on one task. What one of them writes, the others may read."
MIN_FRAGMENT, MIN_CONTINUATION = 32, 16  # tokens, turn marks included


def quality_of(
    runner: Runner,
    requests: Sequence[Request],
    fragments: Sequence[tuple[int, int]],
    count: int,
    seed: int = 0,
) -> dict[str, Any]:
    """KL and agreement with full prefill of up to `count` fragments, reused in the ways of
    variants.py: means with the ends of their 95 % bootstrap intervals, and what was cut."""
    if count < 1:
        raise BadInput(f"quality is measured on at least 1 fragment, not {count}")
    sizes, settings = Sizes(), Settings()
    text = Text(runner.tokenizer, runner.stop_tokens)
    samples = samples_of(requests, fragments, text, count, sizes, seed)
    out: dict[str, Any] = {
        "samples": len(samples),
        "seed": seed,
        "cut_to": {"own": sizes.own, "fragment": sizes.fragment, "next": sizes.continuation},
        "mean_tokens": _mean_tokens(samples),
        "variants": {},
    }
    if samples:
        found = measure(runner, samples, settings)
        for name in settings.names:
            both = {what: found.interval(name, what, seed) for what in ("kl", "agreement")}
            out["variants"][name] = {
                what: [round(x, 5) for x in (i.mean, i.low, i.high)] for what, i in both.items()
            }
        del out["variants"][FULL]  # with itself
    return out


def samples_of(
    requests: Sequence[Request],
    fragments: Sequence[tuple[int, int]],
    text: Text,
    count: int,
    sizes: Sizes | None = None,
    seed: int = 0,
) -> list[Sample]:
    """Up to `count` samples, drawn from `fragments` ((request, message) as in `Seen`), in order.

    `sizes` cuts own contexts and fragments to their first tokens. Fragments with too little text,
    with nothing before them or with too little behind them are passed over.
    """
    order = random.Random(seed).sample(list(fragments), len(fragments))
    made = (_sample(requests, r, m, text, sizes or Sizes()) for r, m in order)
    return sorted(islice(filter(None, made), count), key=lambda sample: sample.name)


def _sample(
    requests: Sequence[Request], number: int, place: int, text: Text, sizes: Sizes
) -> Sample | None:
    request = requests[number]
    message = request.messages[place]
    own = _first(text, request.messages[:place], sizes.own)
    whole = _turn(text, message)
    fragment, rest = whole[: sizes.fragment], whole[sizes.fragment :]
    answer = [Message("assistant", request.answer)] if request.answer else []
    later = _first(text, [*request.messages[place + 1 :], *answer], sizes.continuation)
    continuation = [*rest, *later][: sizes.continuation]
    other = _first(text, _before(requests, number, message.text), sizes.own)
    too_little = len(fragment) < MIN_FRAGMENT or len(continuation) < MIN_CONTINUATION
    if too_little or not own or not other:
        return None
    return Sample(
        name=f"{number:06d}/{place}",
        public=tuple(text.encode(PUBLIC, "system")),
        own=tuple(own),
        other=tuple(other),
        fragment=tuple(fragment),
        continuation=tuple(continuation),
    )


def _mean_tokens(samples: Sequence[Sample]) -> dict[str, float]:
    parts = {name: [len(getattr(s, name)) for s in samples] for name in ("own", "fragment")}
    return {name: round(sum(sizes) / max(1, len(sizes)), 1) for name, sizes in parts.items()}


def _before(requests: Sequence[Request], number: int, text: str) -> Sequence[Message]:
    """What stood before this text when it was first read or written."""
    for request in requests[:number]:
        said = [message.text for message in request.messages]
        if text in said:
            return request.messages[: said.index(text)]
        if text == request.answer:
            return request.messages
    return ()


def _first(text: Text, messages: Sequence[Message], count: int) -> list[int]:
    """The first `count` tokens of these turns."""
    turns: Iterator[list[int]] = (_turn(text, message) for message in messages)
    return list(islice(chain.from_iterable(turns), count))


def _turn(text: Text, message: Message) -> list[int]:
    return text.encode(message.text, message.role if message.role in ROLES else "user")
