"""How a model's chat template dresses a turn, learned from the template itself.

The lab puts conversations together turn by turn, each turn its own segment with its own label, so
it needs the text around *one* turn. Templates only render whole conversations, and some add things
of their own (a default system prompt, a mark at the very start). So a few conversations of marker
words are rendered once, and what stands between the markers is cut at the turns' borders.

Not here: tokens. Text inside a turn is used as it is, also where a template would strip its spaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_MARKS = tuple(f"qzmark{letter}zq" for letter in "abcd")


@dataclass(frozen=True, slots=True)
class _Turn:
    """What a template writes before and after the text of one turn."""

    before: str
    after: str


_PLAIN = _Turn("", "\n")


class ChatFormat:
    """The pieces of text around each role's turn; make one with `ChatFormat.of(tokenizer)`.

    A tokenizer without a (usable) chat template gives plain text: each turn ends in a newline, and
    nothing opens or closes it. A role that the template rejects or ignores is written as a user's.
    """

    def __init__(self, template: _Template | None) -> None:
        self._template = template
        self._turns: dict[str, _Turn] = {}
        self._opening = self._eos = self._start = ""
        if template is not None:
            self._learn(template)

    @classmethod
    def of(cls, tokenizer: Any) -> ChatFormat:
        """Learn the format of a transformers tokenizer; renders a handful of tiny conversations."""
        if getattr(tokenizer, "chat_template", None):
            template = _Template(tokenizer)
            if template.gaps("user", "assistant", "user") is not None:
                return cls(template)
        return cls(None)

    @property
    def is_plain(self) -> bool:
        """Whether turns are plain text because there is no chat template."""
        return self._template is None

    @property
    def start(self) -> str:
        """What stands once before a conversation's first turn (a beginning mark), often nothing."""
        return self._start

    def wrap(self, role: str, text: str) -> str:
        """Return one complete turn as it stands in the middle of a conversation."""
        turn = self._turn(role)
        return turn.before + text + turn.after

    def open_turn(self, role: str = "assistant") -> str:
        """Return what stands before a turn's text; for the assistant, the generation prompt."""
        return self._opening if role == "assistant" else self._turn(role).before

    def close_turn(self, ended_by_eos: bool) -> str:
        """Return what must follow generated text to close the assistant's turn.

        `ended_by_eos`: the model has produced its end-of-sequence token itself, so that only what
        comes after that token is missing.
        """
        if self.is_plain:
            return ""
        after = self._turn("assistant").after
        has_mark = ended_by_eos and self._eos and self._eos in after
        return after.partition(self._eos)[2] if has_mark else after

    def _learn(self, template: _Template) -> None:
        chat = template.gaps("user", "assistant", "user")
        assert chat is not None, "of() admits no other template"
        self._opening = template.generation_prompt()
        self._eos = template.eos
        user_end, assistant_start = _cut(chat[1], template.ending("user"), self._opening)
        assistant_end, user_start = _cut(chat[2], template.ending("user", "assistant"), chat[0])
        self._turns["user"] = _Turn(user_start, user_end)
        self._turns["assistant"] = _Turn(assistant_start, assistant_end)
        # A beginning mark that also opens every turn belongs to the turns (as in SmolLM2).
        if chat[0].startswith(template.bos) and not user_start.startswith(template.bos):
            self._start = template.bos

    def _turn(self, role: str) -> _Turn:
        if self._template is None:
            return _PLAIN
        if role not in self._turns:
            self._turns[role] = self._find(role, self._template) or self._turns["user"]
        return self._turns[role]

    def _find(self, role: str, template: _Template) -> _Turn | None:
        """Render the role in the middle, else at the front; None if it has no turn of its own."""
        assistant_end = self._turns["assistant"].after
        for neighbour in ("user", "assistant"):  # templates differ in who may follow
            gaps = template.gaps("user", "assistant", role, neighbour)
            next_start = self._turns[neighbour].before
            if gaps and gaps[2].startswith(assistant_end) and gaps[3].endswith(next_start):
                before = gaps[2].removeprefix(assistant_end)
                return _Turn(before, gaps[3].removesuffix(next_start))
        gaps = template.gaps(role, "user")
        next_start = self._turns["user"].before
        # A system text that the template folds into the user's turn leaves no border to find.
        if gaps and next_start and gaps[1].endswith(next_start):
            before = gaps[0].removeprefix(self._start)
            return _Turn(before, gaps[1].removesuffix(next_start))
        return None


class _Template:
    """A tokenizer's chat template, asked about conversations of marker words."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.bos = str(tokenizer.bos_token or "")
        self.eos = str(tokenizer.eos_token or "")

    def gaps(self, *roles: str) -> list[str] | None:
        """Return the texts before, between and after the turns' markers.

        None if the template rejects such a conversation, or leaves out, repeats or moves a turn.
        """
        rest = self._render(roles)
        gaps = []
        for mark in _MARKS[: len(roles)]:
            if rest is None or rest.count(mark) != 1:
                return None
            gap, _, rest = rest.partition(mark)
            gaps.append(gap)
        return None if rest is None else [*gaps, rest]

    def ending(self, *roles: str) -> str:
        """Return what follows the last turn of a conversation, which may close more than a turn."""
        gaps = self.gaps(*roles)
        return gaps[-1] if gaps else ""

    def generation_prompt(self) -> str:
        """Return what `add_generation_prompt` adds after a user's turn."""
        without, prompted = self._render(["user"]), self._render(["user"], prompted=True)
        if without is None or prompted is None:
            return ""
        # Some templates end a conversation by an end mark, but not when a prompt follows.
        for shown in (without, without.removesuffix(self.eos)):
            if prompted.startswith(shown):
                return prompted.removeprefix(shown)
        return ""

    def _render(self, roles: Sequence[str], *, prompted: bool = False) -> str | None:
        turns = zip(roles, _MARKS, strict=False)
        messages = [{"role": role, "content": mark} for role, mark in turns]
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=prompted
                )
            )
        except Exception:  # a template is its author's program: whatever it raises means no
            return None


def _cut(gap: str, ending: str, opening: str) -> tuple[str, str]:
    """Cut the text between two turns into what closes the first and what opens the second.

    `ending` is what follows the first turn when it is the last one, `opening` a text that ends as
    the second turn's opening does. The ending decides, unless the template writes more at the end.
    """
    if ending and gap.startswith(ending):
        return ending, gap.removeprefix(ending)
    border = len(gap)
    while border > 0 and opening.endswith(gap[border - 1 :]):
        border -= 1
    return gap[:border], gap[border:]
