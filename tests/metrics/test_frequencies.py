import pickle
from collections import Counter, defaultdict

import numpy as np
import pytest

from metrics.captions import every_count, odd_captions
from tellapart.errors import UsageError
from tellapart.metrics.cider import cider_d
from tellapart.metrics.frequencies import END, DocumentFrequencies, PairTable, load_frequencies, save_frequencies


def test_images_are_counted_not_captions():
    frequencies = DocumentFrequencies.from_tokens({"0": ["a dog", "a dog a"], "1": ["a cat"], "2": ["no"]})
    assert frequencies.counts == {("a",): 2}  # what one image alone has weighs as if unseen and is not kept
    assert frequencies.images == 3
    assert len(frequencies.pairs) == 0


@pytest.mark.parametrize("seed", range(3))
def test_counts_equal_a_plain_count(seed):
    _, references = odd_captions(80, seed)
    wanted = {gram: n for gram, n in every_count(references).items() if n > 1}
    assert len(wanted) > 300
    assert DocumentFrequencies.from_tokens(references).counts == wanted
    assert DocumentFrequencies(wanted, 80).counts == wanted


@pytest.mark.parametrize("together", [1, 7, 100])
def test_numbers_do_not_depend_on_how_many_are_sorted_together(monkeypatch, together):
    _, references = odd_captions(80, 1)
    whole = DocumentFrequencies.from_tokens(references)
    monkeypatch.setattr("tellapart.metrics.frequencies._AT_ONCE", together)
    monkeypatch.setattr("tellapart.metrics.frequencies._PAIRS_AT_ONCE", 50)
    parts = DocumentFrequencies.from_tokens(list(references.values()))
    assert list(parts.words) == list(whole.words)
    assert parts.pairs.tolist() == whole.pairs.tolist()
    assert parts.totals.tolist() == whole.totals.tolist()
    assert (parts.pairs.dtype, parts.totals.dtype, parts.images) == (np.int32, np.int64, 80)


def test_leaving_out_single_images_changes_no_score():
    captions, references = odd_captions(30, 5)
    every = every_count(references)
    full = DocumentFrequencies(every, len(references))
    assert len(full.totals) > len(DocumentFrequencies.from_tokens(references).totals)
    assert cider_d(captions, references, full) == pytest.approx(cider_d(captions, references), abs=1e-12)


def test_an_end_token_is_counted_in_every_reference():
    frequencies = DocumentFrequencies.from_references({"0": ["A dog."], "1": ["A cat!"]}, end="<end>")
    assert frequencies.counts == {("a",): 2, ("<end>",): 2}


def test_ngrams_without_their_beginnings_are_kept():
    frequencies = DocumentFrequencies({("a", "b", "c"): 7, ("c",): 3}, 9)
    assert frequencies.counts == {("a", "b", "c"): 7, ("c",): 3}
    with pytest.raises(ValueError, match="1 to 4 words, not 5"):
        DocumentFrequencies({("a",) * 5: 2}, 9)


def test_pairs_are_found_and_others_are_not():
    rng = np.random.default_rng(0)
    every = np.unique(rng.integers(0, 300, (40_000, 2)), axis=0)
    known, unknown = every[::2], every[1::2]
    table = PairTable(known[:, 0], known[:, 1], np.arange(len(known)))
    assert table.find(known[:, 0], known[:, 1]).tolist() == [*range(len(known))]
    assert set(table.find(unknown[:, 0], unknown[:, 1]).tolist()) == {-1}
    empty = PairTable(known[:0, 0], known[:0, 1], np.arange(0))
    assert empty.find(known[:3, 0], known[:3, 1]).tolist() == [-1, -1, -1]


@pytest.mark.parametrize("name", ["df.npz", "df.json"])
@pytest.mark.parametrize("end", ["", END])
def test_files_keep_a_table(tmp_path, name, end):
    captions, references = odd_captions(40, 3)
    frequencies = DocumentFrequencies.from_tokens(references, end=end)
    save_frequencies(frequencies, tmp_path / "a" / name)
    again = load_frequencies(tmp_path / "a" / name)
    assert (again.counts, again.images, again.end) == (frequencies.counts, 40, end)
    assert cider_d(captions, references, again) == pytest.approx(cider_d(captions, references, frequencies), abs=1e-12)
    assert [path.name for path in (tmp_path / "a").iterdir()] == [name]


