"""Several images in one prompt, against what each family's own processor and model make of the same turn."""

import pytest
import torch

from family_checks import make
from pictures import images
from tellapart.captioners.families.prompted import side_by_side
from tellapart.errors import UsageError
from tellapart.types import Batch, Decoding
from tiny.llava import tiny_llava
from tiny.paligemma import tiny_paligemma
from tiny_models import tiny_ved

FAMILIES = ["LLaVA", "Idefics3", "SmolVLM", "Qwen2-VL", "Qwen2.5-VL", "Qwen3-VL"]
SHAPES = [(32, 32), (64, 32), (32, 64), (48, 48)]
ASK = "a dog on grass"
SHOWN = [[0, 1, 3], [2, 0], [1, 2, 0]]
SAMPLING = Decoding(do_sample=True, num_return_sequences=3, max_new_tokens=8)


@pytest.fixture(scope="module", params=FAMILIES)
def captioner(request, tmp_path_factory):
    return make(request.param, tmp_path_factory.mktemp("model"))


def pictures():
    """Of different shapes, so that some have more tokens than others."""
    return [image.resize(SHAPES[i], 0) for i, image in enumerate(images(4, seed=2))]


def batch_of(captioner, order=range(4)):
    chosen = [pictures()[i] for i in order]
    return Batch([f"i{i}" for i in order], [[] for _ in order], {captioner.name: captioner.process(chosen)})


def by_reference(captioner, row):
    """``[V]`` log-probabilities of the first word, by the plain model on its own processor's tensors of one row."""
    family, shown = captioner.family, [pictures()[i] for i in row]
    text = family.asking(ASK).rendered(len(row))
    if family.processors.joint is not None:
        nested = {"images": [shown]} if "idefics3" in type(family).__name__.lower() else {"images": shown}
        bos = family.tokenizer.bos_token
        inputs = family.processors.joint(
            **nested, text=[text], add_special_tokens=not text.startswith(bos), return_tensors="pt"
        )
    else:
        inputs = dict(family.processors.image(images=shown, return_tensors="pt"))
        counts = (inputs["image_grid_thw"].prod(dim=1) // 4).tolist()
        before, *after = text.split("<|image_pad|>")
        text = before + "".join(count * "<|image_pad|>" + rest for count, rest in zip(counts, after, strict=True))
        ids = torch.tensor([family.tokenizer(text, add_special_tokens=False)["input_ids"]])
        types = (ids == family.image_token).int()
        inputs |= {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": types}
    with torch.no_grad():
        logits = family.model(**inputs).logits[0, -1]
    return inputs["input_ids"][0].tolist(), logits.log_softmax(dim=0)


def first_words(captioner, encoded):
    family = captioner.family
    return family.exact_logits(family.prefix(encoded, family.new_cache())).log_softmax(dim=1)


@torch.no_grad()
def test_prompts_and_first_words_are_those_of_the_plain_model(captioner):
    encoded = captioner.encode_together(batch_of(captioner), SHOWN, ASK)
    words = first_words(captioner, encoded)
    for row, shown in enumerate(SHOWN):
        ids, logprobs = by_reference(captioner, shown)
        real = encoded.inputs["attention_mask"][row].bool()
        assert encoded.inputs["input_ids"][row][real].tolist() == ids
        torch.testing.assert_close(words[row], logprobs, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_images_stand_in_the_order_given(captioner):
    """The described image first: rows of the states are those of the images alone, one after the other."""
    batch = batch_of(captioner)
    alone, encoded = captioner.encode(batch), captioner.encode_together(batch, SHOWN, ASK)
    single = [row if alone.mask is None else row[alone.mask[i]] for i, row in enumerate(alone.states)]
    for row, shown in enumerate(SHOWN):
        assert torch.equal(encoded.states[row][encoded.mask[row]], torch.cat([single[i] for i in shown]))
    turned = captioner.encode_together(batch, [[3, 1, 0], [0, 2], [0, 2, 1]], ASK)
    assert (first_words(captioner, encoded) - first_words(captioner, turned)).abs().amax(dim=1).min() > 1e-3


@torch.no_grad()
def test_captions_depend_on_the_images_after_the_first(captioner):
    batch = batch_of(captioner)
    near, far, none = (captioner.encode_together(batch, [[0, *rest]], ASK) for rest in ([1, 2], [2, 3], []))
    words = [first_words(captioner, encoded)[0] for encoded in (near, far, none)]
    assert all((words[a] - words[b]).abs().max() > 1e-3 for a, b in ((0, 1), (0, 2), (1, 2)))


@torch.no_grad()
def test_scores_are_those_of_sampling_whatever_the_batch(captioner):
    whole = batch_of(captioner)
    encoded = captioner.encode_together(whole, SHOWN, ASK)
    own = whole.select([row[0] for row in SHOWN])
    torch.manual_seed(0)
    drawn, logprobs = captioner.draw(own, SAMPLING, encoded=encoded)
    torch.testing.assert_close(captioner(drawn, encoded=encoded).logprobs, logprobs, atol=1e-4, rtol=1e-4)
    for row, shown in enumerate(SHOWN):
        alone = batch_of(captioner, shown)  # without the padding that the others need
        torch.manual_seed(0)
        single = captioner.encode_together(alone, [range(len(shown))], ASK)
        again, its = captioner.draw(alone.select([0]), SAMPLING, encoded=single)
        assert again.texts == drawn.texts[3 * row : 3 * row + 3]
        width = its.shape[1]
        torch.testing.assert_close(its, logprobs[3 * row : 3 * row + 3, :width], atol=1e-4, rtol=1e-4)


def test_states_side_by_side_are_those_of_a_loop():
    values = torch.arange(12.0).view(3, 4, 1)
    mask = torch.tensor([[True, True, False, False], [True, True, True, True], [True, False, False, False]])
    found = side_by_side(values, mask, [[2, 0], [1, 2, 0]])[:, :, 0].tolist()
    assert found == [[8.0, 0.0, 1.0, 0, 0, 0, 0], [4.0, 5.0, 6.0, 7.0, 8.0, 0.0, 1.0]]
    assert side_by_side(values, None, [[1]])[0, :, 0].tolist() == [4.0, 5.0, 6.0, 7.0]


@pytest.mark.parametrize("tiny", [tiny_ved, tiny_paligemma])
def test_a_family_of_one_image_says_so(tiny):
    captioner = tiny()
    kind = captioner.family.model.config.model_type
    sentence = f"a captioner of type '{kind}' reads one image per prompt: name a Qwen-VL, Idefics3, SmolVLM or LLaVA"
    with pytest.raises(UsageError, match=sentence):
        captioner.encode_together(batch_of(captioner), [[0, 1]], ASK)


def test_more_images_than_the_model_has_places_for_are_refused():
    captioner = tiny_llava()
    with pytest.raises(UsageError, match=r"a prompt with 200 images has .* tokens, but the model has places for 512"):
        captioner.encode_together(batch_of(captioner), [200 * [0]], ASK)
    with pytest.raises(UsageError, match="has 3 places for an image instead of 2: leave <image> out"):
        captioner.encode_together(batch_of(captioner), [[0, 1]], "what is <image>")
