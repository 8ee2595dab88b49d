"""Turns taken out of a chat template, put together again, must be what the template writes."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from inms_lab.model.chat import ChatFormat
from inms_lab.model.source import resolve

# Small templates, each with one habit of real ones.
INJECTS_SYSTEM = (
    "{% for m in messages %}"
    "{% if loop.first and m.role != 'system' %}<|a|>system\nBe kind.<|z|>\n{% endif %}"
    "<|a|>{{ m.role }}\n{{ m.content }}<|z|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|a|>assistant\n{% endif %}"
)
BEGINS_ONCE_AND_STRIPS = (
    "{{ bos_token }}"
    "{% for m in messages %}[{{ m.role }}]\n\n{{ m.content | trim }}<|z|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]\n\n{% endif %}"
)
STRICT = (
    "{{ bos_token }}"
    "{% for m in messages %}"
    "{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('no such role') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('order') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}"
    "{% endfor %}"
)
SYSTEM_ONLY_IN_FRONT = (
    "{{ bos_token }}"
    "{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('too late') }}{% endif %}"
    "({{ m.role }}: {{ m.content }})\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}(assistant: {% endif %}"
)
FOLDS_SYSTEM = (
    "{% set ns = namespace(system='') %}"
    "{% for m in messages %}"
    "{% if m.role == 'system' %}{% set ns.system = m.content + '\n\n' %}"
    "{% else %}<u>{{ m.role }}\n{{ ns.system }}{{ m.content }}</u>\n"
    "{% set ns.system = '' %}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<u>assistant\n{% endif %}"
)
THINKS_IN_THE_LAST_TURN = (
    "{% for m in messages %}"
    "<|a|>{{ m.role }}\n"
    "{% if loop.last and m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content }}<|z|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|a|>assistant\n{% endif %}"
)
ENDS_BY_EOS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% else %}{{ eos_token }}{% endif %}"
)
IGNORES_TOOLS = (
    "{% for m in messages %}"
    "{% if m.role == 'user' %}U: {{ m.content }}\n"
    "{% elif m.role == 'assistant' %}A: {{ m.content }}\n"
    "{% elif m.role == 'system' %}S: {{ m.content }}\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}A: {% endif %}"
)
DATES_THE_FIRST_SYSTEM = (
    "{% for m in messages %}[{{ m.role }}]"
    "{% if loop.first and m.role == 'system' %}Today is Monday.\n\n{% endif %}"
    "{{ m.content }}<|z|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
TOOL_BETWEEN_ASSISTANTS = (
    "{% for m in messages %}"
    "{% if m.role != 'assistant' and not loop.first and messages[loop.index0 - 1].role == 'tool' %}"
    "{{ raise_exception('order') }}{% endif %}"
    "{% if m.role == 'tool' and (loop.first or messages[loop.index0 - 1].role != 'assistant') %}"
    "{{ raise_exception('order') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}<|z|>{% endfor %}"
)
TOOL_BEFORE_USER = TOOL_BETWEEN_ASSISTANTS.replace("{% if m.role != 'a", "{% if m.role == 'a")
HAS_NO_USER = (
    "{% for m in messages %}{% if m.role == 'poet' %}{{ m.content }}{% endif %}{% endfor %}"
)


def tokenizer_with(template: str | None, *, bos: str = "<s>", eos: str = "<|z|>") -> Any:
    core = Tokenizer(models.WordLevel({"<s>": 0, "<|z|>": 1, "?": 2}, unk_token="?"))
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=bos, eos_token=eos, unk_token="?", chat_template=template
    )


def render(tokenizer: Any, *turns: tuple[str, str], prompted: bool = True) -> str:
    messages = [{"role": role, "content": text} for role, text in turns]
    return str(
        tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompted)
    )


CONVERSATION = (
    ("user", "two plus two"),
    ("assistant", "four"),
    ("user", "and one more\n\nplease"),
)


@pytest.fixture(scope="session")
def smollm_tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(resolve(progress=False))


@pytest.mark.parametrize(
    "template",
    [
        *(BEGINS_ONCE_AND_STRIPS, STRICT, SYSTEM_ONLY_IN_FRONT, FOLDS_SYSTEM),
        *(THINKS_IN_THE_LAST_TURN, ENDS_BY_EOS, IGNORES_TOOLS, DATES_THE_FIRST_SYSTEM),
    ],
)
def test_a_conversation_of_turns_is_the_templates_conversation(template: str) -> None:
    tokenizer = tokenizer_with(template)
    chat = ChatFormat.of(tokenizer)
    together = chat.start + "".join(chat.wrap(*turn) for turn in CONVERSATION) + chat.open_turn()
    assert together == render(tokenizer, *CONVERSATION)


@pytest.mark.parametrize(
    "template", [INJECTS_SYSTEM, BEGINS_ONCE_AND_STRIPS, SYSTEM_ONLY_IN_FRONT, IGNORES_TOOLS]
)
def test_a_system_turn_in_front_is_the_templates(template: str) -> None:
    tokenizer = tokenizer_with(template)
    chat = ChatFormat.of(tokenizer)
    turns = (("system", "Be brief."), *CONVERSATION)
    together = chat.start + "".join(chat.wrap(*turn) for turn in turns) + chat.open_turn()
    assert together == render(tokenizer, *turns)


def test_the_injected_system_prompt_never_appears() -> None:
    chat = ChatFormat.of(tokenizer_with(INJECTS_SYSTEM))
    assert chat.wrap("user", "hi") == "<|a|>user\nhi<|z|>\n"
    assert chat.wrap("system", "S") == "<|a|>system\nS<|z|>\n"
    assert (chat.start, chat.open_turn("user")) == ("", "<|a|>user\n")


def test_what_only_the_first_turn_gets_is_not_in_the_turn() -> None:
    chat = ChatFormat.of(tokenizer_with(DATES_THE_FIRST_SYSTEM))
    assert chat.wrap("system", "S") == "[system]S<|z|>"


@pytest.mark.parametrize("template", [TOOL_BETWEEN_ASSISTANTS, TOOL_BEFORE_USER])
def test_a_tool_turn_is_found_between_the_neighbours_that_the_template_allows(
    template: str,
) -> None:
    chat = ChatFormat.of(tokenizer_with(template))
    assert chat.wrap("tool", "42") == "[tool]42<|z|>"


def test_a_beginning_mark_stands_once_in_start_and_in_no_turn() -> None:
    chat = ChatFormat.of(tokenizer_with(SYSTEM_ONLY_IN_FRONT))
    assert chat.start == "<s>"
    assert chat.wrap("system", "S") == "(system: S)\n"


def test_a_beginning_mark_that_opens_every_turn_stays_in_the_turns() -> None:
    chat = ChatFormat.of(tokenizer_with(INJECTS_SYSTEM, bos="<|a|>"))
    assert (chat.start, chat.wrap("user", "hi")) == ("", "<|a|>user\nhi<|z|>\n")


def test_the_middle_of_a_conversation_has_no_marks_of_the_last_turn() -> None:
    chat = ChatFormat.of(tokenizer_with(THINKS_IN_THE_LAST_TURN))
    assert chat.wrap("assistant", "four") == "<|a|>assistant\nfour<|z|>\n"
    chat = ChatFormat.of(tokenizer_with(ENDS_BY_EOS))
    assert chat.wrap("assistant", "four") == "<assistant>four</assistant>"
    assert chat.open_turn() == "<assistant>"


@pytest.mark.parametrize("template", [STRICT, FOLDS_SYSTEM, IGNORES_TOOLS])
def test_a_role_without_a_turn_of_its_own_is_written_as_the_users(template: str) -> None:
    chat = ChatFormat.of(tokenizer_with(template))
    role = "tool" if template is IGNORES_TOOLS else "system"
    assert chat.wrap(role, "42") == chat.wrap("user", "42")
    assert "42" in chat.wrap(role, "42")


def test_a_turn_that_ended_itself_gets_only_the_rest() -> None:
    chat = ChatFormat.of(tokenizer_with(INJECTS_SYSTEM))
    assert chat.close_turn(ended_by_eos=False) == "<|z|>\n"
    assert chat.close_turn(ended_by_eos=True) == "\n"
    # The template closes by another mark than the token the model stopped at: all of it is missing.
    other = ChatFormat.of(tokenizer_with(INJECTS_SYSTEM, eos="<s>"))
    assert other.close_turn(ended_by_eos=True) == "<|z|>\n"


def test_opened_and_closed_text_is_the_wrapped_turn() -> None:
    chat = ChatFormat.of(tokenizer_with(BEGINS_ONCE_AND_STRIPS))
    opened = chat.open_turn() + "four" + chat.close_turn(ended_by_eos=False)
    assert opened == chat.wrap("assistant", "four")


@pytest.mark.parametrize("template", [None, "", HAS_NO_USER])
def test_without_a_usable_template_turns_are_lines_of_plain_text(template: str | None) -> None:
    chat = ChatFormat.of(tokenizer_with(template))
    assert chat.is_plain
    assert chat.wrap("system", "S") + chat.wrap("user", "U") == "S\nU\n"
    assert [chat.start, chat.open_turn(), chat.open_turn("user")] == ["", "", ""]
    assert [chat.close_turn(True), chat.close_turn(False)] == ["", ""]


def test_text_with_braces_and_markers_is_kept_as_it_is() -> None:
    chat = ChatFormat.of(tokenizer_with(BEGINS_ONCE_AND_STRIPS))
    text = " {{ bos_token }} {% if %} qzmarkazq <|z|> "
    assert chat.wrap("user", text) == f"[user]\n\n{text}<|z|>"


@pytest.mark.model
def test_smollm_turns_are_the_templates(smollm_tokenizer: Any) -> None:
    chat = ChatFormat.of(smollm_tokenizer)
    turns = (("system", "Be brief."), ("user", "Hi"), ("tool", "[1]"), ("assistant", "Hello"))
    for num_turns in range(1, 5):
        together = "".join(chat.wrap(*turn) for turn in turns[:num_turns])
        assert together == render(smollm_tokenizer, *turns[:num_turns], prompted=False)
        assert together + chat.open_turn() == render(smollm_tokenizer, *turns[:num_turns])
    assert not chat.is_plain


@pytest.mark.model
def test_smollm_user_turn_brings_no_default_system_prompt(smollm_tokenizer: Any) -> None:
    assert "helpful AI assistant" in render(smollm_tokenizer, ("user", "Hi"))
    chat = ChatFormat.of(smollm_tokenizer)
    assert chat.wrap("user", "Hi") == "<|im_start|>user\nHi<|im_end|>\n"
    assert (chat.start, chat.close_turn(True), chat.close_turn(False)) == ("", "\n", "<|im_end|>\n")


@pytest.mark.model
def test_smollm_tokens_of_turns_joined_are_the_tokens_of_the_whole(smollm_tokenizer: Any) -> None:
    chat = ChatFormat.of(smollm_tokenizer)
    turns = (("system", "Be brief."), ("user", "Count:\n\n1"), ("assistant", "  2"))
    parts = [chat.wrap(*turn) for turn in turns]
    joined = [token for part in parts for token in smollm_tokenizer(part)["input_ids"]]
    assert joined == smollm_tokenizer("".join(parts))["input_ids"]
