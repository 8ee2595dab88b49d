"""Processes that load a model for themselves, as agents do that share nothing; and what every
process of a measurement does with its model, of whichever kind it is.

Run as a program, it is a fresh interpreter that loads a model and then is asked as agents are, by
the same code.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from inms_lab.errors import BadInput, NotEnoughMemory, ProcessUnreadable
from inms_lab.model.source import resolve
from inms_lab.parameters import child
from inms_lab.parameters.agent import AgentProcess
from inms_lab.parameters.kernel import PRIVATE, between, page_states
from inms_lab.parameters.region import PAGE, View, pages_of
from inms_lab.parameters.versions import Version

PROMPT = 16  # tokens that a model reads before it writes
PYTHON = 320 << 20  # bytes of Python, torch and what generating takes, with some air
PATIENCE = 30.0  # seconds for processes to end
NEVER = 3600.0  # seconds between beats that nobody hears
AT_ONCE = 1 << 20  # values that are drawn from together: the draw itself takes memory too

Flat = list[torch.Tensor]


def work(model: Any, tokens: int, seed: int = 0) -> list[int]:
    """Read a drawn prompt and write `tokens` (a model that cannot write reads as many), then read
    all weights once: from then on each of their pages is in memory and mapped. Gives what it wrote,
    or where its last states are greatest."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(model.config.vocab_size, (1, PROMPT + tokens), generator=draw)
    with torch.no_grad():
        if model.can_generate():
            ids, length = ids[:, :PROMPT], {"min_new_tokens": tokens, "max_new_tokens": tokens}
            mask = torch.ones_like(ids)
            wrote = model.generate(ids, attention_mask=mask, do_sample=False, **length)
            told = wrote[0, PROMPT:]
        else:
            told = model(ids).last_hidden_state[0].argmax(-1)
        for weight in model.parameters():
            weight.sum()
    return list(told.tolist())


def change(model: torch.nn.Module, share: float, pattern: str, seed: int) -> int:
    """Add 1 to about `share` of a model's weights, drawn; gives how many bytes that were.

    tensors    whole ones in a drawn order, each that still fits into the share
    pages      whole pages
    scattered  single values
    """
    draw = np.random.default_rng(seed)
    return _CHANGES[pattern]([p.data.view(-1) for p in model.parameters()], share, draw)


def _tensors(flat: Flat, share: float, draw: np.random.Generator) -> int:
    wanted, done = share * sum(values.nbytes for values in flat), 0
    for at in draw.permutation(len(flat)):
        if done + flat[at].nbytes <= wanted:
            flat[at] += 1
            done += flat[at].nbytes
    return done


