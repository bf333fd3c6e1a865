"""One table over every method on the world: trained at the points that the studies chose, measured alike, laid side by side."""
