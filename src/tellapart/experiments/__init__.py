"""Many trainings, one table: the world's stages, the demo, the study."""
