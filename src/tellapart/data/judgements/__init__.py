"""People's judgements of captions, in the layouts in which data sets of them are published."""
