"""transformers in the lab's own environment: a dense cache, every row with its own copy of the
prefix. See protocol.py.

The prefix is computed once and copied into the rows, which saves time in filling them; a newcomer
is computed whole, for nothing is shared.
"""

from __future__ import annotations

import time
from typing import Any

import protocol
import torch
import transformers
from protocol import WARM_UP, Work
from transformers import AutoModelForCausalLM, DynamicCache

CHUNK = 512


class Transformers:
    """A batch of `agents` rows, one cache."""

    def __init__(self, work: Work, model: str, threads: int) -> None:
        torch.set_num_threads(threads)
        torch.manual_seed(work.seed)
        self.work = work
        self.model = AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        with torch.inference_mode():
            self._fill()
            self.decode()

    def _fill(self) -> None:
        work = self.work
        prefix, _ = self._read(work.prefix(), DynamicCache())
        rows, firsts = [], []
        for number in range(work.agents):
            row = DynamicCache()
            for layer, kept in enumerate(prefix.layers):
                row.update(kept.keys, kept.values, layer)
            row, token = self._read(work.own_text(number), row)
            rows.append(row)
            firsts.append(token)
        self.cache = DynamicCache()
        for layer in range(len(prefix.layers)):
            keys = torch.cat([row.layers[layer].keys for row in rows])
            values = torch.cat([row.layers[layer].values for row in rows])
            for row in rows:  # one layer at a time, for memory
                row.layers[layer].keys = row.layers[layer].values = keys[:0]
            self.cache.update(keys, values, layer)
        self.firsts = torch.tensor(firsts)[:, None]

    def about(self) -> dict[str, Any]:
        """Versions and settings."""
        return {
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "attention": self.model.config._attn_implementation,
            "cache": type(self.cache).__name__,
        }

    def _read(self, tokens: list[int], cache: DynamicCache) -> tuple[DynamicCache, int]:
        for start in range(0, len(tokens), CHUNK):
            ids = torch.tensor([tokens[start : start + CHUNK]])
            out = self.model(input_ids=ids, cache=cache, logits_to_keep=1)
        return cache, int(out.logits[0, -1].argmax())

    @torch.inference_mode()
    def decode(self) -> list[float]:
        """All rows at once; what they wrote is cut off again."""
        tokens, steps, last = self.firsts, list[float](), time.perf_counter()
        for _ in range(WARM_UP + self.work.tokens):
            out = self.model(input_ids=tokens, cache=self.cache, logits_to_keep=1)
            tokens = out.logits[:, -1].argmax(-1, keepdim=True)
            now = time.perf_counter()
            steps.append(now - last)
            last = now
        self.cache.crop(-len(steps))
        return steps

    @torch.inference_mode()
    def next_agent(self, number: int) -> float:
        """Computed whole."""
        return self._first_token(self.work.newcomer(number))

    @torch.inference_mode()
    def fragment(self, number: int) -> float:
        """Computed whole, too."""
        return self._first_token(self.work.behind(number))

    def _first_token(self, context: list[int]) -> float:
        started = time.perf_counter()
        self._read(context, DynamicCache())
        return time.perf_counter() - started


def main() -> None:
    """Command line."""
    options = protocol.parser(__doc__).parse_args()
    work = protocol.work_of(options)
    protocol.serve(work, lambda: Transformers(work, str(options.model), options.threads))


if __name__ == "__main__":
    main()
