"""SoftClip: a CLIP that reads distributions over a captioner's words gives what it gives for texts."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import one_hot
from transformers import CLIPModel

from listeners.soft_batches import captions, check_gradients, soft
from listeners.tiny_listeners import WORDS, clip_parts, siglip_parts, tokenizer
from tellapart.captioners.fresh import build_tokenizer
from tellapart.errors import UsageError
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.soft_clip import SoftClip
from tellapart.listeners.words import Words, ids_in
from tellapart.types import Batch
from tiny_models import redraw

TEXTS = ["the red dog runs", "a big blue bus and a dog on the sofa", "two", "a cat"]
CAPTIONS = [" ".join(WORDS), *TEXTS]


def listener(*, prefix: str = "", eos: int | None = None, words=None) -> ClipListener:
    model, processor, own = clip_parts(eos=eos, words=words)
    redraw(model, std=0.3, seed=1)
    return ClipListener.from_parts(model, processor, own, prefix=prefix)


def captioner_words(extra: int = 3) -> Words:
    """Other ids than the listener's, more logits than tokens."""
    own = build_tokenizer(CAPTIONS, min_count=1)
    return Words(own, len(own) + extra, (own.eos_token_id,))


@pytest.fixture(scope="module")
def read():
    words = captioner_words()
    return SoftClip(listener(prefix="a photo depicts "), words), words


def test_the_two_vocabularies_are_not_numbered_alike(read):
    clip, words = read
    ids = ids_in(clip.listener.tokenizer, words, reader="it").tolist()
    assert len(ids) == words.size
    theirs = clip.listener.tokenizer.get_vocab()
    for word, token in words.tokenizer.get_vocab().items():
        if word in WORDS:
            assert ids[token] == theirs[word]
    assert [ids[i] for i in (0, 1, 2, 3)] == [theirs[token] for token in ("<pad>", "<bos>", "<eos>", "<unk>")]
    assert ids[-3:] == [theirs["<pad>"]] * 3
    assert ids[4:10] != list(range(4, 10))


@pytest.mark.parametrize("prefix", ["", "a photo depicts "])
@pytest.mark.parametrize("legacy", [False, True])
def test_tokens_are_what_texts_are(prefix, legacy):
    """Pooling at the EOS that the configuration names, or (the published CLIPs) at the highest id."""
    own = tokenizer(("<pad>", "<bos>", "<unk>")) if legacy else tokenizer()
    clip = listener(prefix=prefix, eos=2 if legacy else None, words=own)
    words = captioner_words()
    found = SoftClip(clip, words).embed_tokens(*captions(TEXTS, words.tokenizer, width=11))
    torch.testing.assert_close(found, clip.embed_texts(TEXTS), atol=1e-5, rtol=0)
    assert (found[0] - found[2]).norm() > 0.1


def test_a_caption_that_was_cut_is_closed_as_its_text_is(read):
    clip, words = read
    tokens, mask = captions(TEXTS, words.tokenizer, unfinished=(0, 2, 3))
    torch.testing.assert_close(clip.embed_tokens(tokens, mask), clip.listener.embed_texts(TEXTS), atol=1e-5, rtol=0)


def test_too_many_words_are_cut_as_texts_are(read):
    """12 positions: BOS, three words of prefix, EOS and so seven words."""
    clip, words = read
    long = [" ".join(WORDS[3:11]), " ".join(WORDS[3:16]), " ".join(WORDS[3:10])]
    tokens, mask = captions(long, words.tokenizer)
    found = clip.embed_tokens(tokens, mask)
    torch.testing.assert_close(found, clip.listener.embed_texts(long), atol=1e-5, rtol=0)
    torch.testing.assert_close(found[0], found[2], atol=1e-5, rtol=0)


def test_one_hot_words_are_tokens_to_the_bit(read):
    clip, words = read
    tokens, mask = captions(TEXTS, words.tokenizer, unfinished=(1,))
    vectors = one_hot(tokens, words.size).float()
    assert torch.equal(clip.embed_words(vectors, mask), clip.embed_tokens(tokens, mask))


def test_straight_through_vectors_count_as_one_hot(read):
    clip, words = read
    tokens, mask = captions(TEXTS, words.tokenizer)
    shares = torch.randn(*tokens.shape, words.size).softmax(dim=2)
    passed = (one_hot(tokens, words.size) - shares).detach() + shares
    torch.testing.assert_close(clip.embed_words(passed, mask), clip.embed_tokens(tokens, mask), atol=1e-5, rtol=0)


