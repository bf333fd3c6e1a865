"""Captioning shard by shard: each shard is read, captioned and written alone, on any number of machines."""
