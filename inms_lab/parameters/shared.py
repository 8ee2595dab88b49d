"""One copy of a model's weights for many agent processes, and versions of it. The way in.

params = SharedParameters("smollm2-135m")
ada = params.agent("ada")  # a process, forked; it has the weights, privately
ada.run(lambda model: ...)  # what it writes to them, it alone sees
task = params.branch("task")  # the same in this process
train(task.module); params.merge(task, validate=good_enough)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from inms_lab import reload
from inms_lab.errors import AgentDied, BadInput, MergeRefused, ParametersClosed
from inms_lab.leases import Row
from inms_lab.parameters.agent import AgentProcess
from inms_lab.parameters.branch import Branch
from inms_lab.parameters.merging import Changed, judge, merged
from inms_lab.parameters.pagemap import PageMap, page_map
from inms_lab.parameters.parent import NurseryLine
from inms_lab.parameters.region import View, require_support
from inms_lab.parameters.settings import Settings
from inms_lab.parameters.sources import Make, source_of
from inms_lab.parameters.versions import Version, after
from inms_lab.parameters.weights import filled, module_on, tensors_on

MOST_THREADS = 1024  # of an agent


class SharedParameters:
    """Weights in shared memory, which nobody can change, and whoever maps them.

    `source`: a model's name or folder (as `Lab` takes them), a module, a `.safetensors` file, or
    tensors by name; for the last two kinds `make` says how to build the module.
    `dtype`: element type of all weights with fractions, if not their own. `settings`: see
    `Settings`; single ones as keywords.

    Raises `ModelCorrupted`, `ModelNotFound`, `NotEnoughMemory`, `SharingUnsupported` or `BadInput`;
    nothing half-made is left then.
    """

    def __init__(
        self,
        source: str | Path | torch.nn.Module | Mapping[str, torch.Tensor] = "smollm2-135m",
        *,
        make: Make | None = None,
        dtype: torch.dtype | None = None,
        settings: Settings | None = None,
        **single: Any,
    ) -> None:
        require_support()
        reload.renew()  # a notebook's cell that is run again ends its earlier weights and agents
        if settings is not None and single:
            raise BadInput("settings or single ones, not both")
        try:
            self.settings = settings or Settings(**single)
        except TypeError:
            raise BadInput(
                f"settings are {', '.join(Settings.__slots__)}; not {', '.join(single)}"
            ) from None
        found = source_of(source, make, dtype)
        self.layout = found.layout
        pieces = filled(self.layout, found.tensors(), self.settings.shm_chunk_size)
        self.source = found.emptied()
        self._version = Version(0, tuple(pieces), self.source.digest)
        self._nursery: NurseryLine | None = None
        self._agents: dict[str, AgentProcess] = {}
        self._merging, self._lock = threading.Lock(), threading.RLock()
        self._num_made = 0
        self.closed = False
        reload.register(self)

    def __repr__(self) -> str:
        size = f"{self.num_bytes / 2**20:.1f} MiB"
        return f"<shared parameters {self.source.name}: {size}, version {self._version.number}>"

    # what there is ----------------------------------------------------------------------------

    @property
    def version(self) -> Version:
        """The newest version; whoever is made from now on has it."""
        return self._version

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights, in whole pages."""
        return self.layout.num_bytes

    @property
    def agents(self) -> list[AgentProcess]:
        """The agents that were not closed, the dead too; `lives` tells."""
        return [agent for agent in self._agents.values() if not agent.closed]

    def module(self) -> torch.nn.Module:
        """A module of this process on the newest version; what is written to it stays with it."""
        return module_on(self._make(), self._view(), self.layout)

    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors by name on a private view of the newest version."""
        return tensors_on(self._view(), self.layout)

    # agents -----------------------------------------------------------------------------------

    def agent(self, name: str | None = None, *, threads: int = 1, seed: int = 0) -> AgentProcess:
        """A new process with the newest version. `threads`: of its torch; `seed`: of its draws.

        Raises `BadInput` if an agent of this name lives, `NotEnoughMemory` if there can be no more
        processes.
        """
        reload.renew()  # an agent that an earlier run of this cell has made gives its name up
        with self._lock:
            self._require_open()
            self._num_made += 1
            name = name or f"agent-{self._num_made}"
            if not isinstance(name, str):
                raise BadInput(f"an agent's name is text, not {name!r}")
            if name in self._agents and self._agents[name].lives:
                raise BadInput(
                    f"there is an agent {name!r} already: close it, or take another name"
                )
            if not isinstance(threads, int) or not 1 <= threads <= MOST_THREADS:
                raise BadInput(f"threads is 1 to {MOST_THREADS}, not {threads!r}")
            if not isinstance(seed, int) or not 0 <= seed < 1 << 32:
                raise BadInput(f"seed is 0 to 2**32 - 1, not {seed!r}")
            if name in self._agents:
                self._agents[name].close()  # it has died
            agent = AgentProcess(name, self._started(), threads, seed, self._version)
            self._agents[name] = agent
            reload.register(agent)
            return agent

    def leases(self) -> list[Row]:
        """Who holds the weights in a process of its own, and until when it is believed to live."""
        return [] if self._nursery is None else self._nursery.rows()

    def recover(self) -> list[str]:
        """End all agents whose lease has run out, whatever `auto_recovery` says; their names."""
        return [] if self._nursery is None else list(self._nursery.ask("recover"))

    def pages(self, agent: AgentProcess | Branch) -> PageMap:
        """Which pages of the weights it shares, has for itself, or has not touched: the kernel's
        own figures. Raises `ProcessUnreadable`, `BadInput` for one of other weights."""
        mine = (
            isinstance(agent, AgentProcess | Branch) and agent.base.origin == self._version.origin
        )
        if not mine:
            raise BadInput(f"an agent or a branch of these weights is wanted, not {agent!r}")
        address = agent.address if isinstance(agent, AgentProcess) else agent.view.address
        pid = agent.pid if isinstance(agent, AgentProcess) else "self"
        return page_map(pid, address, self.layout)

    # branches ---------------------------------------------------------------------------------

    def branch(self, name: str) -> Branch:
        """The newest version in this process, to be changed: see `Branch`."""
        self._require_open()
        return Branch(name, self._version, self.layout, self._make())

    def merge(
        self,
        changed: Changed | Sequence[Changed],
        weights: Sequence[float] | None = None,
        validate: Callable[[torch.nn.Module], Any] | None = None,
        how: str = "average",
    ) -> Version:
        """A new version of what was changed, or of several changes: of their weighted average, in
        which what one alone has changed counts as its share; or, with `how="union"`, of all of them
        in full, if no page was changed by two.

        `validate` gets a module on the *merged* weights before anybody else can have them: unless
        it gives True, or nothing, the version stays what it is. Nobody sees anything in between;
        who has the old version keeps it until it moves. The branches are not closed.

        Raises `MergeRefused`: not valid, of an old version or of other weights, or another merge
        goes on; `BadInput`, `NotEnoughMemory`.
        """
        self._require_open()
        if not self._merging.acquire(blocking=False):
            raise MergeRefused("another merge is going on: wait for its end, then branch anew")
        try:
            base = self._version
            change = merged(base, changed, weights, self.layout, how)
            version = after(base, change, self.num_bytes)
            if validate is not None:
                view = version.view(self.num_bytes)
                judge(module_on(self._make(), view, self.layout), validate)
            self._publish(version)
            return version
        finally:
            self._merging.release()

    def _publish(self, version: Version) -> None:
        with self._lock:
            if self._nursery is not None and not self._nursery.lost:
                with suppress(AgentDied):  # the next agent starts another one
                    self._nursery.lay(version)  # if it cannot, there is no such version
            self._version = version

    # the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all agents; the memory is free when the last process that has it has ended."""
        with self._lock:
            if not self.closed:
                self.closed = True
                for agent in self._agents.values():
                    agent.close()
                if self._nursery is not None:
                    self._nursery.close()
                self._version = replace(self._version, pieces=(), deltas=())

    def __enter__(self) -> SharedParameters:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_open(self) -> None:
        if self.closed:
            raise ParametersClosed("these shared parameters are closed: make new ones")

    def _make(self) -> Make:
        if self.source.make is None:
            raise BadInput(
                "nobody knows of which module these tensors are: pass make=, a function that gives "
                "one (its weights do not matter), or use tensors()"
            )
        return self.source.make

    def _view(self) -> View:
        self._require_open()
        return self._version.view(self.num_bytes)

    def _started(self) -> NurseryLine:
        if self._nursery is None or self._nursery.lost:
            make = self._make()
            self._nursery = NurseryLine(self.layout, make, self.settings, self._version)
        return self._nursery
