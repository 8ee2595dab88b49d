"""A fragment read at a shift is the fragment encoded afresh there: whole models, every geometry.

Compared at shifts from -4096 to 4096, many readers in one forward; the fragment was encoded at
position 4200. In brackets: the largest figure that was measured over all models.

    dense    a layer's attention against dense attention over the same keys, turned by the same cos
             and sin: within 2e-5 max|v| (8e-7); half precision: see `rounding`
    call     a layer's attention against dense attention of the same queries over the keys that were
             encoded afresh: within 1e-3 max|v| (4.3e-4)
    exact    attention and logits against everything afresh, in a model whose frequencies are powers
             of two: within 2e-5 max|v| (6e-6) and 1e-4 of the logits' spread (1.6e-5)
    truth    logits against those at position 0: moved is off at most twice as much as afresh (0.7
             to 1.2 times)

The last two say why `call` is not as small as `dense`. A model computes its angles, position times
frequency, in float32: they are rounded by up to 2e-4 radians at these positions, differently at
each, so what it encodes afresh is off by that much itself. Powers of two leave nothing to round.
Ours are computed in float64. The larger the scores, the more an angle matters: with weights as wide
as in models.py (scores spread by 6) `call` was up to 1.1e-3, so here they are narrower.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import models
import pytest
import torch
from placed import TILE, Fragment, Place, Reading

from inms_lab.attention.rope import Rotation
from inms_lab.errors import ModelRefused, UnsafeShift
from inms_lab.model import Runner, from_model, load

SAFE = models.WANTED | models.OTHERS
EVERY = SAFE | models.UNSAFE | models.REFUSED
HALF = [torch.bfloat16, torch.float16]
EXPERTS = {"mixtral", "llama4"}  # when rounded, their routers choose other experts

HOME, CONTEXT = 4200, 8448  # where the fragment was encoded; positions that a model takes
SHIFTS = (-4096, -4095, -513, -1, 0, 1, 7, 500, 4096)
LENGTH, OWN_LENGTH = 40, 5  # tokens of the fragment, and of a reader's own text
WIDTH = 0.2  # weights are drawn that wide: scores spread by 3, as many of the default model's do

DENSE, CALL, EXACT, EXACT_LOGITS, TRUTH = 2e-5, 1e-3, 2e-5, 1e-4, 2.0


@pytest.fixture(autouse=True)
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tiny models are fastest on one thread; the default one is not."""
    threads = torch.get_num_threads()
    torch.set_num_threads(threads if request.node.get_closest_marker("model") else 1)
    yield
    torch.set_num_threads(threads)


@dataclass(frozen=True)
class Moved:
    """Readers at all shifts in one forward: of a fragment that is moved, and of one encoded there.

    `first` is one reader of the fragment at position 0, where angles are small and rounded least.
    """

    place: Place
    shifts: tuple[int, ...]
    fragment: Fragment
    afresh: list[Fragment]
    moved: Reading
    fresh: Reading
    first: Reading

    @property
    def truth(self) -> torch.Tensor:
        """Logits of all readers, had the whole context been at position 0."""
        return self.first.logits.repeat(len(self.shifts), 1)

    def off(self, where: str) -> float:
        """Largest distance of an attention result from dense attention, in units of max|v|: over
        the keys that were `moved`, or encoded `afresh`."""
        worst = 0.0
        for layer, out in enumerate(self.moved.outs):
            largest = self.place.kv(layer, self.fragment)[1].abs().max()
            for number, shift in enumerate(self.shifts):
                rows = slice(number * OWN_LENGTH, (number + 1) * OWN_LENGTH)
                keys = (self.fragment, shift) if where == "moved" else (self.afresh[number], 0)
                truth = self.place.dense(self.moved, layer, rows, *keys)
                worst = max(worst, float((out[rows] - truth).abs().max() / largest))
        return worst


