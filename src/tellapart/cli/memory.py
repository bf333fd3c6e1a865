"""What ``train --dry_run`` reports of memory: of the built parts, or, without weights, of the configurations alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tellapart.cli.console import table
from tellapart.run_files import RECORD_FILE

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tellapart.recipe.build import Built
    from tellapart.recipe.recipe import Recipe
    from tellapart.recipe.sections import ListenerSection
    from tellapart.training.memory import PartMemory

WEIGHTS = ("*.safetensors", "*.bin", "adapter_config.json", RECORD_FILE)
"""Files that a captioner's folder with weights has one of."""

DEVICES = (2, 4, 8)
"""Sizes of launches for which the memory of sharded training is shown."""

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "blip2-opt-2.7b": {
        "model_type": "blip-2",
        "image_token_index": 50265,
        "num_query_tokens": 32,
        "text_config": {
            "model_type": "opt",
            "vocab_size": 50304,
            "hidden_size": 2560,
            "word_embed_proj_dim": 2560,
            "ffn_dim": 10240,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "eos_token_id": 50118,
        },
    }
}
"""Name -> configuration of models whose memory is known without a folder; the image tower is the usual one, ViT-g."""


def memory_table(recipe: Recipe, built: Built) -> str:
    """The memory of a training that was built."""
    from tellapart.training.memory import frozen_models, memory_of
    from tellapart.training.start import device_of, two_pictures

    objective, dataset = built.objective, built.data
    batch = dataset.collate(two_pictures(dataset.sample, dataset.collate)).to(device_of(built.captioner))
    inputs = batch.inputs.get(built.captioner.name, {})
    kept = _activations(recipe, objective, inputs)
    frozen = frozen_models(objective)
    if built.watch is not None:
        known = {id(module) for module in (*frozen.values(), *objective.modules())}
        watched = frozen_models(built.watch.evaluation)
        frozen |= {f"evaluation: {n}": module for n, module in watched.items() if id(module) not in known}
    return _told(recipe, memory_of(dict(objective.named_children()), frozen, kept), objective, list(frozen.values()))


def lacks_weights(name: str) -> bool:
    """Whether a captioner is a configuration only: a folder without weights, or the name of an architecture."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return name in ARCHITECTURES
    return (folder / "config.json").is_file() and not any(next(folder.glob(kind), None) for kind in WEIGHTS)


def memory_of_configurations(recipe: Recipe) -> str:
    """The memory of a training whose captioner has no weights: modules are made on the device ``meta``, which takes none.

    Raises:
        UsageError: the configuration is of an unknown family, or its images and words cannot be made up.
    """
    import torch

    from tellapart.recipe.build import check_together
    from tellapart.recipe.unweighted import configured_model, unweighted_captioner
    from tellapart.training.memory import frozen_models, memory_of

    check_together(recipe)
    with torch.device("meta"):
        captioner, inputs = unweighted_captioner(recipe.captioner, ARCHITECTURES)
        trained: dict[str, nn.Module] = {"captioner": captioner}
        if "critic" in recipe.kind.needs:
            from tellapart.recipe.critics import new_critic

            trained["critic"] = new_critic(captioner, recipe.parts["critic"], seed=recipe.training.seed)
        holder = _Holder(trained, recipe)
        kept = _activations(recipe, holder, inputs)
        holds_start = recipe.kind.holds_start or recipe.objective.get("kl_coef")
        holder.reference = captioner.reference() if holds_start else None
        frozen = frozen_models({"reference": holder.reference}) if holds_start else {}
        for name, path, dtype in _reward_models(recipe):
            frozen[name] = configured_model(path, dtype, size=recipe.data.size)
    return _told(recipe, memory_of(trained, frozen, kept), holder, list(frozen.values()))


def _reward_models(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """Name, path and precision of the models that rewards ask: the recipe's, and those that rewards have for themselves."""
    shared = {"listener": recipe.listener, **recipe.parts}
    for owner, parts in (("", shared), *((f" of {entry.name}", entry.parts) for entry in recipe.reward)):
        matcher, reader, listener = (parts.get(name) for name in ("matcher", "language_model", "listener"))
        found = {
            "matcher": (matcher.model, matcher.dtype) if matcher is not None else (None, ""),
            "language model": (reader.path, reader.dtype) if reader is not None else (None, ""),
            "listener": (_configured_listener(listener) if listener is not None else None, "float32"),
        }
        yield from ((f"{name}{owner}", path, dtype) for name, (path, dtype) in found.items() if path is not None)


def _configured_listener(section: ListenerSection) -> str | None:
    """Where the configuration of a listener is: a checkpoint file has none, but is as large as its base."""
    from tellapart.listeners.kinds import is_checkpoint
    from tellapart.listeners.loading import PAC_BASE

    if section.path is None or not is_checkpoint(section.path):
        return section.path
    return str(section.base or PAC_BASE)


class _Holder:
    """The models and optimiser states that an objective would hold."""

    def __init__(self, trained: Mapping[str, nn.Module], recipe: Recipe) -> None:
        self.trained = dict(trained)
        self.captioner, self.critic = trained["captioner"], trained.get("critic")
        self.reference: Any = None
        given_captions = {"captions_per_image", "pairs_per_image"} & set(recipe.objective)
        self.draws = not given_captions or bool(recipe.objective.get("scheduled_sampling"))
        self.scoring_batch_size = recipe.objective.get("scoring_batch_size")
        self.max_new_tokens = recipe.objective.get("max_new_tokens", 40)
        # All pairs of an image cannot be counted without the data: they count as one.
        pairs = 2 * (recipe.objective["pairs_per_image"] or 1) if "pairs_per_image" in recipe.objective else 0
        drawn = recipe.objective.get("num_generations") or recipe.objective.get("num_beams")
        self.num_return_sequences = drawn or pairs or 1
        self.entropy_coef = recipe.objective.get("entropy_coef")


