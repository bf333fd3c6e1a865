"""How much memory a training takes on one device: weights, gradients and optimiser exactly, activations by counting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from tellapart.training.frozen import parts_of

if TYPE_CHECKING:
    from tellapart.captioners.huggingface import HuggingFaceCaptioner

STATES = 2
"""Numbers that AdamW keeps for each trained one, in its precision."""


@dataclass(frozen=True)
class PartMemory:
    """Memory of a part of a training, without weights that an earlier part counts.

    Args:
        name: of the part.
        trained: parameters that learn.
        frozen: parameters, and numbers packed into them, that stay.
        weights: bytes of both, and of buffers.
        gradients: bytes.
        optimiser: bytes.
        activations: bytes at the moment when its gradients begin; none where they could not be counted.
        module: ``id`` of the module.
    """

    name: str
    trained: int
    frozen: int
    weights: int
    gradients: int
    optimiser: int
    activations: int | None = 0
    module: int = 0

    @property
    def lasting(self) -> int:
        """Bytes that are taken from the first step on."""
        return self.weights + self.gradients + self.optimiser


def memory_of(
    trained: Mapping[str, nn.Module], frozen: Mapping[str, nn.Module], kept: Mapping[str, int | None] | None = None
) -> list[PartMemory]:
    """A row for every part, the trained ones first.

    Args:
        trained: name -> child of the objective.
        frozen: name -> model that is only read.
        kept: name of a trained part -> bytes of its activations; none where unknown.
    """
    known: set[int] = set()
    learning = {name: _row(name, module, known, learns=True) for name, module in trained.items()}
    rows = [_with_activations(row, (kept or {}).get(name, 0)) for name, row in learning.items()]
    rows += [_row(name, module, known, learns=False) for name, module in frozen.items()]
    return [row for row in rows if row.weights]


def peak(rows: Iterable[PartMemory]) -> int:
    """Bytes at the highest: all that lasts, and the activations of the part with most, since parts are differentiated one after
    the other."""
    rows = list(rows)
    return sum(row.lasting for row in rows) + max((row.activations or 0 for row in rows), default=0)


def frozen_models(holder: Any) -> dict[str, nn.Module]:
    """Name -> model that an objective (or a reward, an evaluation) holds without training it.

    They are found by looking: into what it holds, and into what that holds, wherever a part is of this package or a plain
    container. A model is named by what holds it.
    """
    found: dict[str, nn.Module] = {}
    own = {id(module) for module in holder.modules()} if isinstance(holder, nn.Module) else set()
    for name, module in _modules(holder, "model", own, set()):
        free = next(n for n in (name, *(f"{name} {i}" for i in range(2, 99))) if n not in found)
        found[free] = module
    return found


_PLAIN = ("model", "captioner", "network", "_captioner", "rewards")
"""Attributes that say less of a model than what holds them."""


_MOST = 100
"""Entries of a container up to which models are looked for in it: larger ones hold data."""


def _modules(thing: Any, name: str, own: set[int], seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    if id(thing) in seen or isinstance(thing, (str, bytes, int, float, Tensor, type)) or thing is None:
        return
    seen.add(id(thing))
    if isinstance(thing, nn.Module) and id(thing) not in own:
        seen.update(id(module) for module in thing.modules())
        yield name, thing
        return
    for inner, value in _held(thing, name):
        yield from _modules(value, inner, own, seen)


def _held(thing: Any, name: str) -> Iterable[tuple[str, Any]]:
    """The content of a container or an object of this package, by names."""
    if isinstance(thing, (Mapping, list, tuple)) and len(thing) > _MOST:
        return ()
    if isinstance(thing, Mapping):
        return [(str(key), value) for key, value in thing.items()]
    if isinstance(thing, (list, tuple)):
        return [(name, value) for value in thing]
    if not type(thing).__module__.startswith("tellapart.") or not hasattr(thing, "__dict__"):
        return ()
    kept = {key: value for key, value in vars(thing).items() if not key.startswith("_modules")}
    return [(name if key in _PLAIN else key.strip("_"), value) for key, value in kept.items()]


def _row(name: str, module: nn.Module, known: set[int], *, learns: bool) -> PartMemory:
    new: list[Tensor] = []
    for tensor in (*module.parameters(), *module.buffers()):
        memory = tensor.untyped_storage()._cdata
        if memory not in known:
            known.add(memory)
            new.append(tensor)
    trained = [t for t in new if learns and t.requires_grad]
    gradients = sum(t.nbytes for t in trained)
    parameters = {id(p) for p in module.parameters()}
    return PartMemory(
        name,
        trained=sum(t.numel() for t in trained),
        frozen=sum(t.numel() for t in new if id(t) in parameters) - sum(t.numel() for t in trained),
        weights=sum(t.nbytes for t in new),
        gradients=gradients,
        optimiser=STATES * gradients,
        module=id(module),
    )


def _with_activations(row: PartMemory, kept: int | None) -> PartMemory:
    return PartMemory(**{**vars(row), "activations": kept})


def sharded_peak(
    rows: Iterable[PartMemory],
    captioner: HuggingFaceCaptioner,
    references: Sequence[HuggingFaceCaptioner],
    frozen: Sequence[nn.Module] = (),
    *,
    devices: int,
    full: bool,
    bf16: bool,
    draws: bool,
) -> int:
    """Bytes at the highest on each of several devices that share a captioner (``sharding.py``), activations included.

    Args:
        rows: of the training without shards.
        captioner: what is trained.
        references: frozen copies of it that the training holds.
        frozen: other frozen models, whose parts are cut as well (``frozen.py``).
        devices: how many share it.
        full: whether layers are gathered one by one while captions are scored.
        bf16: whether layers compute in bfloat16, with weights in float32.
        draws: whether captions are drawn, for which all weights are gathered.
    """
    own, others = _sizes(captioner, bf16=bf16), [_sizes(reference, bf16=bf16) for reference in references]
    copies = {id(module) for module in (captioner, *references)}
    rest = sum(row.lasting for row in rows if row.module not in copies)
    activations = max((row.activations or 0 for row in rows), default=0)
    parts = [sum(p.nbytes for p in part.parameters()) for model in frozen for part in parts_of(model)]
    rest -= sum(parts)
    lasting = own.held + 2 * own.trained + sum(other.held for other in others) + sum(parts)
    reading = max([*(other.rest + other.layer for other in others), *parts], default=0)
    drawing = own.rest + own.layers + reading if draws else reading
    # Two layers: the next is gathered while one computes.
    scoring = own.rest + (2 * own.layer if full else own.layers) + activations + own.trained // devices
    return rest + lasting // devices + max(drawing, scoring)


@dataclass(frozen=True)
class _Sizes:
    """Bytes of a captioner: as shards of all processes together, of what learns, and gathered: rest, all layers, the largest."""

    held: int
    trained: int
    rest: int
    layers: int
    layer: int


def _sizes(captioner: HuggingFaceCaptioner, *, bf16: bool) -> _Sizes:
    def held(parameter: nn.Parameter) -> int:
        wide = bf16 and parameter.requires_grad
        return max(4, parameter.itemsize) * parameter.numel() if wide else parameter.nbytes

    def gathered(parameter: nn.Parameter) -> int:
        return 2 * parameter.numel() if bf16 and parameter.is_floating_point() else parameter.nbytes

    parameters = list(captioner.parameters())
    layers = [list(layer.parameters()) for layer in captioner.family.layers]
    inside = {id(parameter) for layer in layers for parameter in layer}
    sizes = [sum(map(gathered, layer)) for layer in layers]
    return _Sizes(
        sum(map(held, parameters)),
        sum(held(parameter) for parameter in parameters if parameter.requires_grad),
        sum(held(parameter) for parameter in parameters if id(parameter) not in inside),
        sum(sizes),
        max(sizes, default=0),
    )