def compare(runner: Runner, home: int, shifts: tuple[int, ...], sense: int = 1) -> Moved:
    """`sense` multiplies the shift: 0 forgets it, -1 is the wrong way round."""
    place = Place(runner, 40 * TILE)
    rng = random.Random(0)
    text, mine = (rng.choices(range(3, 320), k=count) for count in (LENGTH, OWN_LENGTH))
    stands = [home + shift for shift in shifts]
    fragment, start, *afresh = place.encode(text, home, 0, *stands)

    def read(fragments: list[Fragment], has_at: list[int], stands: list[int]) -> Reading:
        mounts = [[mount] for mount in zip(fragments, has_at, strict=True)]
        readers = [place.reader(m, mine, at + LENGTH) for m, at in zip(mounts, stands, strict=True)]
        return place.read(*map(place.span, readers))

    moved = read([fragment] * len(shifts), [home + sense * shift for shift in shifts], stands)
    fresh = read(afresh, stands, stands)
    return Moved(place, shifts, fragment, afresh, moved, fresh, read([start], [0], [0]))


@cache
def admitted(name: str, dtype: torch.dtype = torch.float32, exact: bool = False) -> Runner:
    """A tiny model that takes long contexts. `exact`: its angles have no rounding errors."""
    model = EVERY[name](max_position_embeddings=CONTEXT, initializer_range=WIDTH)
    if exact:
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("inv_freq"):
                buffer.copy_(2.0 ** buffer.log2().round())
    return from_model(model.to(dtype), name=name)


@cache
def compared(
    name: str, dtype: torch.dtype = torch.float32, exact: bool = False, sense: int = 1
) -> Moved:
    """A tiny model, compared at all `SHIFTS`."""
    return compare(admitted(name, dtype, exact), HOME, SHIFTS, sense)


def rms(x: torch.Tensor) -> float:
    """Root mean square."""
    return float(x.pow(2).mean().sqrt())


# every geometry: safe and equal, or refused by name -----------------------------------------------


def test_no_tiny_model_is_left_out() -> None:
    builders = [f for f in vars(models).values() if getattr(f, "__module__", "") == "models"]
    assert len(EVERY) == len(SAFE) + len(models.UNSAFE) + len(models.REFUSED)
    assert {f for f in builders if f is not models.build} == set(EVERY.values())


@pytest.mark.parametrize("name", SAFE)
def test_a_moved_fragment_is_read_as_if_encoded_there(name: str) -> None:
    assert not admitted(name).unsafe
    assert compared(name).off("moved") <= DENSE
    assert compared(name).off("afresh") <= CALL


@pytest.mark.parametrize("name", models.UNSAFE)
def test_22_unknown_geometry_is_refused_by_name(name: str) -> None:
    """vllm#57672, LMCache#4666, KVLink#1: unusual RoPE rotated wrongly in silence."""
    runner = admitted(name)
    assert runner.unsafe
    assert f"fragments  no: {runner.unsafe}" in runner.report()
    assert runner.rotations == ()
    place = Place(runner)
    (fragment,) = place.encode([5, 6, 7], 3)
    with pytest.raises(UnsafeShift, match="report"):
        place.read(place.span(place.reader([(fragment, 4)], [8], 7)))


@pytest.mark.parametrize("name", models.REFUSED)
def test_22_what_cannot_be_understood_is_not_admitted(name: str) -> None:
    """vllm#57672, LMCache#4666, KVLink#1, for models that do not use their positions as we do."""
    with pytest.raises(ModelRefused, match=rf"\({name}\) is refused: "):
        admitted(name)


@pytest.mark.parametrize("name", SAFE)
def test_with_exact_angles_all_layers_and_logits_are_as_if_encoded_there(name: str) -> None:
    run = compared(name, exact=True)
    for layer, (moved, fresh) in enumerate(zip(run.moved.outs, run.fresh.outs, strict=True)):
        largest = run.place.kv(layer, run.fragment)[1].abs().max()
        assert (moved - fresh).abs().max() <= EXACT * largest, layer
    off = (run.moved.logits - run.fresh.logits).abs().max()
    assert off <= EXACT_LOGITS * run.fresh.logits.std()


