"""Which weights the models of the built-in world have: equal definitions round differently on another processor."""

from __future__ import annotations

from collections.abc import Iterable

from tellapart.recipe.fingerprint import digest, stages_of, world_stage
from tellapart.sweep.notes import Notes
from tellapart.sweep.tasks import Task
from tellapart.sweep.trainings import option


def builds(tasks: Iterable[Task]) -> dict[str, str]:
    """The stages that trainings and measurements name, as far as this machine has built them, with digests of their weights.

    Args:
        tasks: the trainings.
    """
    from tellapart.world.stages import stage_folder

    found = {}
    for task in tasks:
        for stage in stages_of({"recipe": task.recipe, "measures": task.measures}):
            named = world_stage(stage)
            assert named is not None, "stages_of names stages"
            weights = stage_folder(named[0], option(task.recipe, "data.size"), named[1]) / "model.safetensors"
            if stage not in found and weights.is_file():
                found[stage] = digest(weights)
    return dict(sorted(found.items()))


def of_other_builds(tasks: Iterable[Task], notes: Notes, name: str) -> list[str]:
    """The stages whose weights are not those that kept trainings of the same study had.

    Args:
        tasks: that are to be done.
        notes: of the study.
        name: of the study.
    """
    kept = notes.known(*_note(name)) or {}
    return [stage for stage, ours in builds(tasks).items() if kept.get(stage, ours) != ours]


def note_builds(tasks: Iterable[Task], notes: Notes, name: str, *, alone: bool) -> None:
    """Note the weights of a study's models, unless they are known.

    Args:
        tasks: of the study.
        notes: of the study.
        name: of the study.
        alone: whether this machine carried out all of it; otherwise only what is known is kept.
    """
    if alone or notes.known(*_note(name)):
        notes.read(*_note(name), lambda: builds(tasks))


def _note(name: str) -> tuple[str, str]:
    return f"{name} builds", "weights"