def _activations(recipe: Recipe, objective: Any, inputs: dict[str, Tensor]) -> dict[str, int | None]:
    """Of captioner and critic, the bytes that the gradients of a micro-batch begin with."""
    from tellapart.captioners.activations import activations
    from tellapart.captioners.modes import in_train_mode

    captioner = objective.captioner
    captions, tokens = shape_of(recipe, objective)
    common: dict[str, Any] = {"tokens": tokens, "captions": captions, "checkpointed": captioner.checkpoints_layers}
    common["logits_budget"] = captioner.logits_budget
    inputs = {k: v.to(captioner.family.input_dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    passes: dict[str, dict[str, Any]] = {}
    if any(p.requires_grad for p in captioner.parameters()):
        passes["captioner"] = {"family": captioner.family, "vision_learns": captioner.trains_vision}
        passes["captioner"]["use_liger_kernel"] = captioner.use_liger_kernel
        passes["captioner"]["entropy"] = getattr(objective, "entropy_coef", None) is not None
    critic = getattr(objective, "critic", None)
    if critic is not None and hasattr(critic.states, "family"):
        passes["critic"] = {"family": critic.states.family, "vision_learns": False, "head": critic.head}
        passes["critic"]["encoder"] = captioner.family
    found: dict[str, int | None] = {}
    for name, how in passes.items():
        try:
            with in_train_mode(captioner), _precision(recipe, captioner):
                found[name] = activations(inputs=inputs, **how, **common).of(captions)
        except Exception:  # a family that looks at numbers where there are none; the rest of the table still holds
            found[name] = None
    return found


def _precision(recipe: Recipe, captioner: Any) -> Any:
    import torch

    kind = "cpu" if captioner.device.type == "meta" else captioner.device.type
    return torch.autocast(kind, torch.bfloat16, enabled=recipe.training.bf16)


def shape_of(recipe: Recipe, objective: Any) -> tuple[int, int]:
    """``(captions scored with gradients at once, tokens of the longest)``."""
    decoding = getattr(objective, "decoding", objective)
    images = getattr(objective, "scoring_batch_size", None) or recipe.training.per_device_train_batch_size
    images = min(images, recipe.training.per_device_train_batch_size)
    tokens = getattr(decoding, "max_new_tokens", objective.captioner.max_caption_tokens)
    return images * getattr(decoding, "num_return_sequences", 1), tokens


def _told(recipe: Recipe, rows: list[PartMemory], objective: Any, frozen: list[nn.Module]) -> str:
    from tellapart.training.memory import peak

    cells = [["part", "trained", "frozen", "weights", "gradients", "optimiser", "activations"]]
    for row in rows:
        kept = "unknown" if row.activations is None else _size(row.activations)
        sizes = [_size(number) for number in (row.weights, row.gradients, row.optimiser)]
        cells.append([row.name, f"{row.trained:,}", f"{row.frozen:,}", *sizes, kept])
    captions, tokens = shape_of(recipe, objective)
    known = all(row.activations is not None for row in rows)
    total = f"memory of a device at its highest: {'' if known else 'more than '}{_size(peak(rows))}"
    return (
        f"{table(cells)}\n{total} (estimated; {captions} captions of {tokens} tokens are differentiated at once; drawing, "
        "pictures and what the device's libraries take come on top)"
        f"{_in_shards(recipe, rows, objective, frozen)}"
    )


def _in_shards(recipe: Recipe, rows: list[PartMemory], objective: Any, frozen: list[nn.Module]) -> str:
    """The memory of a device for every ``training.shard``; empty where the training cannot be sharded."""
    from tellapart.recipe.sharding import not_shardable
    from tellapart.training.frozen import LARGE
    from tellapart.training.memory import peak, sharded_peak
    from tellapart.training.sharding import large_models, references_of

    if not_shardable(recipe) is not None:
        return ""
    captioner, references = objective.captioner, references_of(objective)
    cut = large_models(frozen, [captioner, *references])
    cells = [["training.shard", *(f"{devices} devices" for devices in DEVICES)]]
    cells.append(["none", *len(DEVICES) * [_size(peak(rows))]])
    how: dict[str, Any] = {"bf16": recipe.training.bf16, "draws": objective.draws}
    for shard in ("grad_op", "full"):
        options = [how | {"devices": devices, "full": shard == "full"} for devices in DEVICES]
        cells.append([shard, *(_size(sharded_peak(rows, captioner, references, cut, **given)) for given in options)])
    names = [row.name for row in rows if row.module in {id(model) for model in cut}]
    shared = "" if not names else f"\nfrozen models of {_size(LARGE)} or more are shared, too: {', '.join(names)}"
    return f"\n\nthe same, where a launch of several devices shares the captioner:\n{table(cells)}{shared}"


def _size(number: int) -> str:
    return "-" if number == 0 else f"{number / 2**30:.2f} GiB" if number >= 2**28 else f"{number / 2**20:.1f} MiB"
