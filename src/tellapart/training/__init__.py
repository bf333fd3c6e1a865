"""The training loop and what it leaves on disk; it knows the ``Objective`` protocol and no method.

:func:`tellapart.training.loop.train` trains, :class:`tellapart.training.config.TrainConfig` holds its options (and
imports no torch), :class:`tellapart.training.run.Run` is what remains.
"""
