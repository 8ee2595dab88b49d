"""Compile the Triton kernels for GPUs that are not here, down to machine code: `python ahead.py`

For a process in which nothing tells Triton to interpret. Prints a line for each kernel.
"""

from __future__ import annotations

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from inms_lab.kernels import tiles_triton

SIZES = {"KV_HEADS": 3, "GROUPS": 3, "HEADS": 9, "DIM": 64, "BLOCK_D": 64, "BLOCK_STATES": 16}
ROWS = {"BLOCK_ROWS": 64, "BLOCK_TOKENS": 64, "PRECISION": "tf32"}
EXACT = {"BLOCK_ROWS": 16, "BLOCK_TOKENS": 32, "PRECISION": "ieee"}
ALIGNED = ("plan", "q", "k", "v", "kv", "out", "lse", "y", "q_row", "q_head", "k_row", "y_row")
MOST_SHARED = {75: 64 << 10, 80: 163 << 10, 90: 227 << 10}  # bytes that a program can have


def made(kernel: triton.JITFunction, kind: str, compute: int, sizes: dict[str, object]) -> None:
    """Compile `kernel` for KV of type `kind` and this compute capability."""
    pointers = dict.fromkeys(("q", "k", "v", "kv", "y"), f"*{kind}")
    types = {**pointers, "plan": "*i64", "out": "*fp32", "lse": "*fp32", "scale": "fp32"}
    names = kernel.arg_names
    constants = {(i,): sizes[name] for i, name in enumerate(names) if name in sizes}
    signature = {n: "constexpr" if n in sizes else types.get(n, "i32") for n in names}
    wide = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name in ALIGNED}
    source = ASTSource(kernel, signature, constants, wide)
    result = triton.compile(source, target=GPUTarget("cuda", compute, 32))
    assert result.metadata.shared <= MOST_SHARED[compute], (kernel, kind, compute)
    assert ".f64" not in result.asm["ptx"], "float64 slipped in"
    print(kernel.__name__, kind, f"sm_{compute}", len(result.asm["cubin"]), "bytes")


if __name__ == "__main__":
    for compute, kind, rows in ((75, "fp32", EXACT), (80, "bf16", ROWS), (90, "fp16", ROWS)):
        for kernel in (tiles_triton.write, tiles_triton.read, tiles_triton.join):
            made(kernel, kind, compute, SIZES | rows)
