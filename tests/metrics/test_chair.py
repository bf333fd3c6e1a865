import json

import pytest

from tellapart.errors import UsageError
from tellapart.metrics.chair import ObjectNames, chair, load_instances


@pytest.fixture(scope="module")
def names() -> ObjectNames:
    return ObjectNames()


def test_all_categories_have_a_word(names):
    assert len(names.categories) == 80


@pytest.mark.parametrize(
    ("caption", "objects"),
    [
        ("two men riding bikes past a bus stop", ["person", "bicycle"]),
        ("a hot dog and a dog", ["hot dog", "dog"]),
        ("teddy bears on a bed", ["teddy bear", "bed"]),
        ("a baby elephant with a baby", ["elephant", "person"]),
        ("an orange cat near oranges", ["cat", "orange"]),
        ("a couple of knives by the train tracks", ["knife"]),
        ("a passenger train and a passenger", ["train", "person"]),
        ("a woman brushing her teeth", ["person"]),
        ("a traffic light above a stop sign", ["traffic light", "stop sign"]),
        ("benches sandwiches puppies geese buses", ["bench", "sandwich", "dog", "bird", "bus"]),
        ("carpet tableau", []),
        ("", []),
    ],
)
def test_objects_that_a_caption_names(names, caption, objects):
    assert names.named(caption) == objects


def test_values_by_hand():
    objects = {"1": {"dog", "person"}, "2": {"cat"}, "3": set()}
    captions = {"1": "a man and a dog and a cat", "2": "a sofa and a sofa", "3": "nothing here"}
    metrics, columns = chair(captions, objects)
    # mentions: man, dog, cat; sofa twice. Hallucinated: cat; sofa twice. Of three annotated, man and dog are named.
    assert metrics == pytest.approx({"CHAIRi": 3 / 5, "CHAIRs": 2 / 3, "object_recall": 2 / 3})
    assert {name: column.tolist() for name, column in columns.items()} == {
        "objects_named": [3, 2, 0],
        "objects_hallucinated": [1, 2, 0],
        "objects_recalled": [2, 0, 0],
        "objects_annotated": [2, 1, 0],
        "CHAIRs": [1, 1, 0],
    }
    # what a reference names is in the image
    metrics, _ = chair(captions, objects, {"1": ["a kitten"], "2": ["one couch"]})
    assert metrics == pytest.approx({"CHAIRi": 0, "CHAIRs": 0, "object_recall": 2 / 3})


def test_instances_are_read_by_image(tmp_path):
    content = {
        "images": [{"id": 5}, {"id": 6}],
        "categories": [{"id": 1, "name": "person"}, {"id": 18, "name": "dog"}],
        "annotations": [{"image_id": 5, "category_id": 18}, {"image_id": 5, "category_id": 18}],
    }
    path, other = tmp_path / "instances.json", tmp_path / "more.json"
    path.write_text(json.dumps(content))
    other.write_text(json.dumps(content | {"images": [{"id": 7}], "annotations": [{"image_id": 7, "category_id": 1}]}))
    assert load_instances(path, other) == {"5": {"dog"}, "6": set(), "7": {"person"}}
    path.write_text('{"images": []}')
    with pytest.raises(UsageError, match="not a file of COCO instances"):
        load_instances(path)
    with pytest.raises(UsageError, match="cannot be read"):
        load_instances(tmp_path / "none.json")


def test_images_and_categories_must_be_known():
    with pytest.raises(UsageError, match="no image '9' \\(1 such captions\\)"):
        chair({"9": "a"}, {"1": set()})
    with pytest.raises(UsageError, match="'sloth' is none of COCO's 80"):
        chair({"1": "a"}, {"1": {"sloth"}})
    with pytest.raises(UsageError, match="no captions"):
        chair({}, {})
