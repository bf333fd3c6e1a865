"""What a caption is worth: callables ``rollout -> [N]``, without gradient, higher is better."""
