"""Refusing a model that no memory holds, from its configuration, before anything of it is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tellapart.errors import UsageError, quoted

MOST = 10**13
"""Parameters of the largest model that is built: ten times the largest that exist."""

MOST_LAYERS = 10_000

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers")
HEADS = ("num_attention_heads", "n_head", "num_heads", "encoder_attention_heads", "decoder_attention_heads")
WIDTHS = ("hidden_size", "n_embd", "d_model", "embed_dim", "projection_dim", "word_embed_proj_dim")
INNER = ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim")
ROWS = ("vocab_size", "max_position_embeddings", "n_positions", "num_query_tokens")
"""What configurations call the numbers that decide how large a model is."""


def require_possible(name: str, revision: str | None = None) -> None:
    """Read a model's configuration as plain numbers and refuse what cannot be built.

    Building ends only when every layer was made, and some configurations hold a list with an entry per layer: with a billion of
    them, either takes all memory first.

    Args:
        name: folder or hub id; one that has no readable configuration passes, and its loader tells why.
        revision: of the hub repository.

    Raises:
        UsageError: it has more layers or parameters than any model, no heads, or an unusable epsilon.
    """
    from transformers import PretrainedConfig

    try:
        config, _ = PretrainedConfig.get_config_dict(name, revision=revision)
    except Exception:  # reported by the loader, whose message is about what it needs
        return
    _require_usable(name, config)
    for key, layers in _numbers(config, LAYERS):
        if layers > MOST_LAYERS:
            raise UsageError(
                f"{name} has {key} {layers:.3g}, which is not a possible number of layers: correct its config.json."
            )
    parameters = estimate(config)
    if parameters > MOST:
        raise UsageError(
            f"{name} would have {parameters:.1e} parameters, more than any memory holds: correct its config.json."
        )


def _require_usable(name: str, config: Mapping[str, Any]) -> None:
    """Raise where a value would fail in the first pass only."""
    for key, value in _members(config):
        if key.endswith(("_eps", "_epsilon")) and not (isinstance(value, int | float) and 0 <= value < 1):
            raise UsageError(
                f"{name} has {key} {quoted(value)}, which must be a small number: correct its config.json."
            )
    for key, heads in _numbers(config, HEADS):
        if heads < 1:
            raise UsageError(f"{name} has {key} {heads:g}, but attention needs at least one: correct its config.json.")


def estimate(config: Mapping[str, Any]) -> float:
    """Parameters that a configuration asks for, to about a factor of two: blocks of transformers and embedding tables.

    Args:
        config: as in ``config.json``; nested ones count on their own.
    """
    width = max((value for _, value in _own(config, WIDTHS)), default=0.0)
    inner = max((value for _, value in _own(config, INNER)), default=4 * width)
    layers = sum(value for _, value in _own(config, LAYERS))
    rows = sum(value for _, value in _own(config, ROWS)) + _patches(config)
    nested = sum(estimate(value) for value in config.values() if isinstance(value, Mapping))
    return layers * (4 * width * width + 2 * width * inner) + rows * width + nested


def _patches(config: Mapping[str, Any]) -> float:
    """Positions of an image tower."""
    sides, patches = (dict(_own(config, (key,))).get(key, 0.0) for key in ("image_size", "patch_size"))
    return (sides / patches) ** 2 if patches else 0.0


def _members(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """All values by name, those of the configurations within, too."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _members(value)
        else:
            yield str(key), value


def _own(config: Mapping[str, Any], keys: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    for key in keys:
        value = config.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield key, float(min(value, 10**30))  # an int may be too large for a float


def _numbers(config: Mapping[str, Any], keys: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    """The same, of the configurations within, too."""
    yield from _own(config, keys)
    for value in config.values():
        if isinstance(value, Mapping):
            yield from _numbers(value, keys)
