"""What may be shared, and what modules on shared weights are: tied as they were, made on one thread
alone, known by their configuration; and which tensors can be averaged."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from shared_models import linux, mlp, same, shared, values
from torch import nn

from inms_lab.errors import BadInput
from inms_lab.parameters import SharedParameters
from inms_lab.parameters.sources import source_of
from inms_lab.parameters.weights import without_parameters

pytestmark = linux


class Tied(nn.Module):
    """One parameter under two names, and one buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.emb, self.out = nn.Embedding(32, 16), nn.Linear(16, 32, bias=False)
        self.out.weight = self.emb.weight
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("again", self.scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.emb(x))  # type: ignore[no-any-return]


class TiedOutside(nn.Module):
    """The parameter is there before it has a name."""

    def __init__(self) -> None:
        super().__init__()
        one = nn.Parameter(torch.ones(4))
        self.a, self.b = one, one


class Linked(nn.Module):
    """Parameters that lie in one another."""

    def __init__(self, cut: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(4, 4))
        self.b = nn.Parameter(cut(self.a.data))


class Extra(nn.Linear):
    """A module that knows more than tensors."""

    def get_extra_state(self) -> dict[str, int]:
        return {"a": 1}

    def set_extra_state(self, state: Any) -> None:
        pass


def learn(model: nn.Module) -> torch.Tensor:
    """Some steps of Adam, on all of its parameters."""
    optimizer, x = torch.optim.Adam(model.parameters(), lr=1e-2), torch.arange(32)
    for _ in range(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), (x * 7) % 32).backward()
        optimizer.step()
    return next(model.parameters()).detach().clone()


# tied ------------------------------------------------------------------------------------------


def test_what_is_one_parameter_stays_one_and_learns_as_an_independent_module_does() -> None:
    with shared(Tied()) as params:
        branch = params.branch("task")
        module: Any = branch.module
        assert module.out.weight is module.emb.weight
        assert module.scale is module.again
        assert len(list(module.parameters())) == 1
        assert torch.equal(learn(module), learn(Tied()))
        assert params.layout.same == {"out.weight": "emb.weight", "again": "scale"}


def test_tied_weights_stay_tied_if_a_file_has_them_once(tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    save_file({"emb.weight": Tied().emb.weight.detach(), "scale": torch.ones(1)}, path)
    with SharedParameters(path, make=Tied) as params:
        module: Any = params.module()
        assert module.out.weight is module.emb.weight
        assert torch.equal(module.emb.weight, Tied().emb.weight)


def test_a_parameter_that_gets_two_names_at_once_stays_one_in_a_module_without_weights() -> None:
    with without_parameters():
        module = TiedOutside()
    assert module.a is module.b
    assert module.a.is_meta


@pytest.mark.parametrize("cut", [lambda a: a[:2], lambda a: a.t(), lambda a: a[1:]])
def test_parameters_that_share_a_part_of_their_memory_are_refused_by_name(cut: Any) -> None:
    with pytest.raises(BadInput, match="a and b share memory"):
        source_of(Linked(cut))


def test_parameters_that_lie_beside_one_another_are_taken() -> None:
    lstm = nn.LSTM(4, 4)
    flat = torch.cat([p.detach().reshape(-1) for p in lstm.parameters()])
    at = 0
    for p in lstm.parameters():
        p.data = flat[at : at + p.numel()].view(p.shape)
        at += p.numel()
    with shared(lstm) as params:
        assert same(values(params.module()), values(lstm))


# one thread ------------------------------------------------------------------------------------


def test_modules_that_other_threads_make_meanwhile_have_their_parameters() -> None:
    inside, go_on = threading.Event(), threading.Event()
    made: list[nn.Module] = []

    def build() -> None:
        with without_parameters():
            made.append(nn.Linear(2, 2))
            inside.set()
            assert go_on.wait(30)
            made.append(nn.Linear(2, 2))

    thread = threading.Thread(target=build)
    thread.start()
    assert inside.wait(30)
    with without_parameters():
        assert nn.Linear(2, 2).weight.is_meta
        go_on.set()
        thread.join(30)
    assert all(one.weight.is_meta for one in made)
    assert not nn.Linear(2, 2).weight.is_meta


def test_two_threads_make_modules_at_once() -> None:
    both = threading.Barrier(2, timeout=30)
    found: list[nn.Module] = []

    def make() -> nn.Module:
        if threading.current_thread() is not threading.main_thread():
            both.wait()
        return mlp()

    with SharedParameters(mlp().state_dict(), make=make) as params:
        threads = [threading.Thread(target=lambda: found.append(params.module())) for _ in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(found) == 2
        assert all(same(values(one), values(mlp())) for one in found)
    assert not nn.Linear(2, 2).weight.is_meta


# digests ---------------------------------------------------------------------------------------


def test_the_digest_tells_configurations_apart_that_have_the_same_weights(tmp_path: Path) -> None:
    import models

    one, two = models.llama(), models.linear()
    two.load_state_dict(one.state_dict())
    assert source_of(one).digest == source_of(models.llama()).digest != source_of(two).digest
    weights, path = values(one), tmp_path / "one.safetensors"
    save_file(weights, path)
    for what in (weights, path):
        made = [source_of(what, make).digest for make in (models.llama, models.linear)]
        assert len({*made, source_of(what, models.llama).digest, source_of(what).digest}) == 3


def test_the_digest_tells_structures_apart_and_sees_no_addresses() -> None:
    def net(p: float) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 2, bias=False), nn.Dropout(p))

    wide, narrow = net(0.5), net(0.1)
    narrow.load_state_dict(wide.state_dict())
    assert source_of(wide).digest != source_of(narrow).digest

    places = count(0xFF)

    class Addressed(nn.Linear):
        def extra_repr(self) -> str:
            return f"rule=<function at {hex(next(places))}>"

    torch.manual_seed(0)
    one = Addressed(2, 2)
    assert source_of(one).digest == source_of(one).digest


