"""The bill: every formula against explicit counting, every size against a real model's."""

from __future__ import annotations

import io
import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inms_lab.errors import BadInput
from inms_lab.sizes import parse_bytes, parse_tokens
from inms_lab.studies import bill, bill_table
from inms_lab.studies.bill import from_config
from inms_lab.studies.bill_table import Question

GIB = 1024**3
LLAMA_7B: dict[str, Any] = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "intermediate_size": 11008,
    "torch_dtype": "float16",
}
SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "intermediate_size": 48,
    "dtype": "float32",
}


# --- one token, one model --------------------------------------------------------------------


def test_a_7b_model_without_grouped_queries_takes_512_kib_a_token() -> None:
    assert bill.kv_bytes_per_token(32, 32, 128, 2) == 512 * 1024
    assert from_config(LLAMA_7B).kv_bytes_per_token == 512 * 1024


def test_grouped_queries_divide_the_bill() -> None:
    assert from_config({**LLAMA_7B, "num_key_value_heads": 8}).kv_bytes_per_token == 128 * 1024


def test_head_dim_of_the_config_wins_over_hidden_by_heads() -> None:
    assert from_config(SMALL).head_dim == 8
    assert from_config({**SMALL, "head_dim": 16}).kv_bytes_per_token == 2 * 2 * 2 * 16 * 4


def test_dtype_is_read_in_both_spellings_and_can_be_replaced() -> None:
    assert from_config({**LLAMA_7B, "torch_dtype": "torch.bfloat16"}).dtype == "bfloat16"
    assert from_config({**LLAMA_7B, "dtype": "float32"}).dtype_bytes == 4
    assert from_config(LLAMA_7B, dtype="int8").kv_bytes_per_token == 256 * 1024


def test_a_nested_text_config_is_read() -> None:
    nested = {"model_type": "some_vl", "hidden_size": 7, "dtype": "float32", "text_config": SMALL}
    assert from_config(nested) == from_config(SMALL)


@pytest.mark.parametrize("key", [*SMALL])
def test_missing_keys_are_named(key: str) -> None:
    config = {k: v for k, v in SMALL.items() if k != key}
    if key == "num_key_value_heads":
        assert from_config(config).num_kv_heads == config["num_attention_heads"]
        return
    with pytest.raises(BadInput, match=f"lacks {key};"):
        from_config(config)


def test_all_missing_keys_are_named_at_once() -> None:
    with pytest.raises(BadInput) as refused:
        from_config({"n_layer": 12, "n_embd": 768})
    assert "lacks num_hidden_layers, hidden_size, num_attention_heads, vocab" in str(refused.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive whole number, got 0"),
        ({"num_key_value_heads": 2.5}, "num_key_value_heads must be a positive whole number"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"hidden_size": 33}, "no multiple of 4 heads"),
        ({"dtype": "float7"}, "unknown dtype float7; known are float64"),
        ({"kv_lora_rank": 512}, "kv_lora_rank: this model's cache is not keys and values"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
    ],
)
def test_configs_that_the_formula_does_not_fit_are_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        from_config({**SMALL, **change})


def test_a_config_that_is_no_object_is_refused() -> None:
    with pytest.raises(BadInput, match="holds an object, got list"):
        from_config([])  # type: ignore[arg-type]


def test_a_sliding_window_is_noted_only_where_it_is_used() -> None:
    assert "window of 512" in from_config({**SMALL, "sliding_window": 512}).notes[0]
    unused = {**SMALL, "sliding_window": 512, "use_sliding_window": False}
    assert from_config(unused).notes == ()


def test_weights_of_published_models_to_the_parameter() -> None:
    assert from_config(LLAMA_7B).num_params == 6_738_415_616
    assert from_config(LLAMA_7B).weights_bytes == 2 * 6_738_415_616
    smollm2 = {
        "num_hidden_layers": 30,
        "hidden_size": 576,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "intermediate_size": 1536,
        "tie_word_embeddings": True,
        "dtype": "float32",
    }
    assert from_config(smollm2).num_params == 134_515_008
    assert from_config(smollm2).kv_bytes_per_token == 45 * 1024


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("kind", "head_dim"), [("Llama", 8), ("Qwen2", 8), ("Qwen3", 16)])
def test_the_estimate_is_within_two_per_cent_of_the_real_model(
    kind: str, head_dim: int, tied: bool
) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sizes = {k: v for k, v in SMALL.items() if k != "dtype"}
    sizes |= {"tie_word_embeddings": tied}
    sizes |= {"head_dim": head_dim} if kind != "Qwen2" else {}
    config = getattr(transformers, f"{kind}Config")(**sizes)
    with torch.device("meta"):
        model = getattr(transformers, f"{kind}ForCausalLM")(config)
    real = sum(p.numel() for p in {id(p): p for p in model.parameters()}.values())
    estimate = from_config(config.to_dict(), dtype="float32").num_params
    assert estimate is not None
    assert estimate == real if kind == "Llama" else 0 <= real - estimate <= 0.02 * real


