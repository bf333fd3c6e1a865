"""The training loop and what it leaves on disk; it knows the ``Objective`` protocol and no method.

``train`` trains, ``TrainConfig`` holds its options (and
imports no torch), ``Run`` is what remains.
"""
