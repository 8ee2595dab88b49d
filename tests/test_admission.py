"""Models are admitted or refused by what they do, and the verdict says what it rests on."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import models
import pytest
import torch
from transformers.models.llama import modeling_llama

from inms_lab.attention import batch, reads
from inms_lab.config import Config
from inms_lab.errors import ModelCorrupted, ModelRefused
from inms_lab.model import Admission, Runner, from_model, load, positions, probe, rows
from inms_lab.model.admission import LOGIT_ERROR, admit
from inms_lab.notebook.lab import Lab


@pytest.fixture(autouse=True)
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tiny models only lose by sharing their work between threads; the default one does not."""
    threads = torch.get_num_threads()
    torch.set_num_threads(threads if request.node.get_closest_marker("model") else 1)
    yield
    torch.set_num_threads(threads)


def verdict(runner: Runner) -> Admission:
    assert runner.admission is not None
    return runner.admission


def rotations(runner: Runner) -> list[str]:
    return [layer.rotation for layer in verdict(runner).layers]


# --- who is admitted -------------------------------------------------------------------------


@pytest.mark.parametrize("name", models.WANTED)
def test_wanted_models_are_admitted_whole(name: str) -> None:
    runner = from_model(models.WANTED[name](), name=name)
    found = verdict(runner)
    assert [layer.layer for layer in found.layers] == [0, 1, 2]
    assert all(layer.called and layer.kv_shape == (2, 16) for layer in found.layers)
    assert found.max_logit_error <= found.tolerance <= LOGIT_ERROR
    assert found.bitwise
    assert runner.bitwise
    assert found.row_multiple == runner.row_multiple == rows.candidates(runner)[0]
    assert (found.fragments, found.fragments_reason) == (True, "")
    assert rotations(runner) == ["half-split"] * 3
    assert all(layer.error < 1e-4 and layer.rope is not None for layer in found.layers)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("smollm3", ["half-split", "none", "half-split"]),
        ("yarn_nope", ["half-split", "none", "half-split"]),
        ("llama4", ["interleaved", "none", "interleaved"]),
        ("mqa", ["half-split"] * 3),
        ("mha", ["half-split"] * 3),
        ("granite", ["half-split"] * 3),
        ("mixtral", ["half-split"] * 3),
        ("gpt_neox", ["half-split, partial 4/16"] * 3),
        ("phi", ["half-split, partial 8/16"] * 3),
        ("cohere", ["interleaved"] * 3),
        ("ernie", ["interleaved"] * 3),
        ("glm", ["interleaved, partial 8/16"] * 3),
        ("yarn_glm", ["interleaved, partial 8/16"] * 3),
    ],
)
def test_layouts_are_found(name: str, expected: list[str]) -> None:
    runner = from_model(models.OTHERS[name]())
    assert rotations(runner) == expected
    assert verdict(runner).fragments


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("hunyuan", "a norm or a scale after the rotation"),
        ("ministral3", "a norm or a scale after the rotation"),
        ("nanochat", "rotates the other way round"),
        ("gptj", "no rotary frequencies"),
        ("mrope", "several dimensions (mrope)"),
        ("dynamic", "frequencies depend on the length of the context (dynamic)"),
        ("longrope", "frequencies depend on the length of the context (longrope)"),
    ],
)
def test_unsafe_rotations_forbid_fragments_and_nothing_else(name: str, reason: str) -> None:
    runner = from_model(models.UNSAFE[name]())
    found = verdict(runner)
    assert not found.fragments
    assert reason in found.fragments_reason
    assert all(r.startswith("unsafe: ") and reason in r for r in rotations(runner))
    assert all(layer.rope is None for layer in found.layers)
    assert found.bitwise


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt2", ["GPT2LMHeadModel", "positions are learned and added to the input"]),
        ("opt", ["OPTForCausalLM", "positions are learned and added to the input"]),
        ("gemma2", ["Gemma2ForCausalLM", "`sliding_window`", "`softcap`"]),
        ("gpt_oss", ["GptOssForCausalLM", "`sliding_window`", "`s_aux`"]),
        ("mistral_with_window", ["MistralForCausalLM", "`sliding_window`"]),
        ("stablelm", ["StableLmForCausalLM", "drops the keyword"]),
        ("bloom", ["BloomForCausalLM", "3 of its 3 layers never call"]),
        ("mpt", ["MptForCausalLM", "3 of its 3 layers never call"]),
        ("mamba", ["MambaForCausalLM"]),
    ],
)
def test_refusals_name_the_architecture_the_reason_and_a_way_out(
    name: str, words: list[str]
) -> None:
    with pytest.raises(ModelRefused) as refusal:
        from_model(models.REFUSED[name](), name="mine")
    for word in (*words, "(mine) is refused", "smollm2-135m"):
        assert word in str(refusal.value)


