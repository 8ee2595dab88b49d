"""An agent as a notebook sees it: a context of its own, and verbs that become requests.

An agent's program is an `async def` that gets its agent; tools are plain functions, their results
enter the context with `read`. All that an agent reads or writes is private unless it is published.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

import torch

from inms_lab import label
from inms_lab.driver import Pending
from inms_lab.errors import BadInput, NotAMember, SealedTier
from inms_lab.policy import PRIVATE
from inms_lab.request import Request
from inms_lab.sample import Sampling

if TYPE_CHECKING:
    from inms_lab.group import Group
    from inms_lab.lab import Lab


class Output(str):
    """Generated text; `tokens` are its token ids, which a publication keeps."""

    tokens: list[int]

    @classmethod
    def of(cls, text: str, tokens: list[int]) -> Output:
        """Text with its tokens."""
        out = cls(text)
        out.tokens = tokens
        return out


class Agent:
    """One principal's context. Made by `team.agents(...)` or `lab.agent(...)`."""

    def __init__(self, lab: Lab, name: str, seq_id: int, groups: tuple[str, ...]) -> None:
        self.lab, self.name, self.seq_id, self.groups = lab, name, seq_id, groups
        self.error: BaseException | None = None  # what ended its program, if something did
        self.outputs: list[Output] = []
        self.requests: list[Request] = []  # writes, for the time to first token
        self._attached: set[int] = set()
        self._open_turn: bool | None = None  # a turn to close first; True: it ended by itself

    # what it holds --------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """Its state in the lifecycle."""
        return self.lab.engine.ledger.sequences[self.seq_id].state

    @property
    def tokens(self) -> list[int]:
        """The token ids of its whole context."""
        return list(self.lab.engine.ledger.sequences[self.seq_id].tokens())

    @property
    def text(self) -> str:
        """Its whole context as text."""
        return self.lab.text.decode(self.tokens)

    def __repr__(self) -> str:
        return f"<agent {self.name}: {self.state}, {len(self.tokens)} tokens>"

    # verbs ----------------------------------------------------------------------------------

    def read(
        self, text: str | Sequence[int], *, role: str | None = "user", tier: str = PRIVATE
    ) -> Pending[int]:
        """Take `text` (or token ids) into the context, privately; gives the context's length.

        `role` makes it a turn of the model's chat format; None takes the text as it is.
        """
        if tier != PRIVATE:
            raise SealedTier(
                f"an agent cannot write to the {tier} tier: `lab.preload(...)` fills the global "
                "tier before the first agent, `team.publish(text, by=agent)` the group's"
            )
        tokens = self.lab.text.encode(text, role)
        return self._ask(Request(self.seq_id, "append", [*self._close_turn(), *tokens]))

    def attach(self, team: Group) -> Pending[int]:
        """Take the team's records that it has not read yet into the context.

        Mounted by reference where the records' context is this agent's so far, else computed.
        """
        if team.name not in self.groups:
            raise NotAMember(f"{self.name} is not in {team.name}: make it with its `agents(...)`")
        pending = None
        for record in team.records:
            if record.seq_id not in self._attached:
                self._attached.add(record.seq_id)
                request = Request(self.seq_id, "append", record.tokens, "group", team.name)
                request.seal, request.record, request.offset = True, record.seq_id, record.offset
                pending = self._ask(request)
        return pending or self._done(len(self.tokens))

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
        if max_tokens < 1:
            raise BadInput(f"max_tokens must be at least 1, not {max_tokens}")
        opening = [*self._close_turn(), *self.lab.text.open_turn(role)]
        request = Request(self.seq_id, "write", opening, count=max_tokens)
        request.sampling = Sampling(temperature, top_p, seed)
        request.stop_tokens = self.lab.text.stop_tokens if stop else frozenset()
        if on_token is not None:
            request.on_token = self.lab.text.pieces(on_token)
        self.requests.append(request)
        self._open_turn = False if role else None

        def finish(tokens: list[int]) -> Output:
            ended = tokens[-1] in self.lab.text.stop_tokens
            if self._open_turn is not None:
                self._open_turn = ended
            out = Output.of(self.lab.text.decode(tokens[:-1] if ended else tokens), tokens)
            self.outputs.append(out)
            return out

        return self._ask(request, finish)

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
        return self._ask(Request(self.seq_id, "logits"))

    def rewrite(self, old: str, new: str) -> Pending[None]:
        """Replace the first `old` in its context by `new`, for this agent only.

        The block that the edit goes through is copied on write; what follows is computed again.
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
                return self._ask(request)
        raise BadInput(f"{old!r} is in no single segment of {self.name}'s context")

    def rollback(self, num_tokens: int) -> Pending[None]:
        """Forget the last `num_tokens` tokens."""
        keep = len(self.tokens) - num_tokens
        if num_tokens < 0 or keep < 0:
            raise BadInput(f"{self.name} has {len(self.tokens)} tokens, not {num_tokens} to drop")
        return self._ask(Request(self.seq_id, "rollback", count=keep))

    def fork(self) -> Pending[Agent]:
        """Another sequence of the same principal with the same context; no block is copied yet."""

        def child(seq_id: int) -> Agent:
            other = Agent(self.lab, self.name, seq_id, self.groups)
            other._attached, other._open_turn = set(self._attached), self._open_turn
            return self.lab.adopt(other)

        return self._ask(Request(self.seq_id, "fork"), child)

    def close(self) -> Pending[None]:
        """End it: its private blocks go back at once."""
        return self._ask(Request(self.seq_id, "close", cause="closed"))

    # ----------------------------------------------------------------------------------------

    @property
    def clearance(self) -> label.Label:
        """What it may hold."""
        return label.join(label.private(self.name), *map(label.group, self.groups))

    def _close_turn(self) -> list[int]:
        ended, self._open_turn = self._open_turn, None
        return [] if ended is None else self.lab.text.close_turn(ended)

    def _ask(self, request: Request, then: Callable | None = None) -> Pending:  # type: ignore[type-arg]
        self.lab.submit(request)
        return Pending(self.lab.driver, request.future, then)

    def _done(self, value: int) -> Pending[int]:
        request = Request(self.seq_id, "append")
        request.future.set_result(value)
        return Pending(self.lab.driver, request.future)


async def _await(pending: Pending[Output]) -> Output:
    return await pending


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix, at least one token short of `b`'s end."""
    pairs = zip(a, b, strict=False)
    return min(next((i for i, (x, y) in enumerate(pairs) if x != y), len(b)), max(0, len(b) - 1))
