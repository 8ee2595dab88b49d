"""A transformers model behind one attention function: packed tokens in, logits of chosen rows out.

Attention reaches `Batch.attend` through transformers' public interface (`AttentionInterface`), the
batch passed as a keyword argument through the model's own forward. Not here: which models may be
used (admission.py), where they come from (source.py, loader.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Event, RLock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from transformers import AttentionInterface, PreTrainedModel

from inms_lab.attention.batch import Batch, Span, build
from inms_lab.attention.rope import Rotation
from inms_lab.attention.store import KVStore
from inms_lab.errors import ModelRefused
from inms_lab.kernels.launcher import Launcher
from inms_lab.kernels.native import Native
from inms_lab.model import fused
from inms_lab.model.compiling import kernels

if TYPE_CHECKING:
    from inms_lab.model.admission import Admission
    from inms_lab.model.chat import ChatFormat

ATTENTION = "inms"
IGNORED = frozenset(  # keywords that change nothing about attention over an explicit batch
    (
        *("position_ids", "use_cache", "cache", "cache_position", "is_causal"),
        *("output_attentions", "output_router_logits"),
    )
)
# One forward of a model at a time: a dense one changes the model for as long as it takes.
_BUSY: WeakKeyDictionary[torch.nn.Module, AbstractContextManager[bool]] = WeakKeyDictionary()


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    inms_batch: Batch | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention call: query [1, H, T, D], key and value [1, K, T, D]."""
    if inms_batch is None:
        raise ModelRefused("its attention drops the keyword that carries the batch")
    unknown = [n for n, x in kwargs.items() if x is not None and n not in IGNORED]
    if attention_mask is not None:
        unknown.append("attention_mask")
    if dropout:
        unknown.append("dropout")
    if unknown:
        names = ", ".join(f"`{name}`" for name in unknown)
        raise ModelRefused(f"its attention needs {names}, which the tile grid does not implement")
    if key.shape[-1] != value.shape[-1]:
        raise ModelRefused("its keys and values have different head sizes")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return inms_batch.attend(layer, q, k, v, scale).unsqueeze(0), None


