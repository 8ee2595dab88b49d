"""Copy-on-write in software: what is written is seen by its writer alone, and is what an ordinary
tensor would have got, bit for bit."""

from __future__ import annotations

import copy
import io
import pickle
import random
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.multiprocessing as mp
from models import llama
from torch import nn
from transformers import AutoModelForCausalLM

from inms_lab.bench import software as bench
from inms_lab.errors import BadInput, ModelCorrupted
from inms_lab.parameters.software import (
    COW_THRESHOLD,
    CopyOnWrite,
    chunk_map,
    discard,
    private_bytes,
    shared_bytes,
    wrap,
)
from inms_lab.parameters.software_ops import Chunks
from inms_lab.parameters.weights import layout_of, without_parameters

SMALL = 4096  # bytes of a chunk
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Holder(nn.Module):
    """One parameter of any shape."""

    def __init__(self, like: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty_like(like), requires_grad=False)


class Net(nn.Module):
    """Embedding and head tied, a norm, a layer, a buffer that training changes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(200, 24)
        self.layer = nn.Linear(24, 24)
        self.norm = nn.BatchNorm1d(24)
        self.head = nn.Linear(24, 200, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        return self.head(self.norm((x + self.layer(x).relu()).flatten(0, 1)))


class Bases:
    """Base tensors that were given out; they must keep their bits."""

    def __init__(self) -> None:
        self.given: list[tuple[torch.Tensor, torch.Tensor]] = []

    def base(self, tensor: torch.Tensor) -> torch.Tensor:
        self.given.append((tensor, tensor.clone()))
        return tensor

    def one(self, tensor: torch.Tensor, threshold: int = SMALL) -> CopyOnWrite:
        """A parameter on this base."""
        with torch.device("meta"):
            module = Holder(tensor.to("meta"))
        return wrap(module, {"weight": self.base(tensor)}, threshold).weight

    def of(self, module: nn.Module) -> dict[str, torch.Tensor]:
        """Bases with a module's weights, tied ones once."""
        made: dict[int, torch.Tensor] = {}
        kept = module.state_dict(keep_vars=True)
        for value in kept.values():
            if id(value) not in made:
                made[id(value)] = self.base(value.detach().clone())
        return {name: made[id(value)] for name, value in kept.items()}


