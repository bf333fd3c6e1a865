"""METEOR 1.5 without Java (Banerjee & Lavie 2005; Lavie & Agarwal 2007; Denkowski & Lavie 2014)."""

from tellapart.metrics.meteor.resources import Resources, load_resources
from tellapart.metrics.meteor.score import STATISTICS, meteor, meteor_counts, meteor_of, meteor_statistics

__all__ = ["STATISTICS", "Resources", "load_resources", "meteor", "meteor_counts", "meteor_of", "meteor_statistics"]
