"""What a training's log shows to go wrong: the one set of rules that training, reports and ``tellapart doctor`` read."""
