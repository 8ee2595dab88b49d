"""Parcels: a record and its KV in a file, for a lab of the same model, tenant, team and prompt.

What must agree is what a block's key covers: namespace, label, all that stands before, the tokens.
So whoever finds the blocks in the other lab (importing.py) has what he would have computed there:
the same bits if both labs have one tile size and one machine, else the same up to rounding. Block
sizes may differ. The digest over a file finds damage; it is no signature.
"""

from __future__ import annotations

import json
import os
import threading
from array import array
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from inms_lab.attention.store import KVStore
from inms_lab.books import label
from inms_lab.books.fingerprint import Namespace, digest, label_bytes
from inms_lab.books.segment import Segment
from inms_lab.books.sequence import Sequence
from inms_lab.decisions.policy import DEFAULT, GROUP
from inms_lab.errors import BadInput, NotAMember, ParcelRefused
from inms_lab.publishing.records import Record, is_stale
from inms_lab.serving.engine import Engine

FORMAT, METADATA = 1, "inms-parcel"
DAMAGE = (LookupError, TypeError, ValueError, OverflowError, AttributeError, RuntimeError)


@dataclass(frozen=True, slots=True, eq=False)
class Parcel:
    """A record's text, what its KV depends on, and that KV: `keys`, `values` [layers, K, T, D]."""

    namespace: Namespace
    label: tuple[str, ...]
    tokens: tuple[int, ...]
    root: bytes  # digest of what it was encoded behind, in blocks of `block_size`
    encoded: int  # the position that its first key is rotated for
    block_size: int
    fingerprints: tuple[bytes, ...]  # of its blocks
    keys: torch.Tensor
    values: torch.Tensor

    @property
    def place(self) -> tuple[bytes, int]:
        """What stands before it: its digest and its number of tokens."""
        return self.root, self.encoded

    def about(self) -> dict[str, Any]:
        """All but the tensors, as plain data."""
        return {
            "format": FORMAT,
            "namespace": asdict(self.namespace),
            "label": self.label,
            "tokens": self.tokens,
            "root": self.root.hex(),
            "encoded": self.encoded,
            "block_size": self.block_size,
            "fingerprints": [key.hex() for key in self.fingerprints],
        }

    @classmethod
    def of(cls, said: dict[str, Any], keys: torch.Tensor, values: torch.Tensor) -> Parcel:
        """From `about()` and tensors. Raises one of `DAMAGE` where they make no sense."""
        out = cls(
            namespace=Namespace(**said["namespace"]),
            label=tuple(map(str, said["label"])),
            tokens=tuple(map(int, said["tokens"])),
            root=bytes.fromhex(said["root"]),
            encoded=int(said["encoded"]),
            block_size=int(said["block_size"]),
            fingerprints=tuple(map(bytes.fromhex, said["fingerprints"])),
            keys=keys,
            values=values,
        )
        if not array("i", out.tokens) or out.block_size < 1:
            raise ValueError("a record has tokens, a block has slots")
        return out

    def digest(self) -> str:
        """Of everything in it."""
        parts = [json.dumps(self.about(), sort_keys=True).encode()]
        for x in (self.keys, self.values):
            parts += [f"{x.dtype}{tuple(x.shape)}".encode()]
            parts += [x.contiguous().view(torch.uint8).numpy().tobytes()]
        return digest(*parts).hex()

    def due(self) -> tuple[bytes, ...]:
        """The fingerprints that follow from its text and its place."""
        where = ("", GROUP, self.label, self.block_size, self.encoded, self.root, self.encoded)
        own = Segment(*where, self.root, label_bytes(self.label), open=False, indexed=True)
        own.tokens.extend(self.tokens)
        return tuple(own.key(index) for index in range(-(-len(self.tokens) // self.block_size)))


def pack(engine: Engine, record: Record, clearance: label.Label) -> Parcel:
    """A record that holds, for who may read it (`clearance`). Raises `NotAMember`, and
    `ParcelRefused` where its KV is not what another lab would compute."""
    seq, store = engine.ledger.sequences[record.seq_id], engine.cache.store
    own = seq.segments[-1] if seq.segments else None
    if own is None or own.computed < len(own.tokens) or not isinstance(store, KVStore):
        raise ParcelRefused(f"{record!r} has no KV of its own in this lab (yet)")
    if not label.may_hold(own.label, clearance):
        raise NotAMember(
            f"{record!r} is for {', '.join(own.label)}: who exports it may not read it"
        )
    if why := unfit(engine, seq, own, record.tokens) or _stale(engine, record):
        raise ParcelRefused(f"{record!r} is not exported: {why}")
    return taken(engine, store, own, seq.tenant)


def taken(engine: Engine, store: KVStore, own: Segment, tenant: str = DEFAULT) -> Parcel:
    """A written segment's text and KV, of a holder of this tenant."""
    where, layers = slots(own, 0, len(own.tokens)).to(store.device), range(store.shape[1])
    kv = [torch.stack([store.layer(own.pool_id, n)[i][:, where] for n in layers]) for i in (0, 1)]
    prints = tuple(own.key(index) for index in range(len(own.blocks)))
    place = (own.label, tuple(own.tokens), own.root, own.encoded, own.block_size)
    return Parcel(engine.namespace_of(tenant), *place, prints, *(half.cpu() for half in kv))


def unfit(engine: Engine, seq: Sequence, own: Segment, tokens: tuple[int, ...]) -> str:
    """Why the KV of a holder's sealed text is not what another lab would compute; "": it is."""
    if engine.policy.off:
        return "checks are switched off in this lab"
    if seq.namespace != engine.namespace_of(seq.tenant).root():
        return "it was encoded by other weights, or for another tenant, than the lab has now"
    if own.is_fragment or tuple(own.tokens) != tokens:
        return "its KV was encoded at another place"
    return ""


def _stale(engine: Engine, record: Record) -> str:
    behind = "it stands behind what holds no longer: attach the team's records first"
    return behind if is_stale(engine, record) else ""


def slots(segment: Segment, start: int, stop: int) -> torch.Tensor:
    """Where the KV of its tokens [start, stop) lies in the pool's region."""
    size = segment.block_size
    return torch.tensor(
        [segment.blocks[at // size] * size + at % size for at in range(start, stop)]
    )


def path_of(path: str | Path) -> Path:
    """Raises `BadInput` where this names no file."""
    if not isinstance(path, (str, Path)) or Path(path).name in ("", "..") or "\0" in str(path):
        raise BadInput(f"a file is wanted, not {path!r}")
    return Path(path)


def save(parcel: Parcel, path: Path) -> Path:
    """Write a parcel to one safetensors file, whole or not at all; gives its path. Equal parcels
    give equal files. Raises `ParcelRefused` where it cannot be written."""
    about = json.dumps(parcel.about() | {"digest": parcel.digest()}, sort_keys=True)
    return write({"keys": parcel.keys, "values": parcel.values}, {METADATA: about}, path)


def write(tensors: dict[str, torch.Tensor], metadata: dict[str, str], path: Path) -> Path:
    """A safetensors file, whole or not at all. Raises `ParcelRefused`."""
    if not path.parent.is_dir():
        raise ParcelRefused(f"there is no folder {path.parent}: make it first")
    part = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        save_file(tensors, part, metadata)
        part.replace(path)
    except (OSError, SafetensorError) as error:
        raise ParcelRefused(f"{path} cannot be written: {error}") from error
    finally:
        with suppress(OSError):
            part.unlink()
    return path


def load(path: Path) -> Parcel:
    """The parcel in a file. Raises `ParcelRefused` where it is none or of another format, damaged,
    or where its keys are not those of its text. Whether its KV is that of its text, only who made
    it knows."""
    if path.exists() and not path.is_file():
        raise ParcelRefused(f"{path} cannot be read: it is no file")  # a pipe would be waited for
    try:
        return checked(*_read(path), path)
    except ParcelRefused:
        raise
    except OSError as error:
        raise ParcelRefused(f"{path} cannot be read: {error}") from error
    except (SafetensorError, *DAMAGE) as error:
        raise ParcelRefused(f"{path} is no parcel, or damaged: {error!r:.300}") from error


def checked(parcel: Parcel, written: object, path: Path) -> Parcel:
    """The parcel, if its digest is what was `written` and what it says of itself holds; raises
    `ParcelRefused`, or one of `DAMAGE`."""
    whole, due = parcel.digest() == written, parcel.fingerprints == parcel.due()
    finite = bool(parcel.keys.isfinite().all() and parcel.values.isfinite().all())
    if not whole:
        raise ParcelRefused(f"{path} is damaged: copy it again")
    if not due:
        raise ParcelRefused(f"{path}: its keys do not follow from its tokens, label and place")
    if not finite:
        raise ParcelRefused(f"{path}: its KV is not all of finite numbers")
    return parcel


def _read(path: Path) -> tuple[Parcel, object]:
    """What a file says, and the digest that was written into it."""
    with safe_open(path, "pt") as file:
        about = json.loads((file.metadata() or {}).get(METADATA, "{}"))
        told = about.get("format")
        if told == FORMAT:
            keys, values = (file.get_tensor(name) for name in ("keys", "values"))
            return Parcel.of(about, keys, values), about.get("digest")
    if told is None:
        raise ParcelRefused(f"{path} is no parcel: `team.export(record, path, by=agent)` makes one")
    raise ParcelRefused(
        f"{path} is of format {told!r:.40}, this lab reads {FORMAT}: export it anew"
    )