def test_a_model_of_experts_is_admitted_and_says_what_its_bits_depend_on() -> None:
    """How many rows an expert sees depends on all rows; whether that shows, on the library."""
    runner = from_model(models.mixtral())
    assert ("equal within 2.0e-04" in runner.report()) != runner.bitwise


def test_rows_that_depend_a_little_on_their_neighbours_are_admitted_with_a_tolerance() -> None:
    model = models.llama()
    mlp = model.model.layers[1].mlp
    plain = mlp.forward
    mlp.forward = lambda x: plain(x) + 1e-6 * x.mean(dim=1, keepdim=True)
    runner = from_model(model)
    assert (runner.bitwise, runner.row_multiple) == (False, 1)
    assert "equal within 2.0e-04" in runner.report()


def test_the_matrix_library_is_asked_for_its_strict_mode_unless_told_otherwise() -> None:
    code = "import inms_lab, os; print(os.environ['MKL_CBWR'])"
    for given, wanted in ((None, "AUTO,STRICT"), ("AVX2", "AVX2")):
        env = {key: value for key, value in os.environ.items() if key != "MKL_CBWR"}
        env |= {} if given is None else {"MKL_CBWR": given}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
        assert done.stdout.strip() == wanted


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_admitted_with_a_tolerance(dtype: torch.dtype) -> None:
    runner = from_model(models.llama().to(dtype))
    assert (runner.bitwise, runner.row_multiple) == (False, 1)
    assert verdict(runner).fragments
    assert 0 < verdict(runner).max_logit_error < verdict(runner).tolerance / 2


# --- what a sick model looks like ------------------------------------------------------------


def test_a_skipped_layer_is_caught() -> None:
    model = models.llama()
    model.model.layers[1].forward = lambda hidden_states, **_: hidden_states
    with pytest.raises(ModelRefused, match=r"1 of its 3 layers never call .* \(layer 1\)"):
        from_model(model)


def test_a_layer_that_attends_twice_is_caught() -> None:
    model = models.llama()
    model.model.layers[2].self_attn.layer_idx = 0
    with pytest.raises(ModelRefused, match=r"1 of its 3 layers never call .* \(layer 2\)"):
        from_model(model)
    model.model.layers[2].self_attn.layer_idx = 2
    once = model.model.layers[2].self_attn.forward
    model.model.layers[2].self_attn.forward = lambda **kwargs: (once(**kwargs), once(**kwargs))[1]
    with pytest.raises(ModelRefused, match="layer 2 calls its attention 2 times"):
        from_model(model)


