"""What some methods learn before they start: a discriminator against the captions of the start model."""
