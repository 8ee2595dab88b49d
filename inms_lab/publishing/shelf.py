"""The shelf: a lab's sealed prompt and its teams' records in one file, with their KV.

One safetensors file of parcels (parcel.py), so that it is there as a whole or not at all:
    metadata "inms-shelf"    {"format", "tile", "prompts": [parcel, ...], "digest": of all that,
                             "teams": {name: [[parcel, ...], ...]}}; a parcel is what `Parcel.about`
                             says, and its digest, which covers its KV; a record's is the last of
                             its list, those before it stand before it and nowhere else in the file
    tensors "N.keys", "N.values"    [layers, K, T, D] of the parcels, numbered in that order
Not here: what a lab puts on it and takes from it (shelving.py). Private text is in no parcel.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError, safe_open

from inms_lab.books.fingerprint import digest
from inms_lab.errors import ParcelRefused, ShelfRefused
from inms_lab.publishing import parcel
from inms_lab.publishing.parcel import Parcel

FORMAT, METADATA = 1, "inms-shelf"
Parcels: TypeAlias = tuple[Parcel, ...]


@dataclass(frozen=True, slots=True)
class Shelf:
    """What a file holds: the prompt's parts, and each team's records, in their order."""

    tile: int
    prompts: Parcels
    teams: Mapping[str, tuple[Parcels, ...]]

    def __repr__(self) -> str:
        parts = [f"{len(self.prompts)} parts of a prompt"]
        parts += [f"{len(records)} records of {name}" for name, records in self.teams.items()]
        return f"<shelf: {', '.join(parts)}; {sum(len(p.tokens) for p in self.parcels)} tokens>"

    @property
    def parcels(self) -> list[Parcel]:
        """All of them, in the order of the file's tensors."""
        records = (record for records in self.teams.values() for record in records)
        return [*self.prompts, *(one for record in records for one in record)]

    def about(self) -> dict[str, Any]:
        """All but the tensors, as plain data."""

        def told(parcels: Parcels) -> list[dict[str, Any]]:
            return [one.about() | {"digest": one.digest()} for one in parcels]

        teams = {name: [*map(told, records)] for name, records in self.teams.items()}
        said = {"format": FORMAT, "tile": self.tile, "prompts": told(self.prompts), "teams": teams}
        return said | {"digest": _digest(said)}


def save(shelf: Shelf, path: Path) -> Path:
    """Write it, whole or not at all; gives the path. Raises `ParcelRefused`."""
    tensors: dict[str, torch.Tensor] = {}
    for number, one in enumerate(shelf.parcels):
        tensors |= {f"{number}.keys": one.keys, f"{number}.values": one.values}
    return parcel.write(tensors, {METADATA: json.dumps(shelf.about(), sort_keys=True)}, path)


def load(path: Path) -> Shelf:
    """The shelf in a file. Raises `ShelfRefused` where it is none, of another format, damaged, or
    where a text's keys are not those of the text."""
    if path.exists() and not path.is_file():
        raise ShelfRefused(f"{path} cannot be read: it is no file")  # a pipe would be waited for
    try:
        return _read(path)
    except OSError as error:
        raise ShelfRefused(f"{path} cannot be read: {error}") from error
    except ShelfRefused:
        raise
    except ParcelRefused as error:
        raise ShelfRefused(str(error)) from error
    except (SafetensorError, RecursionError, *parcel.DAMAGE) as error:
        raise ShelfRefused(f"{path} is no shelf, or damaged: {error!r:.300}") from error


def _read(path: Path) -> Shelf:
    with safe_open(path, "pt") as file:
        said = json.loads((file.metadata() or {}).get(METADATA, "{}"))
        if (told := said.get("format")) is None:
            raise ShelfRefused(f"{path} is no shelf: `lab.save_shared(path)` makes one")
        if told != FORMAT:
            raise ShelfRefused(
                f"{path} is of format {told!r:.40}, this lab reads {FORMAT}: save it anew"
            )
        written = said.pop("digest")
        if _digest(said) != written:
            raise ShelfRefused(f"{path} is damaged: copy it again")
        numbers = iter(range(len(file.keys()) // 2))

        def read(about: dict[str, Any]) -> Parcel:
            number = next(numbers)
            kv = (file.get_tensor(f"{number}.{half}") for half in ("keys", "values"))
            return parcel.checked(Parcel.of(about, *kv), about["digest"], path)

        def several(abouts: list[dict[str, Any]]) -> Parcels:
            return tuple(map(read, abouts))

        prompts = several(said["prompts"])
        teams = {str(n): tuple(map(several, records)) for n, records in said["teams"].items()}
        if not all(record for records in teams.values() for record in records):
            raise ValueError("a record without a parcel")
        if len(file.keys()) != 2 * len((shelf := Shelf(int(said["tile"]), prompts, teams)).parcels):
            raise ValueError("there are other tensors in it too")
    return shelf


def _digest(said: Mapping[str, Any]) -> str:
    return digest(json.dumps(said, sort_keys=True).encode()).hex()