@pytest.mark.parametrize("off", [-1, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mask_that_is_off_by_one_is_caught(
    monkeypatch: pytest.MonkeyPatch, off: int, dtype: torch.dtype
) -> None:
    mask = reads.ReadPlanner._mask
    monkeypatch.setattr(
        reads.ReadPlanner, "_mask", lambda self, seen: mask(self, (seen + off).clip(1, self.tile))
    )
    with pytest.raises(ModelRefused, match=r"differ by .* from stock transformers"):
        from_model(models.llama().to(dtype))


def test_a_merge_without_weights_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def flat(out: torch.Tensor, lse: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return merge(out, torch.where(lse.isinf(), lse, torch.zeros_like(lse)), *rest)

    merge = batch.merge
    monkeypatch.setattr(batch, "merge", flat)
    with pytest.raises(ModelRefused, match=r"differ by .* from stock transformers"):
        from_model(models.llama())


def test_a_model_that_keeps_all_logits_is_caught() -> None:
    model = models.llama()
    forward = model.forward
    model.forward = lambda logits_to_keep=0, **kwargs: forward(**kwargs)
    with pytest.raises(ModelRefused, match="logits of all rows"):
        from_model(model)


def test_weights_that_are_not_numbers_are_called_damaged() -> None:
    model = models.llama()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] = torch.nan
    with pytest.raises(ModelCorrupted, match="not finite"):
        from_model(model)


def test_a_context_too_short_to_experiment_is_refused() -> None:
    with pytest.raises(ModelRefused, match="contexts end at 64 tokens"):
        from_model(models.llama(max_position_embeddings=64))


# --- rotations -------------------------------------------------------------------------------


def test_the_wrong_sign_is_unsafe(monkeypatch: pytest.MonkeyPatch) -> None:
    rotate = modeling_llama.apply_rotary_pos_emb
    monkeypatch.setattr(
        modeling_llama, "apply_rotary_pos_emb", lambda q, k, cos, sin: rotate(q, k, cos, -sin)
    )
    found = verdict(from_model(models.llama()))
    assert not found.fragments
    assert found.fragments_reason == "in layer 0, it rotates the other way round"


def test_keys_alone_can_make_a_layer_unsafe(monkeypatch: pytest.MonkeyPatch) -> None:
    rotate = modeling_llama.apply_rotary_pos_emb
    monkeypatch.setattr(
        modeling_llama,
        "apply_rotary_pos_emb",
        lambda q, k, cos, sin: (rotate(q, k, cos, sin)[0], rotate(q, k, cos**3, sin)[1]),
    )
    found = verdict(from_model(models.llama()))
    assert not found.fragments
    assert min(layer.error for layer in found.layers) > 0.01


def test_yarn_is_turned_without_its_attention_scaling() -> None:
    model = models.yarn()
    assert model.model.rotary_emb.attention_scaling > 1.1
    layer = verdict(from_model(model)).layers[0]
    assert layer.error < 1e-4
    assert layer.rope is not None
    assert torch.equal(layer.rope.inv_freq, model.model.rotary_emb.inv_freq)


def test_a_context_ends_where_the_angles_would_change() -> None:
    """In longrope one long context in a batch changes the angles of all others."""
    runner = from_model(models.longrope())
    assert (runner.max_context, verdict(runner).max_context) == (128, 128)
    assert "up to 128 tokens" in runner.report()
    with torch.inference_mode():
        experiment = positions.Positions(runner, 16)
        assert not experiment._moves_with(127 - positions.BASE)
        assert experiment._moves_with(128 - positions.BASE)
    assert from_model(models.dynamic()).max_context == 1024  # changes beyond its limit only


def last_logits(runner: Runner, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What follows `count` tokens: read in steps of 64, and in stock transformers."""
    tokens = [(7 * i * i + i) % 300 for i in range(count)]
    config = Config(16, 16, 64, 1024, *(1024 * runner.new_store().bytes_per_token for _ in "abc"))
    with Lab(runner, config=config, gate=None) as lab:
        agent = lab.agent("a")
        agent.read(tokens).result()
        return agent.next_logits().result(), runner.dense(tokens)[-1]


@pytest.mark.parametrize(
    ("settings", "limit", "words"),
    [
        ({}, 1024, ""),
        ({"attention_chunk_size": 200}, 200, "their chunk only (`attention_chunk_size`)"),
        ({"floor_scale": 190}, 189, "queries are scaled (`attn_temperature_tuning`)"),
        ({"floor_scale": 190, "attention_chunk_size": 150}, 150, "(`attention_chunk_size`)"),
        ({"floor_scale": 190, "attn_temperature_tuning": False}, 1024, ""),
        ({"attention_chunk_size": 200, "layer_types": ["full_attention"] * 3}, 1024, ""),
    ],
    ids=str,
)
def test_a_context_ends_where_llama_4_would_attend_otherwise(
    settings: dict[str, Any], limit: int, words: str
) -> None:
    """Chunked attention and the scale of queries begin beyond a length; no probe is that long."""
    model = models.llama4(**settings)
    runner = from_model(model)
    assert (runner.max_context, verdict(runner).max_context) == (limit, limit)
    (told,) = [finding for what, finding in verdict(runner).facts() if what == "contexts"]
    assert told.startswith(f"up to {limit} tokens")
    assert told.endswith(words)
    assert (": beyond that" in told) == bool(words)
    ours, stock = last_logits(runner, min(limit, 250))
    assert torch.allclose(ours, stock, atol=LOGIT_ERROR, rtol=0)
    if words:
        runner.max_context = 1024
        ours, stock = last_logits(runner, limit + 1)
        assert not torch.allclose(ours, stock, atol=10 * LOGIT_ERROR, rtol=0)


def test_a_step_is_no_longer_than_queries_are_left_unscaled() -> None:
    """Llama 4 counts rows of a forward, not positions: in a long step they would be scaled."""
    runner = from_model(models.llama4(floor_scale=190))
    size = 1024 * runner.new_store().bytes_per_token
    for budget, fits in ((189, True), (512, False)):
        with Lab(runner, config=Config(16, 16, budget, 1024, size, size, size), gate=None) as lab:
            agents = [lab.agent(name) for name in "ab"]
            answers = [agent.read([9] * 120) for agent in agents]
            if fits:
                assert [answer.result() for answer in answers] == [120, 120]
                continue
            with pytest.raises(ModelRefused, match="token_budget of at most 189, not 240"):
                answers[0].result()


# --- rows ------------------------------------------------------------------------------------


def test_rows_keep_their_bits_in_any_company() -> None:
    """What the probe promises, tried on schedules that it does not use."""
    runner, tile = from_model(models.qwen3()), 16
    rng = random.Random(0)
    truth: dict[int, torch.Tensor] = {}
    for seed in range(12):
        bench = probe.Bench(runner, tile, seed)
        contexts = bench.pair()
        done = [0, probe.SHARED]
        logits: list[list[torch.Tensor]] = [[], []]
        with torch.inference_mode():
            while any(at < len(c.tokens) for at, c in zip(done, contexts, strict=True)):
                # The second goes on only when what it shares with the first has been written.
                able = [
                    i
                    for i, c in enumerate(contexts)
                    if done[i] < len(c.tokens) and (i == 0 or done[0] >= probe.SHARED)
                ]
                chosen = rng.sample(able, rng.randint(1, len(able)))
                stops = [min(len(contexts[i].tokens), done[i] + rng.randint(1, 40)) for i in chosen]
                spans = [
                    contexts[i].span(done[i], stop) for i, stop in zip(chosen, stops, strict=True)
                ]
                for i, stop, out in zip(chosen, stops, bench.compute(*spans), strict=True):
                    logits[i].append(out)
                    done[i] = stop
        for i in (0, 1):
            got = torch.cat(logits[i])
            assert torch.equal(got, truth.setdefault(i, got))


def test_the_multiple_grows_until_rows_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    agree = rows._operations_agree
    monkeypatch.setattr(
        rows,
        "_operations_agree",
        lambda runner, tile: runner.row_multiple >= 32 and agree(runner, tile),
    )
    runner = from_model(models.llama())
    assert (runner.row_multiple, runner.bitwise) == (32, True)
    assert "multiples of 32" in runner.report()


def test_rows_that_never_agree_do_not_refuse_the_model() -> None:
    model = models.llama()
    # A trace of the neighbours, far below every tolerance.
    model.model.layers[0].mlp.register_forward_hook(lambda _m, _x, out: out + 1e-6 * out.mean(1))
    runner = from_model(model)
    assert (runner.row_multiple, runner.bitwise) == (1, False)


def test_few_rows_do_round_differently_or_nothing_need_be_padded() -> None:
    x = torch.randn(1, 64, 512, generator=torch.Generator().manual_seed(0))
    weight = torch.randn(384, 512, generator=torch.Generator().manual_seed(1))
    counts = [16, 32, 48]
    assert rows._rows_agree(lambda part: part @ weight.T, x, counts)
    assert not rows._rows_agree(lambda part: part - part.mean(1, keepdim=True), x, counts)


# --- the report ------------------------------------------------------------------------------


def test_the_report_reads_well() -> None:
    runner = from_model(models.smollm3(), name="tiny <b>")
    lines = runner.report().splitlines()
    assert lines[0].startswith("model      tiny <b> (SmolLM3ForCausalLM), admitted in ")
    assert "off stock transformers (limit 2.0e-04)" in lines[1]
    assert lines[2].endswith("same bits whatever they are batched with")
    assert lines[3:6] == ["contexts   up to 1024 tokens", "fragments  yes, at any shift", ""]
    table = [line.split() for line in lines[6:]]
    assert [row[0] for row in table] == ["layers", "0", "1", "2"]
    assert [row[5] for row in table[1:]] == ["half-split", "none", "half-split"]
    assert all(line == line.rstrip() for line in lines)


def test_layers_that_are_alike_share_a_row() -> None:
    table = verdict(from_model(models.llama())).table()
    assert [row[:4] for row in table[1:]] == [("0-2", "once", "2 x 16", "half-split")]


def test_the_html_has_no_script_and_escapes_names() -> None:
    runner = from_model(models.llama(), name="<script>alert(1)</script>")
    shown = verdict(runner)._repr_html_()
    assert "<script" not in shown
    assert "&lt;script&gt;" in shown
    assert shown.count("<table>") == shown.count("</table>") == 2


def test_a_runner_without_admission_says_so() -> None:
    assert Runner(models.llama(), "raw", "digest").report() == "raw: not admitted yet"


def test_admitting_twice_gives_the_same_verdict() -> None:
    runner = from_model(models.llama())
    first, second = verdict(runner), admit(runner)
    assert first.layers == second.layers
    assert first.max_logit_error == second.max_logit_error


# --- the model of the lab --------------------------------------------------------------------


@pytest.mark.model
def test_the_default_model_is_admitted_whole() -> None:
    runner = load(progress=False)
    found = verdict(runner)
    assert len(found.layers) == 30
    assert {layer.kv_shape for layer in found.layers} == {(3, 64)}
    assert set(rotations(runner)) == {"half-split"}
    assert found.fragments
    assert found.bitwise
    assert (runner.max_context, runner.stop_tokens) == (8192, frozenset({2}))
    assert runner.chat is not None
    assert runner.chat.open_turn() == "<|im_start|>assistant\n"
    assert load(progress=False) is runner
