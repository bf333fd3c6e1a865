"""Which recorded recipe a run may go on with, where options were added since."""

import json

import pytest

from command_recipes import load_listener_recipe, load_recipe
from tellapart.errors import UsageError
from tellapart.recipe.run import check_output_dir


@pytest.fixture
def resumed(tmp_path):
    """``check(change, *flags)``: resume a run whose recorded recipe was changed."""

    def check(change, *flags):
        options = ["--captioner.model_name_or_path", "x", "--output_dir", str(tmp_path), "--reward.clip_s", "1"]
        argv = ["--method", "dico", *options, "--resume_from_checkpoint", "last", *flags]
        recorded = json.loads(json.dumps(load_recipe(argv[: -len(flags)] if flags else argv).resolved))
        change(recorded)
        (tmp_path / "run.json").write_text(json.dumps({"recipe": recorded}))
        check_output_dir(load_recipe(argv))

    return check


def test_options_that_came_later_had_their_defaults(resumed):
    def older(recipe):
        for section, keys in {"captioner": ("new", "prompt"), "data": ("features", "on_error")}.items():
            for key in keys:
                del recipe[section][key]
        del recipe["evaluation"]

    resumed(older)


def test_a_run_of_an_earlier_version_goes_on(resumed):
    """Then options of the loop stood beside the sections, and the reward was a mapping of all weights."""

    def older(recipe):
        recipe |= recipe.pop("training")
        recipe["reward"] = {"clip_s": 1.0, "cider_d": 0.0, "phi": 0.0}
        recipe["matcher"] = {"model": None, "batch_size": 32}

    resumed(older)

    def another(recipe):
        older(recipe)
        recipe["reward"]["cider_d"] = 0.5

    with pytest.raises(UsageError, match=r"has reward\.cider_d\.weight 0\.5, not None"):
        resumed(another)


def test_another_value_of_an_option_that_came_later_is_another_run(resumed):
    with pytest.raises(UsageError, match=r"the run in .* has data\.on_error 'fail', not 'skip'"):
        resumed(lambda recipe: recipe["data"].pop("on_error"), "--data.on_error", "skip")
    with pytest.raises(UsageError, match=r"has objective\.beta 0\.2, not 0\.5"):
        resumed(lambda recipe: recipe["objective"].pop("beta"), "--objective.beta", "0.5")


def test_what_was_recorded_counts(resumed):
    with pytest.raises(UsageError, match=r"has objective\.beta 0\.7, not 0\.2"):
        resumed(lambda recipe: recipe["objective"].update(beta=0.7))
    with pytest.raises(UsageError, match=r"has reward\.clip_s"):
        resumed(lambda recipe: recipe.pop("reward"))


def test_where_a_matcher_is_and_how_much_it_reads_at_once_may_change(resumed):
    flags = ["--reward.itm", "1", "--matcher.model", "m"]
    moved = [*flags, "--matcher.device", "cuda:1", "--matcher.batch_size", "7"]

    def asked(recipe):
        recipe["reward"].append({"name": "itm", "weight": 1.0})
        recipe["matcher"] = {"model": "m"}

    resumed(asked, *moved)
    with pytest.raises(UsageError, match=r"has matcher\.dtype 'float32', not 'bfloat16'"):
        resumed(asked, *moved, "--matcher.dtype", "bfloat16")


@pytest.fixture
def resumed_listener(tmp_path):
    """``check(change, before, now)``: resume a listener's run with other flags than it was recorded with."""

    def check(change, before=(), now=()):
        argv = ["--listener.path", "x", "--output_dir", str(tmp_path), "--resume_from_checkpoint", "last"]
        recorded = json.loads(json.dumps(load_listener_recipe([*argv, *before]).resolved))
        change(recorded)
        (tmp_path / "run.json").write_text(json.dumps({"recipe": recorded}))
        check_output_dir(load_listener_recipe([*argv, *now]))

    return check


def test_a_listener_goes_on_with_its_own_loss(resumed_listener):
    with pytest.raises(UsageError, match=r"has hinge\.margin 0\.2, not 0\.3"):
        resumed_listener(lambda recipe: None, ("--loss", "hinge"), ("--loss", "hinge", "--hinge.margin", "0.3"))
    with pytest.raises(UsageError, match=r"has pac\.captions 'a\.json', not 'b\.json'"):
        resumed_listener(
            lambda recipe: None, ("--pac", "--pac.captions", "a.json"), ("--pac", "--pac.captions", "b.json")
        )


def test_a_listeners_run_before_there_were_losses_goes_on(resumed_listener):
    def older(recipe):
        del recipe["loss"], recipe["hinge"], recipe["pac"], recipe["grammar"], recipe["head"]

    resumed_listener(older)
    with pytest.raises(UsageError, match="has loss 'contrastive', not 'hinge'"):
        resumed_listener(older, (), ("--loss", "hinge"))


def paths(value, at=()):
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield (*at, key)
        yield from paths(inner, (*at, key))


def test_a_record_that_was_changed_by_hand_is_never_a_traceback(tmp_path):
    """``recipe: true`` was one."""
    options = ["--captioner.model_name_or_path", "x", "--output_dir", str(tmp_path), "--reward.clip_s", "1"]
    recipe = load_recipe(["--method", "dico", *options, "--resume_from_checkpoint", "last"])
    whole = json.loads(json.dumps({"recipe": recipe.resolved}))
    ended = {"agrees": 0, "refused": 0}
    for path in paths(whole):
        for value in (None, True, -1, 1e300, "x", [], [1], {}, {"x": [1]}):
            record = json.loads(json.dumps(whole))
            inner = record
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value
            (tmp_path / "run.json").write_text(json.dumps(record))
            try:
                check_output_dir(recipe)
                ended["agrees"] += 1
            except UsageError:
                ended["refused"] += 1
    assert min(ended.values()) > 50