@pytest.mark.parametrize("name", SAFE)
def test_moved_is_as_near_to_the_truth_as_encoded_afresh(name: str) -> None:
    run = compared(name)
    fresh, moved = rms(run.fresh.logits - run.truth), rms(run.moved.logits - run.truth)
    assert fresh <= 1e-3 * run.truth.std()
    assert moved <= TRUTH * fresh
    assert (run.moved.logits.argmax(-1) == run.truth.argmax(-1)).all()


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("name", SAFE)
def test_half_precision_rounds_and_does_nothing_else(name: str, dtype: torch.dtype) -> None:
    """The truth is the model in float32. A turned query is rounded to the model's type once more, a
    key that is encoded afresh is rounded too: neither is nearer to the truth."""
    run, truth = compared(name, dtype), compared(name).truth
    assert run.off("moved") <= rounding(run)
    if name not in EXPERTS:
        assert rms(run.moved.logits - truth) <= TRUTH * rms(run.fresh.logits - truth)


def rounding(run: Moved) -> float:
    """What a result may be off in half precision, in units of max|v|: its own rounding, and that of
    a turned query, which changes a score by up to eps / 2 of scale |q| |k|. Channels cancel for the
    most part: a sixteenth of that is allowed; at most 0.5 of the whole was measured."""
    score = 0.0
    for layer, (q, _, _) in enumerate(run.moved.seen):
        keys, _ = run.place.kv(layer, run.fragment)
        largest = q.float().norm(dim=-1).max() * keys.norm(dim=-1).max() * run.moved.scale
        score = max(score, float(largest))
    return torch.finfo(run.place.runner.dtype).eps * (1 + score / 32)


@pytest.mark.model
def test_the_default_model() -> None:
    """Measured: 1e-6, 8e-5, logits 5e-4 of 5.0 (their spread)."""
    run = compare(load(progress=False), 4040, (-4040, -513, -1, 500, 4096))
    assert run.off("moved") <= DENSE
    assert run.off("afresh") <= CALL
    assert (run.moved.logits - run.fresh.logits).abs().max() <= 1e-3


# what these comparisons can see -------------------------------------------------------------------


@pytest.mark.parametrize("sense", [0, -1])
@pytest.mark.parametrize("name", SAFE)
def test_a_forgotten_or_reversed_shift_would_be_seen(name: str, sense: int) -> None:
    wrong, right = compared(name, sense=sense), compared(name)
    assert wrong.off("afresh") >= 100 * CALL
    error, truth = rms(right.moved.logits - right.truth), right.truth
    assert rms(wrong.moved.logits - truth) >= 100 * error


@pytest.mark.parametrize("name", ["hunyuan", "nanochat", "ministral3", "longrope"])
def test_who_is_refused_would_be_wrong(name: str) -> None:
    """The rotation that the probe did not believe in, used all the same."""
    runner = from_model(EVERY[name](max_position_embeddings=CONTEXT), name=name)
    buffers = dict(runner.model.named_buffers())
    inv_freq = next(buffer for key, buffer in buffers.items() if key.endswith("inv_freq"))
    force(runner, Rotation(inv_freq.clone(), False, runner.geometry.head_dim))
    place, text, mine = Place(runner), range(3, 43), [7, 70, 170]
    (fragment,), (there,) = place.encode(text, 20), place.encode(text, HOME)
    readers = [place.reader([(f, HOME)], mine, HOME + len(text)) for f in (fragment, there)]
    moved, fresh = place.read(*map(place.span, readers)).logits.split(len(mine))
    assert (moved - fresh).abs().max() > 0.1 * fresh.std()


def force(runner: Runner, rotation: Rotation) -> None:
    """Shift this model's keys, whatever was found about it."""
    found = runner.admission
    assert found is not None
    layers = tuple(replace(layer, rope=rotation) for layer in found.layers)
    runner.admission = replace(found, layers=layers, fragments=True, fragments_reason="")