# what cannot be shared -------------------------------------------------------------------------

SPARSE = torch.zeros(2).to_sparse()
WRONG: list[tuple[Any, str]] = [
    (None, "None"), (5, "5"), (b"x", "b'x'"), ([], "wanted"), ({}, "there are none"),
    ({"a": 1}, "'a' cannot be shared, it is int"), ({1: torch.zeros(2)}, "1 is no name"),
    ({"a": SPARSE}, "'a' .* sparse"), ({"a": torch.empty(2, device="meta")}, "'a' .* on meta"),
    (nn.LazyLinear(3), "'weight' .* no shape yet"), (Extra(3, 3), "get_extra_state"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "told"), WRONG, ids=[told for _, told in WRONG])
def test_what_cannot_be_shared_is_refused_by_name(what: Any, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        source_of(what)


@pytest.mark.parametrize("dtype", ["float16", 5, torch.int8, torch.complex64])
def test_an_element_type_without_fractions_is_refused(dtype: Any) -> None:
    with pytest.raises(BadInput, match="one with fractions"):
        source_of(mlp(), dtype=dtype)


def test_a_make_that_gives_no_module_is_refused() -> None:
    with pytest.raises(BadInput, match="function that gives a module"):
        source_of(mlp(), make=5)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="gave a NoneType"):
        source_of(values(mlp()), make=lambda: None)  # type: ignore[arg-type, return-value]


def test_conjugate_views_are_shared_as_what_they_mean() -> None:
    number = torch.tensor([1 + 2j, 3 - 1j])
    with SharedParameters({"a": number, "b": number.conj()}) as params:
        found = params.tensors()
        assert torch.equal(found["a"], number)
        assert torch.equal(found["b"], number.conj())


# averages --------------------------------------------------------------------------------------


def averaged(kind: torch.dtype) -> torch.Tensor:
    """Of a branch with ones and one with threes, three times as heavy, in this element type."""
    start = nn.ParameterList([nn.Parameter(torch.zeros(4).to(kind), requires_grad=False)])
    with shared(start) as params:
        branches = [params.branch(name) for name in "ab"]
        for branch, value in zip(branches, (1, 3), strict=True):
            branch.module[0].copy_(torch.full((4,), value) * (1j if kind.is_complex else 1))  # type: ignore[index]
        params.merge(branches, weights=[1, 3])
        return params.tensors()["0"].clone()


@pytest.mark.parametrize("kind", [torch.complex64, torch.complex128])
def test_complex_numbers_are_averaged(kind: torch.dtype) -> None:
    assert torch.equal(averaged(kind), torch.full((4,), 2.5j, dtype=kind))


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_what_torch_cannot_average_is_refused_by_name(kind: torch.dtype) -> None:
    with pytest.raises(BadInput, match=r"0 is float8_.* cannot be averaged"):
        averaged(kind)


@pytest.mark.parametrize("weights", ["xy", [None, 1], 5])
def test_weights_of_an_average_are_numbers(weights: Any) -> None:
    with shared() as params:
        branches = [params.branch(name) for name in "ab"]
        with pytest.raises(BadInput, match="weights are numbers"):
            params.merge(branches, weights=weights)