@dataclass(frozen=True, slots=True)
class Geometry:
    """What decides the size of the KV of one token."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


def context_limit(config: Any) -> tuple[int, str]:
    """Tokens up to which a context is attended to as a whole, and why not more ("": it is the
    model's own limit). Beyond it stock transformers does what the tile grid does not."""
    limits = [(int(config.max_position_embeddings), "")]
    chunk = getattr(config, "attention_chunk_size", None)
    if chunk and "chunked_attention" in (getattr(config, "layer_types", None) or ()):
        why = "beyond that some layers see their chunk only (`attention_chunk_size`)"
        limits.append((int(chunk), why))
    if (rows := unscaled_rows(config)) is not None:
        limits.append((rows, "beyond that queries are scaled (`attn_temperature_tuning`)"))
    return min(limits)


def unscaled_rows(config: Any) -> int | None:
    """How many queries of a forward are not scaled (Llama 4); None: there is no such scale.

    Layers without a rotation multiply the query of index i by 1 + s log(1 + floor((i+1) / f)). The
    index is that of the row in its forward, whatever its position.
    """
    if not getattr(config, "attn_temperature_tuning", False):
        return None
    return int(config.floor_scale) - 1


class Runner:
    """A loaded model: `forward(spans, store)` and a store of the right shape."""

    def __init__(self, model: PreTrainedModel, name: str, digest: str) -> None:
        AttentionInterface.register(ATTENTION, attend)
        self.model, self.name, self.digest = model.eval(), name, digest
        fused.uninstall(self.model)  # what an earlier runner gave it
        self._busy = _BUSY.setdefault(model, RLock())
        self.model.set_attn_implementation(ATTENTION)
        self.stock = "sdpa" if getattr(model, "_supports_sdpa", True) else "eager"
        self.config = model.config.get_text_config()
        heads = self.config.num_attention_heads
        self.geometry = Geometry(
            num_layers=self.config.num_hidden_layers,
            num_heads=heads,
            num_kv_heads=getattr(self.config, "num_key_value_heads", None) or heads,
            head_dim=getattr(self.config, "head_dim", None) or self.config.hidden_size // heads,
        )
        self.vocab_size = int(self.config.vocab_size)
        self.max_context, self.context_reason = context_limit(self.config)
        self.max_rows = unscaled_rows(self.config)  # of one forward; None: any number
        self.native: Native | Launcher | None = None  # compiled kernels, once they are asked for
        self.fused: dict[torch.nn.Module, Callable[..., Any]] = {}  # what they compute instead
        self.row_multiple = 16  # confirmed or raised by the probe of the admission
        self.bitwise = False  # set by the admission
        self.admission: Admission | None = None
        self.tokenizer: Any = None
        self.chat: ChatFormat | None = None
        self.stop_tokens: frozenset[int] = frozenset()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        """The weights' element type, and the KV's."""
        return self.model.dtype

    @property
    def unsafe(self) -> str:
        """Why its KV cannot be used at another position; "": it can."""
        return self.admission.fragments_reason if self.admission else "it was not admitted"

    @property
    def rotations(self) -> tuple[Rotation | None, ...]:
        """How each layer's keys turn with their position; empty where that is not safe."""
        if self.admission is None or self.unsafe:
            return ()
        return tuple(layer.rope for layer in self.admission.layers)

    def compile(self) -> None:
        """Use the compiled kernels from now on. Raises `CompilerMissing`, or `BadInput`."""
        self.native = kernels(self.geometry, self.dtype, self.device)
        if isinstance(self.native, Native):
            self.fused = fused.forwards(self.native, self.model, attend, self.geometry)
            fused.install(self.fused)

    def decompile(self) -> None:
        """Back to torch's operators."""
        fused.uninstall(self.model)
        self.native, self.fused = None, {}

    def report(self) -> str:
        """What the admission found, layer by layer."""
        return self.admission.report() if self.admission else f"{self.name}: not admitted yet"

    def new_store(self) -> KVStore:
        """An empty KV store for this model."""
        g = self.geometry
        return KVStore(g.num_layers, g.num_kv_heads, g.head_dim, self.dtype, self.device)

    def weights_bytes(self) -> tuple[int, int]:
        """Bytes by the number of parameters, and of the memory behind all tensors, each once."""
        parameters, buffers = list(self.model.parameters()), list(self.model.buffers())
        storages = {x.untyped_storage().data_ptr(): x for x in (*parameters, *buffers)}
        memory = sum(x.untyped_storage().nbytes() for x in storages.values())
        return sum(x.numel() * x.itemsize for x in parameters), memory

    @torch.inference_mode()
    def forward(
        self, spans: Sequence[Span], store: KVStore, tile: int, cancel: Event | None = None
    ) -> torch.Tensor:
        """Compute these spans; logits [spans that want them, vocab] in float32, in their order.

        A set `cancel` stops between two layers with `StepInterrupted`.
        """
        batch = self.batch(spans, store, tile)
        batch.cancel = cancel
        if self.max_rows is not None and batch.num_rows > self.max_rows:
            raise ModelRefused(
                f"{self.name} scales the queries of long forwards: use a token_budget "
                f"of at most {self.max_rows}, not {batch.num_rows}"
            )
        wanted = sum(span.wants_logits for span in spans)
        with self._busy:  # another thread's forward would put its logits in their place
            self.run(batch)
            return self.last_logits[:wanted].float()

    def batch(self, spans: Sequence[Span], store: KVStore, tile: int) -> Batch:
        """These spans as one forward's batch, for `run`."""
        native = self.native
        cpu = isinstance(native, Native)  # whose kernels take float32 only, whatever became of it
        floats = not cpu or self.dtype == store.dtype == torch.float32
        if native is not None and not (floats and native.serves(self.geometry.head_dim)):
            native = None
        heads = self.geometry.num_heads
        return build(spans, store, tile, heads, self.row_multiple, self.rotations, native)

    def run(self, batch: Batch) -> None:
        """One forward of the whole model under our attention; the logits stay in `last_logits`."""
        with self._busy:
            self.last_logits = torch.empty(0)  # two steps' logits are never held at once
            out = self.model(
                input_ids=batch.input_ids,
                position_ids=batch.position_ids,
                use_cache=False,
                logits_to_keep=batch.logit_rows,
                inms_batch=batch,
            )
            if batch.run is not None:
                batch.run.end()
                batch.run = None
            self.last_logits = out.logits[0]

    @torch.inference_mode()
    def dense(self, tokens: Sequence[int]) -> torch.Tensor:
        """The slower truth: stock transformers over one whole context; logits [T, vocab]."""
        with self._busy:
            self.model.set_attn_implementation(self.stock)
            taken = fused.uninstall(self.model)
            try:
                ids = torch.tensor([list(tokens)], device=self.device)
                return self.model(input_ids=ids, use_cache=False).logits[0].float()
            finally:
                self.model.set_attn_implementation(ATTENTION)
                fused.install(taken)
