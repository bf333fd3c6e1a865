"""Defaults of captioning and of telling look-alikes apart, which the command line shows without importing torch."""

from tellapart.captioning.gate import CONFUSED, EMPTY, LOOP, LOW_MATCH, PROMPT_ECHO

NUM_BEAMS = 20
"""Candidates per image."""

LOOKALIKES = 20
"""Images that each one is compared with."""

NUM_DISTRACTORS = 3
"""Look-alikes that contrastive decoding rules out."""

REDRAW = 3
"""Most further tries for an image that stays confused, or whose caption has another fault of ``REDRAW_ON``."""

REDRAW_ON = (EMPTY, LOOP, PROMPT_ECHO, LOW_MATCH, CONFUSED)
"""Faults for which a caption is sampled again; sampling seldom removes the others."""

TOP_P = 0.9
"""Share of the probability that samples are drawn from where nothing compares them."""

TOP_P_APART = 1.0
"""The same where look-alikes choose among the samples; the values come from the study of telling apart."""

LOOKALIKES_PROMPT = (
    "The images after the first one look like it. Write one sentence that is true of the first image and false of the others. "
    "Do not mention the other images."
)
"""Prompt of an instruct model that is shown look-alikes."""

WEIGHTS = {"truth": 1.0, "likelihood": 0.25, "clip_s": 2.5, "fluency": 1.0}
"""Weights of what candidates are compared by, chosen on val of the built-in world with one start captioner."""

ENDPOINT_KEY = "OPENAI_API_KEY"
"""Environment variable with the key of an endpoint."""

ENDPOINT_PROMPT = "Describe this image in one sentence."
"""What an endpoint is asked where neither --prompt nor --style says it."""

IMAGE_SIZE, TIMEOUT = 1024, 120.0
"""Longest side of images sent to an endpoint, in pixels; and seconds that a request may take."""
