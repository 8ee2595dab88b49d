"""vLLM's CPU build: prefix caching, float32, its engine in this process. See protocol.py."""

from __future__ import annotations

import os
import time
from typing import Any

import protocol
from protocol import WARM_UP, Work


class VLLM:
    """The engine, stepped by hand. Its prefix cache keeps the contexts between rounds."""

    def __init__(self, work: Work, model: str, threads: int, eager: bool, block: int) -> None:
        import torch
        from vllm import EngineArgs, LLMEngine

        self.work, self.count, self.block = work, 0, block
        self.eager = eager
        self.engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=model,
                dtype="float32",
                enforce_eager=eager,
                enable_prefix_caching=True,
                block_size=block or None,
                max_model_len=work.longest(),
                max_num_seqs=max(16, work.agents),
                seed=work.seed,
            )
        )
        torch.set_num_threads(threads)
        for number in range(work.agents):
            self.first_token(work.context(number))
        for _ in range(2):  # whatever is compiled or tried out at these sizes
            self.decode()

    def about(self) -> dict[str, Any]:
        """Versions and settings."""
        import torch
        import vllm

        names = ("OMP_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_KVCACHE_SPACE")
        return {
            "vllm": vllm.__version__,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "enforce_eager": self.eager,
            "block_size": self.engine.vllm_config.cache_config.block_size,
            "preload": bool(os.environ.get("LD_PRELOAD")),
            **{name: os.environ.get(name, "") for name in names},
        }

    def add(self, context: list[int], tokens: int) -> str:
        """Submit a context that writes `tokens` tokens."""
        from vllm import SamplingParams

        self.count += 1
        params = SamplingParams(
            temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        self.engine.add_request(str(self.count), {"prompt_token_ids": context}, params)
        return str(self.count)

    def first_token(self, context: list[int]) -> float:
        """Seconds from the request to its only token."""
        started = time.perf_counter()
        self.add(context, 1)
        while self.engine.has_unfinished_requests():
            self.engine.step()
        return time.perf_counter() - started

    def decode(self) -> list[float]:
        """All agents at once; only steps in which each of them wrote one token count."""
        for number in range(self.work.agents):
            self.add(self.work.context(number), WARM_UP + self.work.tokens + 1)
        steps, written, last = list[float](), dict[str, int](), 0.0
        while self.engine.has_unfinished_requests():
            outputs = self.engine.step()
            now = time.perf_counter()
            lengths = {out.request_id: len(out.outputs[0].token_ids) for out in outputs}
            grown = [name for name, length in lengths.items() if length - written.get(name, 0) == 1]
            if len(grown) == self.work.agents and all(name in written for name in grown):
                steps.append(now - last)
            last = now if outputs else last  # a step may end without an output: it is counted too
            written |= lengths
        return steps

    def next_agent(self, number: int) -> float:
        """The shared prefix is found in the cache, the rest is computed."""
        return self.first_token(self.work.newcomer(number))

    def fragment(self, number: int) -> float:
        """Nothing is found, for the shared text does not begin the context."""
        return self.first_token(self.work.behind(number))


def main() -> None:
    """Command line."""
    parser = protocol.parser(__doc__)
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--block", type=int, default=0, help="tokens per block; 0: its default")
    options = parser.parse_args()
    work = protocol.work_of(options)
    cached = (work.distinct() + 4 * work.longest()) * 46_080  # bytes of one token's KV
    defaults = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": str(-(-cached // (1 << 30))),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{options.threads - 1}",
        "OMP_NUM_THREADS": str(options.threads),
    }
    os.environ.update({k: v for k, v in defaults.items() if k not in os.environ})
    model = str(options.model)
    protocol.serve(work, lambda: VLLM(work, model, options.threads, options.eager, options.block))


if __name__ == "__main__":
    main()