def field_table(**more) -> dict:
    counts: defaultdict = defaultdict(float)
    counts.update({("a",): 5.0, ("a", "dog"): 2.0, ("dog",): 3.0, ("vélo",): 1.0})
    return {"document_frequency": counts, "ref_len": 7, **more}


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_the_fields_pickles_are_read(tmp_path, protocol):
    path = tmp_path / "coco-train-words.p"
    path.write_bytes(pickle.dumps(field_table(), protocol=protocol))
    frequencies = load_frequencies(path)
    assert frequencies.counts == {("a",): 5, ("a", "dog"): 2, ("dog",): 3}
    assert (frequencies.images, frequencies.end) == (7, "")
    path.write_bytes(pickle.dumps(field_table()["document_frequency"], protocol=protocol))
    with pytest.raises(UsageError, match="number of images, which must be given"):
        load_frequencies(path)
    assert load_frequencies(path, images=40504).images == 40504


def test_a_pickle_of_python_2_is_read(tmp_path):
    # what cPickle.dumps of Python 2.7 gives: text is bytes, defaultdict(float) is made of __builtin__'s float
    text = (
        b"(dp1\nS'ref_len'\np2\nF3.0\nsS'document_frequency'\np3\nccollections\ndefaultdict\np4\n"
        b"(c__builtin__\nfloat\np5\ntp6\nRp7\n(S'caf\\xc3\\xa9'\np8\nS'dog'\np9\ntp10\nF2.0\ns(g9\ntp11\nF3.0\nss."
    )
    path = tmp_path / "old.pkl"
    path.write_bytes(text)
    assert load_frequencies(path).counts == {("café", "dog"): 2, ("dog",): 3}


def test_an_eos_in_a_pickle_closes_references(tmp_path):
    table = field_table()
    table["document_frequency"]["<eos>",] = 7.0
    path = tmp_path / "df.p"
    path.write_bytes(pickle.dumps(table))
    assert load_frequencies(path).end == "<eos>"


class Runs:
    """What an unpickler that trusts would run."""

    def __reduce__(self):
        return (open, ("/tmp/should-not-exist", "w"))


@pytest.mark.parametrize("value", [Runs(), {"ref_len": 3, "document_frequency": Counter(a=1)}, {("a",): Runs()}])
def test_a_pickle_that_would_run_something_is_refused(tmp_path, value):
    path = tmp_path / "df.p"
    path.write_bytes(pickle.dumps(value))
    with pytest.raises(
        UsageError, match=r"df\.p is not a table of document frequencies \(it holds .* which is not read"
    ):
        load_frequencies(path, images=9)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("df.txt", b"", "of no known kind: give a .npz, .json, .p, .pkl"),
        ("none.npz", None, r"cannot be read \(No such file"),
        ("df.npz", b"PK\x03\x04 broken", "not a table"),
        ("df.npz", b"words", "not a table"),
        ("df.json", b"{}", "not a table"),
        ("df.json", b'{"images": 3, "end": "", "counts": []}', "not a table"),
        ("df.json", b'{"images": 3, "end": "", "counts": {"a": 1e400}}', "not a table"),
        ("df.json", b'{"images": 3, "end": "", "counts": {"a b c d e": 2}}', "1 to 4 words, not 5"),
        ("df.json", b'{"images": 3, "end": "", "counts": {"a": 4}}', "of 3 images, but an n-gram is counted in 4"),
        ("df.p", pickle.dumps([1]), "it is not a dictionary"),
        ("df.p", pickle.dumps({"ref_len": 3, "document_frequency": {}}), "it holds no n-gram"),
        ("df.p", pickle.dumps({"ref_len": 3, "document_frequency": {"a": 2}}), "'a' is not a tuple of words"),
        ("df.p", pickle.dumps({"ref_len": 3, "document_frequency": {(str(i),): 2 for i in range(20)}}), "-words.p"),
        ("df.p", pickle.dumps(field_table())[:-20], "not a table"),
    ],
)
def test_other_files_are_refused_in_a_sentence(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message):
        load_frequencies(tmp_path / name)


def test_an_npz_whose_arrays_do_not_fit_is_refused(tmp_path):
    path = tmp_path / "df.npz"
    save_frequencies(DocumentFrequencies({("a",): 3, ("a", "b"): 2, ("b",): 3}, 5), path)
    content = dict(np.load(path))
    for change in ({"totals": content["totals"][:-1]}, {"pairs": content["pairs"] + 9}, {"pairs": content["pairs"][0]}):
        np.savez(path, **content | change)
        with pytest.raises(UsageError, match="not a table"):
            load_frequencies(path)
    with pytest.raises(UsageError, match=r"end the name in \.npz or \.json"):
        save_frequencies(DocumentFrequencies({}, 5), tmp_path / "df.p")


def test_a_number_of_images_that_the_file_contradicts_is_refused(tmp_path):
    for name in ("df.json", "df.npz"):
        save_frequencies(DocumentFrequencies({("a",): 3}, 5), tmp_path / name)
        assert load_frequencies(tmp_path / name, images=5).images == 5
        with pytest.raises(UsageError, match=f"{name} says that it is of 5 images, not of 6: leave their number out"):
            load_frequencies(tmp_path / name, images=6)