def test_weights_of_a_model_with_experts_are_not_guessed() -> None:
    experts = from_config({**SMALL, "num_local_experts": 8})
    assert experts.kv_bytes_per_token == from_config(SMALL).kv_bytes_per_token
    assert "experts" in experts.notes[0]
    with pytest.raises(BadInput, match="--weights 15GiB"):
        _ = experts.weights_bytes


# --- sharing ---------------------------------------------------------------------------------

agents = st.integers(1, 40)
lengths = st.integers(0, 3000)


def test_the_worked_examples() -> None:
    assert bill.independent_bytes(8, 16384, 512 * 1024) == 64 * GIB
    assert bill.shared_bytes(8, 16384, 0.6, 512 * 1024) / GIB == pytest.approx(30.4, abs=1e-12)
    assert bill.shared_bytes(3, 8192, 0.5625, 512 * 1024) == 7.5 * GIB
    assert bill.saving(3, 0.5625) == 0.375


@given(agents, lengths, lengths, st.integers(1, 512))
def test_the_smooth_formulas_are_a_count_of_tokens(n: int, common: int, own: int, s: int) -> None:
    length = common + own
    if length == 0:
        return
    p = Fraction(common, length)
    alone = sum(length * s for _ in range(n))
    held = common * s + sum(own * s for _ in range(n))
    assert bill.independent_bytes(n, length, s) == alone
    assert bill.shared_bytes(n, length, p, s) == held
    assert bill.saving(n, p) == pytest.approx(1 - held / alone)
    assert bill.saving(n, p) <= p


@given(
    st.lists(lengths, max_size=4),
    st.lists(st.lists(lengths, max_size=3), min_size=1, max_size=5),
    st.integers(1, 300),
)
def test_blocks_are_counted_as_a_table_would_hold_them(
    shared: list[int], own: list[list[int]], block_size: int
) -> None:
    """Against filling blocks token by token, and against the smooth formula plus empty slots."""

    def blocks(length: int) -> int:
        count, room = 0, 0
        for _ in range(length):
            if room == 0:
                count, room = count + 1, block_size
            room -= 1
        return count

    got = bill.block_bill(shared, own, block_size, 8)
    private = sum(blocks(n) for lengths_ in own for n in lengths_)
    assert got.shared_blocks == sum(map(blocks, shared)) + private
    assert got.independent_blocks == len(own) * sum(map(blocks, shared)) + private
    tokens = sum(shared) + sum(map(sum, own))
    assert got.shared_bytes == (tokens + got.shared_empty) * 8
    tokens_alone = len(own) * sum(shared) + sum(map(sum, own))
    assert got.independent_bytes == (tokens_alone + got.independent_empty) * 8
    assert got.shared_empty < block_size * (len(shared) + sum(map(len, own)) + 1)


def test_the_main_job_at_full_size_saves_exactly_37_5_per_cent() -> None:
    got = bill.block_bill([2048, 1536, 1024], [[3456 + 128]] * 3, 256, 512 * 1024)
    assert (got.independent_blocks, got.shared_blocks) == (96, 60)
    assert (got.independent_bytes, got.shared_bytes) == (12 * GIB, 7.5 * GIB)
    assert (got.saving, got.shared_empty) == (0.375, 0)


def test_the_difference_to_the_smooth_formula_is_explained() -> None:
    got = bill.block_bill([10], [[1], [16]], 16, 4)
    assert (got.shared_blocks, got.shared_empty, got.independent_empty) == (3, 21, 27)
    assert got.explanation() == (
        "21 of 48 slots stay empty at the end of segments (84 bytes more than the smooth formula;"
        " 27 slots without sharing)"
    )


@given(
    st.integers(0, 4000), st.integers(0, 1000), st.integers(1, 40), st.integers(0, 39),
    st.integers(1, 5),
)  # fmt: skip
def test_agents_that_fit_are_found_by_trying(
    memory: int, weights: int, length: int, common: int, s: int
) -> None:
    common = min(common, length - 1)

    def largest(cost_of: Any) -> int:
        n = 0
        while weights + cost_of(n + 1) <= memory:
            n += 1
        return n

    got = bill.agents_that_fit(memory, weights, length, Fraction(common, length), s)
    assert got.independent == largest(lambda n: n * length * s)
    assert got.shared == largest(lambda n: (common + n * (length - common)) * s)


def test_decimal_shares_are_meant_as_written() -> None:
    """0.3 x 10 tokens are 3: 1 + 7n <= 71 is exactly met at n = 10 with no rounding error."""
    assert bill.agents_that_fit(730, 0, 10, 0.3, 10).shared == 10
    assert bill.agents_that_fit(729, 0, 10, 0.3, 10).shared == 9


