"""An agent as a notebook sees it: a context of its own, and verbs that become requests.

An agent's program is an `async def` that gets its agent; tools are plain functions, their results
enter the context with `read`. All that an agent reads or writes is private unless it is published.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

import torch

from inms_lab.books import label
from inms_lab.decisions.policy import DEFAULT, GROUP, PRIVATE
from inms_lab.errors import BadInput, SealedTier
from inms_lab.notebook import attaching
from inms_lab.notebook.turn import Turn
from inms_lab.output import Output
from inms_lab.publishing.records import Record
from inms_lab.serving.pending import Pending
from inms_lab.serving.request import Request
from inms_lab.serving.sample import Sampling

if TYPE_CHECKING:
    from inms_lab.notebook.group import Group
    from inms_lab.notebook.lab import Lab


def check_name(name: object) -> str:
    """The name of an agent or a group, if it can be one."""
    if not (isinstance(name, str) and name.isprintable() and name.strip()):
        raise BadInput(f"a printable name is wanted, not {name!r}")
    return name


class Agent:
    """One principal's context. Made by `team.agents(...)` or `lab.agent(...)`."""

    def __init__(
        self, lab: Lab, name: str, seq_id: int, groups: tuple[str, ...], tenant: str = DEFAULT
    ) -> None:
        self.lab, self.name, self.seq_id, self.groups = lab, name, seq_id, groups
        self.tenant = tenant
        self.title = name  # forks of one principal are numbered
        self.error: BaseException | None = None  # what ended its program, if something did
        self.outputs: list[Output] = []
        self.requests: list[Request] = []  # writes, for the time to first token
        self.turn = Turn(lab.text)

    # what it holds --------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """Its state in the lifecycle."""
        return self.lab.engine.ledger.sequences[self.seq_id].state

    @property
    def tokens(self) -> list[int]:
        """The token ids of its whole context."""
        with self.lab.engine.cache.lock:  # between two events, on whatever thread
            return list(self.lab.engine.ledger.sequences[self.seq_id].tokens())

    @property
    def text(self) -> str:
        """Its whole context as text."""
        return self.lab.text.decode(self.tokens)

    def __repr__(self) -> str:
        return f"<agent {self.title}: {self.state}, {len(self.tokens)} tokens>"

    # verbs ----------------------------------------------------------------------------------

    def read(
        self,
        text: str | Sequence[int],
        *,
        role: str | None = "user",
        tier: str = PRIVATE,
        seal: bool = False,
    ) -> Pending[int]:
        """Take `text` (or token ids) into the context, privately; gives the context's length.

        `role` makes it a turn of the model's chat format; None takes the text as it is. `seal`: it
        is a segment of its own: a fragment, if one of its teams has released the same text. (In
        mode global everybody finds everybody's.)
        """
        if tier != PRIVATE:
            raise SealedTier(
                f"an agent cannot write to the {tier} tier: `lab.preload(...)` fills the global "
                "tier before the first agent, `team.publish(text, by=agent)` the group's"
            )
        tokens = self.lab.text.encode(text, role)
        request = Request(self.seq_id, "append", tokens, seal=seal)
        self.turn.close_before(request)
        return self.ask(request)

    def attach(
        self,
        what: Group | Record | str | Sequence[int],
        *,
        tier: str = GROUP,
        group: Group | None = None,
        role: str | None = "user",
        recompute: float | Sequence[int] = 0,
    ) -> Pending[int]:
        """Take shared text into the context: a team's records that it has not read yet, one record,
        or a text of its own, which is offered to the team (`group`, if it is in several) and so
        becomes a record, unless one with the same text is there.

        Mounted by reference: exact where the context so far is what the record was encoded behind,
        else as a fragment at a shift if the gate lets it through, else computed. `recompute`: of a
        fragment its first tokens (a whole number), a share of its blocks (0.15) or the blocks with
        these numbers are computed afresh. Raises `NotAMember`, `RecordSuperseded`, `AgentClosed`.
        """
        return attaching.attach(self, what, tier, group, role, recompute)

    def deviating(self, record: Record, share: float = 0.15) -> list[int]:
        """The numbers of the `share` of a record's blocks whose KV deviates most from what would
        be computed at the end of this context: for `attach(record, recompute=...)`."""
        return attaching.deviating(self, record, share)

    @property
    def outdated(self) -> list[Record]:
        """Records in its context that hold no longer: what replaced them can be attached."""
        return attaching.outdated(self)

    def write(
        self,
        max_tokens: int = 48,
        *,
        role: str | None = "assistant",
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        stop: bool = True,
        on_token: Callable[[str], None] | None = None,
    ) -> Pending[Output]:
        """Generate up to `max_tokens` tokens, privately; greedy unless `temperature` is above 0.

        `stop=False` goes on past the model's end token; `on_token` gets each piece of text.
        """
        if not isinstance(max_tokens, int) or max_tokens < 1:
            raise BadInput(f"max_tokens must be a whole number from 1 on, not {max_tokens!r}")
        if on_token is not None and not callable(on_token):
            raise BadInput(f"on_token must be a function of a piece of text, not {on_token!r}")
        opening = self.lab.text.open_turn(role)
        request = Request(self.seq_id, "write", opening, count=max_tokens)
        self.turn.close_before(request)
        request.sampling = Sampling(temperature, top_p, seed)
        request.stop_tokens = self.lab.text.stop_tokens if stop else frozenset()
        if on_token is not None:
            request.on_token = self.lab.text.pieces(on_token)
        self.requests.append(request)

        def finish(tokens: list[int]) -> Output:
            ended = tokens[-1] in self.lab.text.stop_tokens
            out = Output.of(self.lab.text.decode(tokens[:-1] if ended else tokens), tokens)
            self.outputs.append(out)
            return out

        self.turn.open_with(request, role)
        return self.ask(request, finish)

    async def stream(self, max_tokens: int = 48, **options: object) -> AsyncIterator[str]:
        """`write`, piece by piece: `async for piece in me.stream(): ...`"""
        queue: asyncio.Queue[str | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def put(piece: str | None) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, piece)

        pending = self.write(max_tokens, on_token=put, **options)  # type: ignore[arg-type]
        pending.future.add_done_callback(lambda _: put(None))
        waiter = asyncio.ensure_future(_await(pending))
        while (piece := await queue.get()) is not None:
            yield piece
        await waiter

    def next_logits(self) -> Pending[torch.Tensor]:
        """Logits [vocab] of the next token, float32; nothing is written."""
        return self.ask(Request(self.seq_id, "logits"))

    def rewrite(self, old: str, new: str) -> Pending[None]:
        """Replace the first `old` in its context by `new`, for this agent only.

        The block that the edit goes through is copied on write; what follows is computed again, as
        this agent's own text: a record in it is none any longer, and can be attached again.
        """
        return self.lab.driver.call(lambda: self._rewrite(old, new))

    def _rewrite(self, old: str, new: str) -> Pending[None]:
        for segment in self.lab.engine.ledger.sequences[self.seq_id].segments:
            text = self.lab.text.decode(segment.tokens)
            if old and old in text:
                edited = self.lab.text.encode(text.replace(old, new, 1), None)
                same = _common(segment.tokens, edited)
                request = Request(self.seq_id, "rewrite", edited[same:])
                request.start = segment.first_position + same
                request.count = len(segment.tokens) - same
                return self.ask(request)
        raise BadInput(f"{old!r} is in no single segment of {self.name}'s context")

    def rollback(self, num_tokens: int) -> Pending[None]:
        """Forget the last `num_tokens` tokens."""
        if not isinstance(num_tokens, int) or num_tokens < 0:
            raise BadInput(f"a number of tokens to drop is wanted, not {num_tokens!r}")

        def forget(_: None) -> None:
            self.turn.ended = None

        return self.ask(Request(self.seq_id, "rollback", drop=num_tokens), forget)

    def fork(self) -> Pending[Agent]:
        """Another sequence of the same principal with the same context; no block is copied yet."""

        def child(seq_id: int) -> Agent:
            other = Agent(self.lab, self.name, seq_id, self.groups, self.tenant)
            other.turn.ended = self.turn.ended
            return self.lab.adopt(other)

        return self.ask(Request(self.seq_id, "fork"), child)

    def close(self) -> Pending[None]:
        """End it: its private blocks go back at once."""
        return self.ask(Request(self.seq_id, "close", cause="closed"))

    # ----------------------------------------------------------------------------------------

    @property
    def clearance(self) -> label.Label:
        """What it may hold."""
        return label.join(label.private(self.name), *map(label.group, self.groups))

    def ask(self, request: Request, then: Callable | None = None) -> Pending:  # type: ignore[type-arg]
        """Submit a request; the pending gives its answer, or what `then` makes of it."""
        pending = Pending(self.lab.driver, request.future, then)  # first: `then` runs on its thread
        self.lab.submit(request)
        return pending


async def _await(pending: Pending[Output]) -> Output:
    return await pending


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix, at least one token short of `b`'s end."""
    pairs = zip(a, b, strict=False)
    return min(next((i for i, (x, y) in enumerate(pairs) if x != y), len(b)), max(0, len(b) - 1))
