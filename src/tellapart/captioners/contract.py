"""The contract of every captioner, checked on two images before a training starts.

Each fault refused here goes unnoticed otherwise: the loss falls, and the model learns something else.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import torch
from torch import Tensor

from tellapart.captioners.base import Captioner
from tellapart.captioners.modes import evaluating
from tellapart.draws import seed_torch
from tellapart.errors import UsageError
from tellapart.types import Batch, Decoding, Rollout

logger = logging.getLogger(__name__)

DRAWING = Decoding(do_sample=True, num_return_sequences=4, max_new_tokens=20)
IMAGE_EFFECT = 1e-5
"""Least change, in nats, that another image must make to some log-probability; untrained models show 1e-3 and more."""


def check_captioner(captioner: Captioner, batch: Batch) -> None:
    """Draw, read and score captions of two images of ``batch``; leaves modes and random state as they were.

    Of captioners of clips it also checks whether the order of frames matters, and logs a sentence where it does not.

    Compared are the largest differences (float32: 1e-4 of the largest log-probability, since a trained GPT-2 has logits
    of 100, whose rounding is 1e-5), in half precision the mean ones (0.1 nats): there single tokens differ by rounding
    alone.

    Args:
        captioner: the captioner to check; it must implement ``draw``.
        batch: at least two images, not all alike.

    Raises:
        UsageError: the image does not matter, drawing and scoring disagree, padding or order matters, or EOS is not
            scored.
    """
    pair = _two_images(captioner, batch)
    parameter = next(captioner.parameters())
    devices = [parameter.device] if parameter.device.type == "cuda" else []
    with evaluating(captioner), torch.random.fork_rng(devices):
        seed_torch(0)
        human = _human(captioner, pair)
        if not bool(human.finished.all()):
            raise UsageError(
                "human captions of three words are left unfinished: append EOS to them, or raise max_caption_tokens."
            )
        _check_eos(captioner, human, "a human caption")
        _check_scores(captioner, human, captioner(human).logprobs)
        drawn, met = captioner.draw(pair, DRAWING)
        _check_eos(captioner, drawn, "a drawn caption")
        _check_drawing(captioner, drawn, met)
        rollout = Rollout.concat([drawn, human])
        logprobs = captioner(rollout).logprobs
        _check_scores(captioner, rollout, logprobs)
        _check_image(captioner, rollout, logprobs)
        _check_layout(captioner, rollout, logprobs)
        if (said := order_of_frames(captioner, rollout, logprobs)) is not None:
            logger.warning("note: %s", said)


def order_of_frames(captioner: Captioner, rollout: Rollout, logprobs: Tensor) -> str | None:
    """A sentence where the captioner does not read the order of frames: this is not an error; mean pooling does not either.

    Args:
        captioner: the captioner.
        rollout: captions of clips.
        logprobs: their log-probabilities.

    Returns:
        None where clips shown backwards change some log-probability by more than rounding, and for captioners of stills.
    """
    backwards = captioner.reversed_frames(rollout.batch)
    if backwards is None:
        return None
    effect = float((captioner(replace(rollout, batch=backwards)).logprobs - logprobs).abs()[rollout.mask].max())
    # Untrained captioners are moved little by anything, so the bound is less than that of faults.
    if effect >= (0.1 if _half(captioner) else IMAGE_EFFECT * max(1.0, float(logprobs.abs().max()))):
        return None
    return (
        f"clips shown backwards move the captioner's log-probabilities by at most {effect:.1g} nats: it does not read the order "
        "of frames (as with mean pooling), so it cannot tell left from right in motion, or before from after."
    )


def _two_images(captioner: Captioner, batch: Batch) -> Batch:
    tensors = batch.inputs[captioner.name].values()
    for other in range(1, len(batch)):
        if any(not torch.equal(tensor[0], tensor[other]) for tensor in tensors):
            return batch.select([0, other])
    raise UsageError(f"the {len(batch)} images given to check the captioner are all alike: give two different ones.")


def _human(captioner: Captioner, pair: Batch) -> Rollout:
    texts = [next(iter(references), "a photo") for references in pair.references]
    return captioner.tokenize(pair, [" ".join(text.split()[:3]) for text in texts], torch.arange(len(pair)))


def _check_eos(captioner: Captioner, rollout: Rollout, what: str) -> None:
    last = rollout.tokens.gather(1, (rollout.lengths - 1).clamp(min=0)[:, None]).squeeze(1)
    eos = torch.tensor(captioner.eos_token_ids, device=last.device)
    ends = torch.isin(last, eos) & (rollout.lengths > 0)
    inside = (torch.isin(rollout.tokens, eos) & rollout.mask).sum(dim=1)
    wrong = (ends != rollout.finished) | (inside != rollout.finished.long())
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise UsageError(
            f"{what} of the captioner, tokens {rollout.tokens[row][rollout.mask[row]].tolist()}, does not end at its "
            f"first EOS ({captioner.eos_token_ids}): append EOS to captions and mask up to and including the first one."
        )


def _differs(captioner: Captioner, first: Tensor, second: Tensor, mask: Tensor) -> float | None:
    """The difference in nats where it is more than rounding, else none."""
    gaps = (first - second).abs()[mask]
    gap = float(gaps.mean()) if _half(captioner) else float(gaps.max())
    rounding = 1e-4 * max(1.0, float(second.abs()[mask].max()))
    return None if gap <= (0.1 if _half(captioner) else rounding) else gap


def _half(captioner: Captioner) -> bool:
    parameter = next(captioner.parameters())
    kinds = {p.dtype for p in captioner.parameters() if p.is_floating_point()}
    if torch.is_autocast_enabled(parameter.device.type):
        kinds.add(torch.get_autocast_dtype(parameter.device.type))
    return bool(kinds & {torch.bfloat16, torch.float16})


def _check_drawing(captioner: Captioner, drawn: Rollout, met: Tensor) -> None:
    gap = _differs(captioner, captioner(drawn).logprobs, met, drawn.mask)
    if gap is not None:
        raise UsageError(
            f"scoring a drawn caption gives log-probabilities {gap:.2g} nats away from those of drawing it: positions "
            "are shifted, the start token or prompt differs, or dropout is on."
        )


def _check_scores(captioner: Captioner, rollout: Rollout, logprobs: Tensor) -> None:
    if not bool(logprobs[rollout.mask].isfinite().all()):
        raise UsageError("the captioner's log-probabilities are not finite: repair its weights or widen its dtype.")
    ends = rollout.mask & torch.isin(rollout.tokens, rollout.tokens.new_tensor(captioner.eos_token_ids))
    if bool((logprobs[ends] == 0).all()) or bool((logprobs[~rollout.mask] != 0).any()):
        raise UsageError(
            "the captioner does not score EOS, or scores padding: mask up to and including the first EOS, "
            "never by comparing with the padding id."
        )


def _check_image(captioner: Captioner, rollout: Rollout, logprobs: Tensor) -> None:
    swapped = captioner(replace(rollout, image=1 - rollout.image)).logprobs
    effect = float((swapped - logprobs).abs()[rollout.mask].max())
    if effect < IMAGE_EFFECT:
        raise UsageError(
            f"another image moves the captioner's log-probabilities by at most {effect:.1g} nats, it ignores the image: "
            "let image states reach the decoder (cross-attention weights, image tokens in the prompt)."
        )


def _check_layout(captioner: Captioner, rollout: Rollout, logprobs: Tensor) -> None:
    turned = _turned(rollout)
    gap = _differs(captioner, captioner(turned).logprobs.flip(0)[:, : logprobs.shape[1]], logprobs, rollout.mask)
    if gap is not None:
        raise UsageError(
            f"padding or the order of a batch moves the captioner's log-probabilities by {gap:.2g} nats: captions are "
            "matched to the wrong image, or padding is attended to."
        )


def _turned(rollout: Rollout) -> Rollout:
    """Both images and all captions in reverse, three more columns of padding."""
    padding = (0, 3)
    return Rollout(
        rollout.batch.select([1, 0]),
        1 - rollout.image.flip(0),
        rollout.texts[::-1],
        torch.nn.functional.pad(rollout.tokens.flip(0), padding),
        torch.nn.functional.pad(rollout.mask.flip(0), padding),
        rollout.finished.flip(0),
        bucket=None if rollout.bucket is None else rollout.bucket.flip(0),
    )