@pytest.mark.parametrize("finished", [None, True, False])
def test_a_distribution_is_the_mixture_of_the_embeddings(read, finished):
    """The tower on the mixed embedding, by transformers' own layers, one caption at a time.

    An EOS that was drawn and passed as a distribution stands where the tower pools; a last word that is none is followed by EOS.
    """
    clip, words = read
    vectors, mask = soft(2, 4, words.size, 2, [3, 4])
    if finished is not None:
        vectors[0, 2] = vectors[1, 3] = torch.linspace(1, 2, words.size).softmax(dim=0).to(vectors)
    told = None if finished is None else torch.tensor([finished, finished])
    found = clip.embed_words(vectors.float(), mask, told)
    text, own = clip.model.text_model, clip.listener
    ids = ids_in(own.tokenizer, words, reader="it")
    lead = own.leading_ids()
    assert [own.tokenizer.decode([token]) for token in lead] == ["<bos>", "a", "photo", "depicts"]
    for row, length in enumerate([3, 4]):
        rows = text.embeddings.token_embedding.weight[ids]
        mixed = sum(vectors[row, :length, i, None].float() * rows[i] for i in range(words.size))
        added = [own.tokenizer.eos_token_id] if finished is False else []
        sequence = torch.cat(
            [text.embeddings.token_embedding.weight[lead], mixed, text.embeddings.token_embedding.weight[added]]
        )
        sequence = sequence + text.embeddings.position_embedding.weight[: len(sequence)]
        causal = torch.full((len(sequence), len(sequence)), -torch.inf).triu(1)[None, None]
        states = text.encoder(inputs_embeds=sequence[None], attention_mask=causal).last_hidden_state
        expected = clip.model.text_projection(text.final_layer_norm(states[0, -1]))
        torch.testing.assert_close(found[row], expected / expected.norm(), atol=1e-5, rtol=0)


def test_padding_does_not_matter(read):
    clip, words = read
    tokens, mask = captions(TEXTS, words.tokenizer)
    wide = torch.nn.functional.pad(tokens, (0, 6), value=7)
    found = clip.embed_tokens(wide, torch.nn.functional.pad(mask, (0, 6)))
    torch.testing.assert_close(found, clip.embed_tokens(tokens, mask), atol=1e-6, rtol=0)
    vectors = one_hot(tokens, words.size).float()
    vectors[~mask] = torch.nan
    torch.testing.assert_close(clip.embed_words(vectors, mask), clip.embed_tokens(tokens, mask), atol=1e-6, rtol=0)
    for row, text in enumerate(TEXTS):
        alone = clip.embed_tokens(*captions([text], words.tokenizer))
        torch.testing.assert_close(alone[0], found[row], atol=1e-5, rtol=0)


def test_gradients_reach_words_and_the_text_side_only():
    words = captioner_words()
    clip = SoftClip(listener(), words).double()
    vectors, mask = soft(3, 5, words.size, 2, [3, 5, 4])
    check_gradients(clip.embed_words, vectors, mask, [(0, 0, 5), (0, 1, 9), (1, 3, 4), (2, 0, 2), (2, 2, 12)])
    leaf = vectors.clone().requires_grad_()
    clip.embed_words(leaf, mask)[:, 0].sum().backward()
    assert leaf.grad[~mask].abs().max() == 0
    learns = {name for name, p in clip.named_parameters() if p.requires_grad}
    assert learns
    assert all(name.startswith(("model.text_model.", "model.text_projection.")) for name in learns)
    # words that were not passed learn nothing, all others do
    assert all(p.grad is not None for name, p in clip.named_parameters() if p.requires_grad)


def test_images_are_those_of_the_listener(read):
    clip, _ = read
    pictures = torch.randn(2, 3, 16, 16)
    batch = Batch(["a", "b"], [[], []], {clip.name: {"pixel_values": pictures}})
    found = clip.embed_images(batch)
    assert torch.equal(found, clip.listener.encode_images(batch))
    assert not found.requires_grad


def test_what_is_saved_is_a_listener(tmp_path):
    words = captioner_words()
    clip = SoftClip(listener(prefix="a photo depicts "), words)
    clip.save(tmp_path / "listener")
    tokens, mask = captions(TEXTS, words.tokenizer)
    again = ClipListener.from_pretrained(tmp_path / "listener")
    assert torch.equal(again.embed_texts(TEXTS), clip.listener.embed_texts(TEXTS))
    assert CLIPModel.from_pretrained(tmp_path / "listener").config.projection_dim == 8
    other = SoftClip(listener(prefix="a photo depicts "), words)
    redraw(other.model, std=0.1, seed=5)
    assert not torch.equal(other.embed_tokens(tokens, mask), clip.embed_tokens(tokens, mask))
    other.load_weights(tmp_path / "listener")
    assert torch.equal(other.embed_tokens(tokens, mask), clip.embed_tokens(tokens, mask))
    with pytest.raises(UsageError, match="lacks the weights of this listener"):
        other.load_weights(tmp_path)


def test_a_vocabulary_that_does_not_fit_is_refused():
    own = build_tokenizer([*CAPTIONS, "a purple elephant"], min_count=1)
    with pytest.raises(
        UsageError, match=r"does not have 2 of the captioner's 18 words, first '(purple|elephant)'"
    ) as told:
        SoftClip(listener(), Words(own, len(own), (2,)))
    assert "reinforce_joint, luo2018 or scst" in str(told.value)
    pieces = bert_pieces()
    with pytest.raises(UsageError, match="as whole words"):
        SoftClip(listener(), Words(pieces, len(pieces), (3,)))
    with pytest.raises(UsageError, match="is a 'siglip' model, which cannot read distributions"):
        SoftClip(ClipListener.from_parts(*siglip_parts(), prefix=""), captioner_words())
    with pytest.raises(UsageError, match="leaves no tokens for a caption"):
        SoftClip(listener(prefix="a dog " * 6), captioner_words())


def bert_pieces():
    """A tokenizer that writes words in parts: "run" and "##s"."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordPiece({"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "dog": 4, "##s": 5}))
    core.pre_tokenizer, core.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]", sep_token="[SEP]")