def _pages(flat: Flat, share: float, draw: np.random.Generator) -> int:
    ends = np.cumsum([pages_of(values.nbytes) // PAGE for values in flat])
    chosen = draw.choice(ends[-1], round(share * ends[-1]), replace=False)
    done = 0
    for page, owner in zip(chosen, np.searchsorted(ends, chosen, side="right"), strict=True):
        values = flat[owner]
        size = PAGE // values.element_size()
        at = int(page - ends[owner]) * size + pages_of(values.nbytes) // values.element_size()
        part = values[at : at + size]
        part += 1
        done += part.nbytes
    return done


def _scattered(flat: Flat, share: float, draw: np.random.Generator) -> int:
    done = 0
    for values in flat:
        for part in values.split(AT_ONCE):
            chosen = torch.from_numpy(np.flatnonzero(draw.random(len(part)) < share))
            part[chosen] += 1
            done += len(chosen) * part.element_size()
    return done


_CHANGES = {"pages": _pages, "tensors": _tensors, "scattered": _scattered}
PATTERNS = tuple(_CHANGES)


def weights_pss(model: torch.nn.Module) -> int:
    """PSS of the weights of a model of this process, in bytes: of the files' mappings that they lie
    in, and of the pages of other memory that hold them, which are this process' alone."""
    spans = [(p.data_ptr(), p.data_ptr() + p.nbytes) for p in model.parameters()]
    areas = [area for area in _file_areas() if any(area[0] <= at < area[1] for at, _ in spans)]
    pages: set[int] = set()
    for at, stop in spans:
        if not any(start <= at < end for start, end in areas):
            pages.update(_own_pages(at, stop))
    return sum(between("self", *area).pss for area in areas) + len(pages) * PAGE


def _file_areas() -> list[tuple[int, int]]:
    """Where files are mapped here: (first address, the one behind the last)."""
    lines = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
    areas = [line.split()[0].split("-") for line in lines if line.split()[4] != "0"]
    return [(int(start, 16), int(stop, 16)) for start, stop in areas]


def _own_pages(start: int, stop: int) -> list[int]:
    """Numbers of the pages between two addresses that are in memory and private."""
    first = start // PAGE
    states = page_states("self", first * PAGE, pages_of(stop - first * PAGE))
    if states is None:
        raise ProcessUnreadable("the kernel does not tell single pages here (/proc/self/pagemap)")
    return [first + int(at) for at in np.flatnonzero(states == PRIVATE)]


def main(socket_number: int, folder: str, kind: str, whose: str) -> int:
    """The program; gives the exit code. `kind`: transformers' class for what the folder holds.
    `whose`: "mapped", the file's pages as transformers maps them, or "own", all weights copied into
    memory of this process."""
    import transformers

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    model = getattr(transformers, kind).from_pretrained(folder, local_files_only=True)
    if whose == "own":
        for weight in model.parameters():
            weight.data = weight.data.clone()
    nothing = Version(0, (), "")
    me = child.Me("independent", model, View(0), nothing, Connection(socket_number))
    return child.live(me, os.open(os.devnull, os.O_WRONLY), NEVER, 0)


class Starter:
    """Starts such processes: to an `AgentProcess` it is what the nursery is to those that share."""

    address = 0

    def __init__(self, *args: str) -> None:
        self._args = args  # of `main`, behind the socket
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> AgentProcess:
        """A new one, which may still be loading its model."""
        name, nothing = f"independent-{len(self._processes)}", Version(0, (), "")
        return AgentProcess(name, self, 1, 0, nothing)  # type: ignore[arg-type]

    def fork(self, name: str, threads: int, seed: int) -> tuple[Connection, int, int]:
        """What `AgentProcess` asks for: its line, pid and epoch."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "inms_lab.bench.own_weights", str(theirs.fileno())]
            process = subprocess.Popen(
                [*command, *self._args],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # an interrupt is the measurement's affair
            )
        self._processes.append(process)
        return Connection(ours.detach()), process.pid, 0

    def rows(self) -> list[Any]:
        """Nobody keeps leases of them."""
        return []

    def close(self) -> None:
        """End all at once, whatever they do: nobody needs anything of them."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()


def most_of(works: Sequence[Future[Any]], figure: Callable[[], int]) -> int:
    """The greatest figure seen until all of this is done, and right after. Raises what one did."""
    most, left = figure(), set(works)
    while left:
        left = wait(left, timeout=0.1).not_done
        most = max(most, figure())
    for one in works:
        one.result()
    return most


def end(agents: Sequence[AgentProcess]) -> None:
    """Close them, and wait until their processes have ended."""
    import psutil

    for agent in agents:
        agent.close()
    pids = {agent.pid for agent in agents}
    psutil.wait_procs([one for one in psutil.process_iter() if one.pid in pids], PATIENCE)


def bert_base() -> Any:
    """An encoder of BERT-base size with drawn weights: 418 MiB."""
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig()).eval()


@contextmanager
def on_disk(source: Any) -> Iterator[tuple[str, str]]:
    """A folder that transformers loads a source from, and by which of its classes."""
    if isinstance(source, str | Path):
        yield str(resolve(source)), "AutoModelForCausalLM"
        return
    if not hasattr(source, "save_pretrained"):
        raise BadInput("a model's name, its folder or a module of transformers is measured")
    with tempfile.TemporaryDirectory(prefix="inms-") as folder:
        source.save_pretrained(folder)
        yield folder, type(source).__name__


def require_memory(processes: int, weights: int) -> None:
    """Raises `NotEnoughMemory` if so many with so many bytes of weights each would not fit."""
    import psutil

    needed, free = processes * (weights + PYTHON) + weights, psutil.virtual_memory().available
    if needed > free:
        raise NotEnoughMemory(
            f"{processes} independent processes need {needed / 2**30:.1f} GiB, {free / 2**30:.1f} "
            "GiB are free: measure fewer agents, or a smaller model"
        )


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), *sys.argv[2:]))
