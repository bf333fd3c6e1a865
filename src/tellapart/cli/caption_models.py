"""Models of ``tellapart caption``, looked at before anything is searched, captioned or written."""

from __future__ import annotations

from tellapart.cli.caption_options import CaptionOptions


def require_models(options: CaptionOptions) -> None:
    """Raise where captioner, listener or verifier cannot be what they are named for; loads no weights.

    Raises:
        UsageError: a model does not exist, or is of another kind.
    """
    from tellapart.captioners.families import family_class, require_several_images
    from tellapart.captioners.loading import read_config
    from tellapart.captioning.apart import no_verifier
    from tellapart.recipe.models import captioner_folder, listener_folder, require_listener
    from tellapart.rewards.matchers import kind_of

    if options.listener is not None:
        require_listener(options.listener)
    if options.endpoint is not None:
        return
    config = read_config(captioner_folder(options.captioner))
    family_class(config)
    if options.lookalikes_in_prompt:
        require_several_images(config)
    if options.apart and options.verifier is not None and kind_of(listener_folder(options.verifier)) == "dual":
        raise no_verifier(options.verifier)