@pytest.fixture
def bases() -> Iterator[Bases]:
    made = Bases()
    yield made
    assert made.given
    assert all(same(now, was) for now, was in made.given), "a base was written"


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal in shape and bits."""
    both = [x.detach().clone().contiguous().reshape(-1).view(torch.uint8) for x in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*both)


def net(seed: int = 0) -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net()


def wrapped_net(bases: Bases, threshold: int = SMALL) -> Net:
    with without_parameters():
        made = Net()
    return wrap(made, bases.of(net()), threshold)


def rows(count: int = 100, width: int = 48, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


# what is copied --------------------------------------------------------------------------------


def test_reading_copies_nothing(bases: Bases) -> None:
    weight = bases.one(rows())
    base = bases.given[0][0]
    x = rows(3, seed=1)
    assert same(x @ weight.T, x @ base.T)
    assert same(weight[5:7].sum(0), base[5:7].sum(0))
    assert weight.chunks.read(0, 5).data_ptr() == base.data_ptr()
    assert not weight.chunks.private


@pytest.mark.parametrize("threshold", [SMALL, 16384, COW_THRESHOLD])
def test_one_value_written_makes_exactly_one_chunk_private(bases: Bases, threshold: int) -> None:
    module = wrap(Holder(rows(3000)), {"weight": bases.base(rows(3000))}, threshold)
    module.weight[1500, 7] = 3.0
    assert private_bytes(module) == threshold
    assert private_bytes(module) + shared_bytes(module) == 3000 * 48 * 4
    assert list(module.weight.chunks.private) == [(1500 * 48 + 7) * 4 // threshold]


def test_the_last_chunk_costs_no_more_than_its_bytes(bases: Bases) -> None:
    module = wrap(Holder(rows()), {"weight": bases.base(rows())}, SMALL)
    module.weight[-1, -1] = 3.0
    assert private_bytes(module) == 100 * 48 * 4 % SMALL


def test_the_bits_that_are_there_make_nothing_private(bases: Bases) -> None:
    weight = bases.one(rows())
    weight.copy_(rows())
    weight.mul_(1)
    assert not weight.chunks.private
    weight.neg_()
    weight.neg_()
    assert len(weight.chunks.private) == weight.chunks.num_chunks


def test_what_is_private_altogether_is_written_where_it_lies(bases: Bases) -> None:
    weight = bases.one(rows())
    for number in range(weight.chunks.num_chunks):  # one by one
        weight.view(-1)[number * SMALL // 4] += 1
    own = weight.chunks.read(0, weight.chunks.num_chunks)
    was = own.clone()
    weight[3].zero_()
    assert weight.chunks.read(0, weight.chunks.num_chunks).data_ptr() == own.data_ptr()
    assert not same(own, was)


def test_an_operation_that_fails_changes_nothing(bases: Bases) -> None:
    weight = bases.one(rows())
    with pytest.raises(RuntimeError):
        weight.add_(torch.ones(7))
    assert not weight.chunks.private


def test_two_on_one_base_do_not_see_each_other(bases: Bases) -> None:
    base = bases.base(rows())
    ada, bob = (wrap(Holder(base), {"weight": base}, SMALL).weight for _ in range(2))
    ada[3] = 1.0
    bob[3] = 2.0
    bob[-1] = 3.0
    assert (ada[3] == 1).all()
    assert (bob[3] == 2).all()
    assert same(ada[-1], base[-1])
    assert same(ada[4], base[4])
    assert ada.view_as(bob).chunks is ada.chunks


# views -----------------------------------------------------------------------------------------

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "row": lambda t: t[3],
    "rows": lambda t: t[20:61],
    "column": lambda t: t[:, 2],
    "every third": lambda t: t[1::3],
    "transposed": lambda t: t.t(),
    "flat": lambda t: t.view(-1),
    "of a view": lambda t: t[10:90].t()[4:9],
    "split": lambda t: t.split(30)[1],
    "unbound": lambda t: t.unbind()[-1],
    "diagonal": lambda t: t.diagonal(),
    "strided": lambda t: t.as_strided((7, 5), (100, 2), 9),
    "permuted": lambda t: t.view(len(t), 2, -1).permute(2, 0, 1),
    "expanded": lambda t: t[4].expand(3, -1)[1],
    "windows": lambda t: t.unfold(0, 4, 4),
    "data": lambda t: t.data[5:],
    "detached": lambda t: t.detach(),
    "nothing": lambda t: t[5:5],
    "value": lambda t: t[50, 20],
    "squeezed": lambda t: t[:, 1:2].squeeze(1),
    "bits": lambda t: t.view(torch.int32)[60].view(torch.float32),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_that_is_written_writes_through(bases: Bases, name: str) -> None:
    weight, plain = bases.one(rows()), rows()
    ours, theirs = VIEWS[name](weight), VIEWS[name](plain)
    assert isinstance(ours, CopyOnWrite)
    assert (ours.shape, ours.stride(), ours.storage_offset()) == (
        *(theirs.shape, theirs.stride(), theirs.storage_offset()),
    )
    for tensor in (ours, theirs):
        tensor.mul_(2)
        tensor.sub_(1)
    assert same(ours, theirs)
    assert same(weight, plain)
    weight.add_(1)
    plain.add_(1)
    assert same(ours, theirs)


def test_neighbours_in_one_allocation_are_not_mixed_up(bases: Bases) -> None:
    one = torch.arange(4096.0)
    parts = {"a.weight": bases.base(one[:2048]), "b.weight": bases.base(one[2048:])}
    module = wrap(
        nn.ModuleDict({name: Holder(parts[f"{name}.weight"]) for name in "ab"}),
        parts,
        SMALL,
    )
    ours = [module["a"].weight, module["b"].weight]
    for weight in ours:
        assert all(row.chunks is weight.chunks for row in weight.view(-1, 16))
    with torch.inference_mode():  # in which one operation gives views of both
        both = torch.broadcast_tensors(*(weight[:7] for weight in ours))
    assert [view.chunks for view in both] == [weight.chunks for weight in ours]
    torch._foreach_add_([ours[1][:5], ours[0][5:], ours[1][2000:]], 1.0)
    expected = torch.arange(4096.0)
    for first, stop in ((2048, 2053), (5, 2048), (4048, 4096)):
        expected[first:stop] += 1
    assert same(torch.cat(list(ours)), expected)


@pytest.mark.parametrize("from_to", [(0, 1), (1, 0), (0, 0)])
def test_an_operation_within_one_tensor_does_what_it_does_elsewhere(
    bases: Bases, from_to: tuple[int, int]
) -> None:
    weight, plain = bases.one(rows()), rows()
    told = []
    for tensor in (weight, plain):
        source, target = (tensor[at : at + 50] for at in from_to)
        try:
            target.add_(source)
            told.append("")
        except RuntimeError as error:
            told.append(str(error))
    assert told[0] == told[1]
    assert same(weight, plain)


# programs --------------------------------------------------------------------------------------

Pair = tuple[torch.Tensor, torch.Tensor]


def after(_: object, tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def step(rng: random.Random, tensor: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """A random operation that this tensor can do; it gives what it computes."""
    seed, number = rng.randrange(10**6), rng.uniform(-2, 2)
    generator = torch.Generator().manual_seed(seed)
    other = torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
    mask = torch.rand(tensor.shape, generator=generator) < 0.01
    length = tensor.shape[0] if tensor.dim() else 1
    at = torch.randperm(length, generator=generator)[: max(1, length // 20)]
    whole = tensor.is_floating_point()
    ways: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda t: t.add_(other),
        lambda t: t.mul_(2),
        lambda t: t.copy_(other),
        lambda t: t.zero_(),
        lambda t: t.fill_(3),
        lambda t: t.masked_fill_(mask, 1),
        lambda t: t.clamp_(min=0),
        lambda t: t + other,
        lambda t: t.sum(),
        lambda t: t * t,
        lambda t: torch.add(t, other, out=t),
        lambda t: torch._foreach_add([t, other], 1)[0],
        lambda t: after(torch._foreach_mul_([t], 3), t),
        lambda t: t.bitwise_not_() if not t.is_floating_point() else t.neg_(),
        lambda t: torch.where(mask, t, other),
        lambda t: t.clone().t() if t.dim() == 2 else t.clone(),
    ]
    if tensor.dim():
        ways += [
            lambda t: t.index_add_(0, at, other[at]),
            lambda t: t.index_copy_(0, at, other[at]),
            lambda t: t.index_put_((at,), other[at], accumulate=True),
            lambda t: t[at],
            lambda t: after(t.__setitem__(at, other[at]), t),
            lambda t: after(t.__setitem__(mask, 5), t),
            lambda t: t.index_fill_(0, at, 2),
            lambda t: t.sort(0).values,
            lambda t: t.scatter_(0, torch.zeros_like(mask, dtype=torch.int64)[:1], other[:1]),
            lambda t: t.cumsum_(0) if t.is_floating_point() else t.sub_(1),
        ]
    if whole:
        ways += [
            lambda t: t.normal_(generator=torch.Generator().manual_seed(seed)),
            lambda t: t.uniform_(generator=torch.Generator().manual_seed(seed)),
            lambda t: t.lerp_(other, number),
            lambda t: t.addcmul_(other, other, value=number),
            lambda t: t.sigmoid_(),
        ]
    return rng.choice(ways)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("seed", range(4))
def test_random_programs_do_the_same_as_on_ordinary_tensors(
    bases: Bases, seed: int, dtype: torch.dtype
) -> None:
    rng = random.Random(seed)
    first = (rows(97, 50, seed) * 100).to(dtype)
    weight, plain = bases.one(first.clone()), first.clone()
    pairs: list[Pair] = [(weight, plain)]
    kinds = [view for name, view in VIEWS.items() if name != "bits" or dtype == torch.float32]
    for _ in range(60):
        ours, theirs = rng.choice(pairs)
        if ours is weight and len(pairs) < 12:
            view = rng.choice(kinds)
            pairs.append((view(weight), view(plain)))
        act = step(rng, theirs)
        assert same(act(ours), act(theirs))
        assert all(same(one, other) for one, other in pairs)
        if rng.random() < 0.05:
            weight.chunks.discard()
            plain.copy_(first)
    assert any(one.chunks is weight.chunks for one, _ in pairs[1:])


# modules ---------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "sgd, momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=False),
    "sgd, foreach": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, 0.01, foreach=False),
    "adam, foreach": lambda p: torch.optim.Adam(p, 0.01, foreach=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, foreach=False),
    "adamw, foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
    "adamw, fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
}


def trained(module: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 4) -> list[float]:
    module.train()
    draws = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        ids = torch.randint(0, 200, (3, 9), generator=draws)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(ids), ids.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_gives_what_an_ordinary_module_gets(bases: Bases, name: str) -> None:
    ours, theirs = wrapped_net(bases), net()
    losses = [trained(one, OPTIMIZERS[name](one.parameters())) for one in (ours, theirs)]
    assert losses[0] == losses[1]
    kept = theirs.state_dict()
    assert all(same(value, kept[key]) for key, value in ours.state_dict().items())
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    assert all(same(one.grad, other.grad) for one, other in pairs)
    assert shared_bytes(ours) == 0


def test_only_what_trains_becomes_private(bases: Bases) -> None:
    ours = wrapped_net(bases)
    ours.requires_grad_(False)
    ours.layer.requires_grad_(True)
    ours.norm.eval()
    optimizer = torch.optim.SGD(ours.layer.parameters(), 0.1)
    loss = ours.eval()(torch.arange(9).view(1, 9)).square().mean()
    loss.backward()
    optimizer.step()
    table = chunk_map(ours).by_name()
    assert set(table.index[table.private > 0]) == {"layer.weight", "layer.bias"}
    assert list(table.loc["embed.weight"]) == [5, 0]


def test_a_language_model_generates_and_trains_the_same(bases: Bases) -> None:
    theirs = llama(tie_word_embeddings=True)
    with without_parameters():
        empty = AutoModelForCausalLM.from_config(theirs.config)
    ours = wrap(empty, bases.of(theirs), SMALL)
    assert private_bytes(ours) == 0
    assert ours.lm_head.weight is ours.model.embed_tokens.weight
    ids = torch.arange(3, 40).view(1, -1)

    def told(model: nn.Module) -> torch.Tensor:
        return model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)

    assert same(told(ours), told(theirs))
    for model in (ours, theirs):
        with torch.no_grad():
            model.model.layers[1].mlp.up_proj.weight[5, 3:9] *= -4
            model.model.embed_tokens.weight[7] = 1.0
        optimizer = torch.optim.AdamW(model.model.layers[2].parameters(), 0.01)
        for _ in range(2):
            optimizer.zero_grad()
            model(ids, labels=ids).loss.backward()
            optimizer.step()
    assert same(ours(ids).logits, theirs(ids).logits)
    assert same(told(ours), told(theirs))
    assert 0 < private_bytes(ours) < shared_bytes(ours)


def test_what_is_tied_stays_one(bases: Bases) -> None:
    ours = wrapped_net(bases)
    assert ours.head.weight is ours.embed.weight
    assert [len(list(one.parameters())) for one in (ours, net())] == [5, 5]
    two = nn.ModuleDict({"a": Holder(rows()), "b": Holder(rows())})
    base = bases.base(rows())
    wrap(two, {"a.weight": base, "b.weight": base}, SMALL)
    two["a"].weight[0] = 5.0
    assert (two["b"].weight[0] == 5).all()
    assert list(chunk_map(two).private) == ["a.weight"]


def test_discarded_it_has_its_base_again(bases: Bases) -> None:
    ours = wrapped_net(bases)
    trained(ours, torch.optim.SGD(ours.parameters(), 0.1))
    out = ours(torch.arange(9).view(1, 9))
    discard(ours)
    assert private_bytes(ours) == 0
    was = net().state_dict()
    assert all(same(value, was[key]) for key, value in ours.state_dict().items())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_written_in_inference_mode_it_can_be_written_outside(bases: Bases) -> None:
    weight = bases.one(rows())
    with torch.inference_mode():
        weight[0, 0] = 1.0
        assert weight.t().reshape(-1)[0] == 1  # which copies, although it may give a view
        view = weight[1]
        assert same(weight[:1].reshape(-1, 2).to(torch.float32)[0, :1], torch.ones(1))
    weight[0, 1] = 2.0
    view.fill_(4)
    assert weight[0, :2].clone().tolist() == [1, 2]
    assert (weight[1] == 4).all()


def test_a_lookup_of_few_rows_copies_no_table(
    bases: Bases, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, plain = bases.one(rows(6000)), rows(6000)
    for tensor in (weight, plain):
        tensor[[3, 21, 22, 4000]] *= 2
    copied: list[int] = []
    copy_of = Chunks._copy

    def watched(self: Chunks, first: int, stop: int) -> torch.Tensor:
        copied.append(stop - first)
        return copy_of(self, first, stop)

    monkeypatch.setattr(Chunks, "_copy", watched)
    few, many = torch.tensor([[21, 3, 21, 5999], [0, 3, 22, 0]]), torch.arange(0, 6000, 40)
    assert same(nn.functional.embedding(few, weight), nn.functional.embedding(few, plain))
    assert max(copied, default=0) <= 2
    assert same(nn.functional.embedding(many, weight), nn.functional.embedding(many, plain))
    for wrong in (-1, 6000):
        with pytest.raises(IndexError):
            nn.functional.embedding(torch.tensor([3, wrong]), weight)


# copies and travel -----------------------------------------------------------------------------


def test_a_deep_copy_shares_the_base_and_has_chunks_of_its_own(bases: Bases) -> None:
    ours = wrapped_net(bases)
    ours.layer.weight.grad = torch.ones(24, 24)
    with torch.no_grad():
        ours.embed.weight[0] = 1.0
        ours.layer.weight.zero_()
    other = copy.deepcopy(ours)
    assert other.head.weight is other.embed.weight
    assert isinstance(other.embed.weight, nn.Parameter)
    assert same(other.layer.weight.grad, ours.layer.weight.grad)
    assert private_bytes(other) == private_bytes(ours) < shared_bytes(ours)
    with torch.no_grad():
        other.embed.weight[0] = 2.0
        other.layer.weight.fill_(3)
    assert (ours.embed.weight[0] == 1).all()
    assert (ours.layer.weight == 0).all()


@pytest.mark.parametrize("way", ["pickle", "torch.save"])
def test_saved_and_read_it_has_the_same_values(bases: Bases, way: str) -> None:
    ours = wrapped_net(bases)
    with torch.no_grad():
        ours.embed.weight[0] = 1.0
    file = io.BytesIO()
    (pickle.dump if way == "pickle" else torch.save)(ours, file)
    file.seek(0)
    read = pickle.load(file) if way == "pickle" else torch.load(file, weights_only=False)
    assert read.head.weight is read.embed.weight
    assert isinstance(read.embed.weight, nn.Parameter)
    assert private_bytes(read) == private_bytes(ours)
    kept = read.state_dict()
    assert all(same(value, kept[key]) for key, value in ours.state_dict().items())


def visit(line: mp.connection.Connection) -> None:
    """Another process: it changes what it is sent, and tells what it has."""
    torch.set_num_threads(1)
    weight = line.recv()
    with torch.no_grad():
        weight[0] = 7.0
        weight[50] = 8.0
    line.send(sorted(weight.chunks.private))
    line.recv()
    line.send((weight[-1, 0].item(), weight[0, 0].item()))


def check_visit(weight: CopyOnWrite, way: str) -> None:
    base = weight.chunks.base.view(torch.float32).view(weight.shape)
    with torch.no_grad():
        weight[0] = 1.0
    line, far = mp.Pipe()
    process = mp.get_context(way).Process(target=visit, args=(far,), daemon=True)
    process.start()
    try:
        line.send(weight)
        assert line.poll(60)
        assert line.recv() == [0, 50 * 192 // SMALL]
        assert (weight[0] == 1).all()
        assert same(weight[50], base[50])
        base[-1, 0] = 9.0  # by way of exception: is it the same memory?
        line.send("go on")
        assert line.poll(60)
        assert line.recv() == (9.0, 7.0)
    finally:
        process.join(10)
        process.kill()
        process.join()


@pytest.mark.skipif(sys.platform != "linux", reason="forks, and shares by open files: Linux")
def test_sent_to_another_process_the_base_is_shared_and_nothing_that_is_written() -> None:
    check_visit(Bases().one(rows()), "fork")


@needs_cuda
def test_on_cuda_the_base_is_shared_by_ipc_and_nothing_that_is_written() -> None:
    check_visit(Bases().one(rows().cuda()), "spawn")


@needs_cuda
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_on_cuda_gives_what_an_ordinary_module_gets(bases: Bases, name: str) -> None:
    theirs = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 48)).cuda()
    ours = wrap(copy.deepcopy(theirs), bases.of(theirs), SMALL)
    x = rows(16).cuda()
    for module in (ours, theirs):
        optimizer = OPTIMIZERS[name](module.parameters())
        for _ in range(4):
            optimizer.zero_grad()
            module(x).square().mean().backward()
            optimizer.step()
    kept = theirs.state_dict()
    assert all(same(value, kept[key]) for key, value in ours.state_dict().items())


# bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "act",
    [
        lambda w: w.data_ptr(),
        lambda w: w.untyped_storage(),
        lambda w: w.share_memory_(),
        lambda w: w.resize_(3),
        lambda w: w.t_(),
        lambda w: w.set_(torch.ones(3)),
        lambda w: torch.ones(3).set_(w),
        lambda w: setattr(w, "data", torch.ones(100, 48)),
        lambda w: setattr(w, "data", w.detach()[1:]),
        lambda w: copy.deepcopy(w.requires_grad_()[3]),
        lambda w: pickle.dumps(w.requires_grad_()[3]),
    ],
)
def test_what_would_go_round_it_is_refused(bases: Bases, act: Callable[..., object]) -> None:
    weight = bases.one(rows())
    with pytest.raises(BadInput, match=r"copy-on-write|leaves"):
        act(weight)
    assert not weight.chunks.private


def test_a_conversion_is_refused_and_none_that_changes_nothing(bases: Bases) -> None:
    ours = wrapped_net(bases)
    with pytest.raises(BadInput, match="convert the weights before"):
        ours.half()
    assert ours.float().to("cpu").embed.weight.dtype == torch.float32
    assert isinstance(ours.embed.weight, CopyOnWrite)
    assert private_bytes(ours) == 0


@pytest.mark.parametrize("threshold", [0, -4096, 4095, 1e5, None, "128 KiB"])
def test_a_threshold_is_a_number_of_bytes(threshold: object) -> None:
    with pytest.raises(BadInput, match="cow_threshold"):
        wrap(Holder(rows()), {"weight": rows()}, threshold)  # type: ignore[arg-type]


def test_tensors_that_cannot_be_a_base_are_refused() -> None:
    def refused(tensor: torch.Tensor, told: str) -> None:
        module = Holder(tensor)
        with pytest.raises(BadInput, match=told):
            wrap(module, {"weight": tensor})
        assert type(module.weight) is nn.Parameter

    refused(rows().t(), "clone")
    refused(torch.ones(65)[1:], "clone")
    refused(torch.ones(8, dtype=torch.complex64), "real numbers")
    refused(torch.ones(8, device="meta"), "real numbers")


def test_weights_of_another_module_are_refused_and_nothing_is_half_made(bases: Bases) -> None:
    tensors = bases.of(net())
    for change, told in (
        ({"layer.weight": rows()}, "24, 24"),
        ({"more": rows()}, "it has no more"),
        ({"layer.bias": None}, "they lack layer.bias"),
    ):
        wrong = {name: t for name, t in (tensors | change).items() if t is not None}
        with without_parameters():
            module = Net()
        with pytest.raises(ModelCorrupted, match=told):
            wrap(module, wrong)
        assert all(p.is_meta for p in module.parameters())


# against the kernel's pages -------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's figures of pages: Linux")
def test_against_the_kernels_pages_the_same_results_and_as_many_bytes() -> None:
    found = bench.measure(llama(), bench.Load(changed=0.2, tokens=4), ("pages", "tensors"),
                          thresholds=(SMALL, COW_THRESHOLD), repeat=2)  # fmt: skip
    assert all(row["same_bits"] for row in found["rows"])
    held = {(row["pattern"], row["system"]): row["private_bytes"] for row in found["rows"]}
    for pattern in ("pages", "tensors"):
        kernel, pages, chunks = (held[pattern, s] for s in (bench.KERNEL, SMALL, COW_THRESHOLD))
        assert 0.5 * kernel <= pages <= kernel  # the kernel's are whole pages
        assert pages <= chunks
    assert held["pages", SMALL] < held["pages", COW_THRESHOLD]
    phases = {row["phase"] for row in found["ratios"] if row["pattern"] == "tensors"}
    assert phases == set(bench.PHASES)


@pytest.mark.parametrize("pattern", bench.PATTERNS)
def test_what_is_changed_is_the_share_that_was_asked_for(pattern: str) -> None:
    layout = layout_of(bench.drawn().state_dict())
    change = bench.chosen(pattern, layout, bench.Load(changed=0.3))
    assert change.keys() == bench.chosen(pattern, layout, bench.Load(changed=0.3)).keys()
    sizes = {name: spot.num_bytes for name, spot in layout.spots.items()}
    written = sum(sizes[n] if at is None else 4 * len(at) for n, at in change.items())
    assert 0.2 < written / layout.weight_bytes <= 0.32


def test_a_bench_of_nothing_is_refused() -> None:
    for wrong in ({"patterns": ("lines",)}, {"repeat": 1}, {"thresholds": ()}):
        with pytest.raises(BadInput):
            bench.measure(**wrong)
    for fields in ({"changed": 0}, {"changed": 1.5}, {"tokens": 1}):
        with pytest.raises(BadInput):
            bench.Load(**fields)
