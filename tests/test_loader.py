"""A name becomes an admitted model, the same one each time, or an exception with what to do."""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import models
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from inms_lab.errors import BadInput, ModelCorrupted, ModelNotFound, ModelRefused
from inms_lab.kernels import build
from inms_lab.model import Runner, from_model, load, loader

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    loader._latest.clear()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Llama as save_pretrained() writes it, with a tokenizer whose end mark is token 2."""
    path = tmp_path / "tiny"
    model = models.llama()
    model.generation_config.eos_token_id = [2, 7]
    model.save_pretrained(path)
    words = {"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3, "b": 4}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<unk>")),
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)
    return path


def read(path: Path) -> Runner:
    return load(path, device="cpu", progress=False)


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_folder_becomes_a_model_with_its_tokenizer(folder: Path) -> None:
    runner = read(folder)
    assert runner.admission is not None
    assert runner.report() == runner.admission.report()
    assert (runner.dtype, runner.device.type) == (torch.float32, "cpu")
    assert runner.tokenizer.convert_tokens_to_ids("b") == 4
    assert runner.chat is not None
    assert runner.chat.wrap("user", "hi") == "[user]hi</s>"
    assert runner.stop_tokens == {2, 7}  # of the generation configuration and of the tokenizer
    per_copy = sum(p.numel() for p in runner.model.parameters()) * 4
    by_count, memory = runner.weights_bytes()
    assert by_count == per_copy <= memory


def test_loading_again_gives_the_same_weights(folder: Path) -> None:
    runner = read(folder)
    assert read(folder) is runner
    assert load(str(folder), device="cpu", progress=False) is runner
    assert load(folder, device="cpu", dtype="bfloat16", progress=False) is not runner
    assert read(folder) is runner  # still in use here


@pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler here")
def test_a_compiler_that_was_installed_meanwhile_is_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setattr(build, "compiler", lambda: None)
        without.setattr("inms_lab.kernels.native.library", build.library.__wrapped__)
        plain = load(folder, compile=True)
        assert plain.native is None
        assert load(folder, compile=True) is plain
    compiled = load(folder, compile=True)
    assert compiled.native is not None
    assert load(folder, compile=True) is compiled


def test_changed_files_are_loaded_anew(folder: Path) -> None:
    runner = read(folder)
    models.llama(seed=1).save_pretrained(folder)
    other = read(folder)
    assert other is not runner
    assert other.digest != runner.digest


def test_a_model_that_nobody_uses_is_let_go_for_the_next(folder: Path) -> None:
    read(folder)
    assert len(loader._loaded) == 1  # kept for a cell that is run again
    load(folder, device="cpu", dtype=torch.float16, progress=False)
    gc.collect()
    assert len(loader._loaded) == 1


def test_the_element_type_can_be_chosen(folder: Path) -> None:
    for dtype in ("bfloat16", torch.bfloat16):
        assert load(folder, device="cpu", dtype=dtype, progress=False).dtype == torch.bfloat16
    edit(folder / "config.json", dtype="float16")
    assert load(folder, device="cpu", dtype="auto", progress=False).dtype == torch.float16
    assert read(folder).dtype == torch.float32


def test_nothing_but_status_lines_is_written(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    load(folder, device="cpu")
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [f"inms-lab: loading {folder}", "inms-lab: trying it"]


# --- what can be wrong -----------------------------------------------------------------------


def test_a_folder_without_configuration_is_no_model(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ModelNotFound, match=r"has no config\.json"):
        read(folder)


def test_a_folder_that_is_not_there_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        read(tmp_path / "nothing")


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}'])
def test_a_damaged_configuration_is_named(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelCorrupted, match=r"config\.json is damaged"):
        read(folder)


def test_weights_cut_short_are_named(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelCorrupted, match="cut short or damaged"):
        read(folder)


def test_a_damaged_header_is_named(folder: Path) -> None:
    weights = folder / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    at = raw.index(b'"F32"')
    raw[at : at + 5] = b'"F99"'
    weights.write_bytes(raw)
    with pytest.raises(ModelCorrupted, match="copy or download it again"):
        read(folder)


def test_a_missing_weight_is_not_drawn_at_random(folder: Path) -> None:
    edit(folder / "config.json", num_hidden_layers=4)
    with pytest.raises(ModelCorrupted, match=r"lacks 9 weights \(model\.layers\.3\."):
        read(folder)


def test_weights_of_another_shape_are_named(folder: Path) -> None:
    edit(folder / "config.json", intermediate_size=80)
    with pytest.raises(ModelCorrupted, match="copy or download it again"):
        read(folder)


def test_a_missing_tokenizer_is_named(folder: Path) -> None:
    for file in folder.glob("*token*"):
        file.unlink()
    with pytest.raises(ModelNotFound, match="has no tokenizer"):
        read(folder)


def test_a_damaged_tokenizer_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelCorrupted, match=r"tokenizer in .* cannot be read"):
        read(folder)


@pytest.mark.parametrize("kind", ["no-such-architecture", "vit"])
def test_models_that_are_no_language_models_are_refused(folder: Path, kind: str) -> None:
    edit(folder / "config.json", model_type=kind)
    with pytest.raises(ModelRefused, match=f"^{kind} .* is refused"):
        read(folder)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("mistral_with_window", "MistralForCausalLM"),
        ("gemma2", "Gemma2ForCausalLM"),  # this one and the next have no fused attention at all
        ("gpt_oss", "GptOssForCausalLM"),
    ],
)
def test_a_refused_model_is_refused_again(folder: Path, name: str, architecture: str) -> None:
    models.REFUSED[name]().save_pretrained(folder)
    for _ in range(2):
        with pytest.raises(
            ModelRefused, match=rf"{architecture} .* is refused: .*`sliding_window`"
        ):
            read(folder)


@pytest.mark.parametrize("dtype", ["int8", "float31", "nn", torch.int32])
def test_element_types_that_are_none_are_refused(folder: Path, dtype: object) -> None:
    with pytest.raises(BadInput, match=re.escape(repr(dtype))):
        load(folder, dtype=dtype, progress=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["gpu", "cuda:99"])
def test_devices_that_are_not_there_are_refused(folder: Path, device: str) -> None:
    with pytest.raises(BadInput, match=device):
        load(folder, device=device, progress=False)


# --- models in memory ------------------------------------------------------------------------


def test_a_model_in_memory_is_known_by_its_content() -> None:
    digest = from_model(models.llama()).digest
    assert len(digest) == 32
    assert from_model(models.llama(), name="again").digest == digest
    assert from_model(models.llama(seed=1)).digest != digest
    assert from_model(models.llama(rms_norm_eps=1e-5)).digest != digest
    assert from_model(models.llama3()).digest != digest


def test_a_model_in_memory_keeps_its_class_name_and_may_lack_a_tokenizer() -> None:
    runner = from_model(models.llama())
    assert (runner.name, runner.tokenizer, runner.chat) == ("LlamaForCausalLM", None, None)
    assert runner.stop_tokens == {2}


def test_importing_the_package_does_not_load_torch() -> None:
    code = (
        "import sys, inms_lab.model\n"
        "assert {'load', 'from_model', 'Runner'} <= set(dir(inms_lab.model))\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    root = Path(__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)


def test_a_model_is_tried_in_a_thread_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenMP's workers belong to the thread that first needs them; two sets of them share the cores
    and then wait in their sleep, which costs a decode step a quarter of its speed."""
    seen: list[threading.Thread] = []
    admit = loader.admit
    monkeypatch.setattr(
        loader, "admit", lambda runner: (seen.append(threading.current_thread()), admit(runner))
    )
    from_model(models.llama())
    assert seen[0] is not threading.main_thread()
    assert not seen[0].is_alive()
