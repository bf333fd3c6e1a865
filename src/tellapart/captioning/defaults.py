"""Defaults of telling look-alikes apart, which the command line shows without importing torch."""

NUM_BEAMS = 20
"""Candidates per image."""

LOOKALIKES = 20
"""Images that each one is compared with."""

NUM_DISTRACTORS = 3
"""Look-alikes that contrastive decoding rules out."""

REDRAW = 3
"""Most further tries for an image that stays confused."""

WEIGHTS = {"truth": 1.0, "likelihood": 0.25, "clip_s": 2.5, "fluency": 1.0}
"""Weights of what candidates are compared by, chosen on val of the built-in world with one start captioner."""