def test_nobody_fits_beside_weights_that_do_not_fit() -> None:
    assert bill.agents_that_fit(10, 11, 4, 0.5, 1) == bill.Fit(0, 0)


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_a_share_outside_0_and_1_is_refused(p: float) -> None:
    for ask in (
        lambda: bill.saving(3, p),
        lambda: bill.shared_bytes(3, 10, p, 1),
        lambda: bill.agents_that_fit(100, 0, 10, p, 1),
    ):
        with pytest.raises(BadInput, match="between 0 and 1"):
            ask()


def test_questions_without_an_answer_are_refused() -> None:
    with pytest.raises(BadInput, match="at least one agent"):
        bill.saving(0, 0.5)
    with pytest.raises(BadInput, match="a share below 1"):
        bill.agents_that_fit(100, 0, 10, 1.0, 1)
    with pytest.raises(BadInput, match="needs tokens"):
        bill.agents_that_fit(100, 0, 0, 0.5, 1)
    with pytest.raises(BadInput, match="block size 0"):
        bill.block_bill([1], [[1]], 0, 1)


# --- sizes as people write them --------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("16k", 16384), ("16K", 16384), ("1.5k", 1536), (" 12000 ", 12000), ("1m", 1 << 20)],
)
def test_tokens(text: str, tokens: int) -> None:
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 * 1024**3),
        ("24GB", 24 * 1000**3),
        ("24 gib", 24 * 1024**3),
        ("1.5TiB", 3 * 1024**4 // 2),
        ("512 KiB", 512 * 1024),
        ("512kB", 512_000),
        ("4096", 4096),
        ("7b", 7),
    ],
)
def test_bytes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "k", "16kk", "-1k", "0", "0.3k", "16 tokens", "1e3", "½k"])
def test_bad_numbers_of_tokens_get_an_example(text: str) -> None:
    with pytest.raises(BadInput, match="write for example 16k"):
        parse_tokens(text)


@pytest.mark.parametrize("text", ["", "GiB", "24G", "24 Gbit", "-1GB", "0GiB", "0.3B", "much"])
def test_bad_sizes_get_an_example(text: str) -> None:
    with pytest.raises(BadInput, match="write for example 24GiB"):
        parse_bytes(text)


# --- the table -------------------------------------------------------------------------------

ASKED = Question(from_config(LLAMA_7B), 8, 16384, 0.6, memory=24 * GIB)


def test_the_table_answers_the_question_of_the_command_line() -> None:
    text = {row.key: row.text for row in bill_table.rows(ASKED)}
    assert text == {
        "kv_bytes_per_token": "512.0 KiB",
        "context_bytes": "8.0 GiB",
        "independent_bytes": "64.0 GiB",
        "shared_bytes": "30.4 GiB",
        "saving": "52.5%",
        "block_independent_bytes": "65.0 GiB",
        "block_shared_bytes": "30.9 GiB",
        "block_empty_slots": "970",
        "weights_bytes": "12.6 GiB",
        "fit_independent": "1",
        "fit_shared": "2",
    }


def test_the_answer_survives_json_and_keeps_the_question() -> None:
    answer = json.loads(json.dumps(bill_table.as_dict(ASKED)))
    assert answer["model"]["num_kv_heads"] == 32
    assert answer["question"]["memory"] == 24 * GIB
    assert answer["block_shared_bytes"] == (39 + 8 * 26) * 256 * 512 * 1024
    assert (answer["fit_independent"], answer["fit_shared"], answer["notes"]) == (1, 2, [])


def test_given_weights_replace_the_estimate() -> None:
    asked = Question(from_config({**SMALL, "num_experts": 4}), 2, 100, 0.5, GIB, weights=GIB)
    by_key = {row.key: row for row in bill_table.rows(asked)}
    assert (by_key["weights_bytes"].formula, by_key["fit_shared"].value) == ("as given", 0)


def test_without_memory_no_fit_is_asked_and_short_contexts_take_small_blocks() -> None:
    asked = Question(from_config(SMALL), 2, 100, 0.5)
    by_key = {row.key: row for row in bill_table.rows(asked)}
    assert "fit_shared" not in by_key
    assert "/ 16)" in by_key["block_shared_bytes"].formula


def test_the_terminal_shows_values_formulas_and_notes() -> None:
    from rich.console import Console

    out = io.StringIO()
    geometry = from_config({**LLAMA_7B, "sliding_window": 4096})
    asked = Question(geometry, 8, 16384, 0.6, 24 * GIB)
    bill_table.render(asked, Console(file=out, width=160))
    for part in ("30.4 GiB", "((1 - p) n + p) L s", "6,738,415,616 parameters", "window of 4096"):
        assert part in out.getvalue()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (1.5 * 2**20, "1.5 MiB"),
        (2**41, "2.0 TiB"),
    ],
)
def test_sizes_are_written_in_1024_based_units(value: float, text: str) -> None:
    assert bill_table.format_bytes(value) == text
