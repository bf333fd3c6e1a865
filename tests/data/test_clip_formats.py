"""Clips in every layout: folders, TGIF, MSR-VTT, MSVD, tars, frames in Karpathy's files; check and conversion."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from clip_files import grey_frames, number_of, write_clip, write_sound, write_webp
from tellapart.cli.data import run_check
from tellapart.data.clips import ClipFile, FrameFiles, PackedClip
from tellapart.data.convert import convert
from tellapart.data.load import load_dataset, load_references, source_at, splits_of
from tellapart.errors import UsageError

pytest.importorskip("av")


def clip(path: Path, *, count: int = 8) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_clip(path, grey_frames(count), "mpeg4" if path.suffix in (".mp4", ".avi") else None)


def shown(dataset, count: int = 4) -> dict[str, list[int]]:
    return {example.id: [number_of(frame) for frame in example.image.frames(count)] for example in dataset}


def test_a_folder_of_clips(tmp_path: Path) -> None:
    clip(tmp_path / "a.mp4"), clip(tmp_path / "sub" / "b.gif")
    data = load_dataset(tmp_path)
    assert shown(data) == {"a.mp4": [1, 3, 5, 7], "sub/b.gif": [1, 3, 5, 7]}
    assert [type(example.image) for example in data] == [ClipFile, ClipFile]
    assert load_dataset(tmp_path, sampling="key_frames")[0].image.sampling == "key_frames"
    assert all("#t=" in name for name in load_dataset(tmp_path, format="unlabelled").ids if "mp4" in name)


def test_a_folder_of_clips_divided_into_splits(tmp_path: Path) -> None:
    clip(tmp_path / "train" / "a.mp4"), clip(tmp_path / "val" / "b.mp4")
    assert splits_of(tmp_path) == ["train", "val"]
    assert load_dataset(tmp_path, split="val").ids == ["val/b.mp4"]


def test_captions_of_clips_in_a_table_and_in_sidecars(tmp_path: Path) -> None:
    clip(tmp_path / "table" / "a.mp4")
    (tmp_path / "table" / "metadata.jsonl").write_text('{"file_name": "a.mp4", "text": "it brightens"}\n')
    clip(tmp_path / "beside" / "a.mp4")
    (tmp_path / "beside" / "a.txt").write_text("it brightens\n")
    clip(tmp_path / "rows" / "a.mp4")
    (tmp_path / "rows" / "rows.csv").write_text("video,caption\na.mp4,it brightens\n")
    for name in ("table", "beside", "rows"):
        (example,) = load_dataset(tmp_path / name)
        assert example.references == ("it brightens",)
        assert isinstance(example.image, ClipFile)


TGIF = "https://38.media.tumblr.com/9f6c/tumblr_one_500.gif\ta man glares\nhttps://x/tumblr_two_400.gif\ta cat sits\n"


def test_tgif(tmp_path: Path) -> None:
    (tmp_path / "tgif-v1.0.tsv").write_text(
        TGIF + "https://38.media.tumblr.com/9f6c/tumblr_one_500.gif\tsomeone glares\n"
    )
    clip(tmp_path / "gifs" / "tumblr_one_500.gif"), clip(tmp_path / "gifs" / "tumblr_two_400.mp4")
    for path in (tmp_path, tmp_path / "tgif-v1.0.tsv"):
        data = load_dataset(path)
        assert data.references == {
            "tumblr_one_500": ["a man glares", "someone glares"],
            "tumblr_two_400": ["a cat sits"],
        }
        assert shown(data)["tumblr_two_400"] == [1, 3, 5, 7]
    (tmp_path / "splits").mkdir()
    (tmp_path / "splits" / "train.txt").write_text("https://x/tumblr_two_400.gif\n")
    (tmp_path / "splits" / "test.txt").write_text("https://38.media.tumblr.com/9f6c/tumblr_one_500.gif\n")
    assert splits_of(tmp_path) == ["train", "test"]
    assert load_dataset(tmp_path, split="test").ids == ["tumblr_one_500"]


def test_tgif_names_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "tgif.tsv").write_text(TGIF)
    with pytest.raises(UsageError, match=r"names clips, but .* holds none"):
        load_dataset(tmp_path)
    clip(tmp_path / "tumblr_one_500.gif")
    with pytest.raises(UsageError, match=r"names 1 missing image \(of 2\), first .*tumblr_two_400\.gif"):
        load_dataset(tmp_path)
    assert len(load_dataset(tmp_path, missing_files=True)) == 2
    (tmp_path / "tgif.tsv").write_text(TGIF + "https://x/tumblr_three.gif\n")
    with pytest.raises(UsageError, match=r"line 3: .* is not url<TAB>sentence"):
        load_dataset(tmp_path)


def msrvtt(folder: Path) -> Path:
    videos = [
        {"video_id": f"video{i}", "split": split, "id": i} for i, split in enumerate(["train", "validate", "test"])
    ]
    sentences = [
        {"video_id": f"video{i}", "caption": f"sentence {n} of {i}", "sen_id": n} for i in range(3) for n in (0, 1)
    ]
    folder.mkdir(exist_ok=True)
    content = {"info": {}, "videos": videos, "sentences": sentences}
    (folder / "videodatainfo.json").write_text(json.dumps(content))
    for i in range(3):
        clip(folder / ("TrainValVideo" if i < 2 else "TestVideo") / f"video{i}.mp4", count=8 + i)
    return folder


def test_a_data_set_of_the_hub_holds_no_clips(tmp_path: Path) -> None:
    """It was written, and read as images that are broken."""
    pytest.importorskip("datasets")
    data = source_at(msrvtt(tmp_path / "clips"))
    with pytest.raises(UsageError, match=r"video\d\.mp4 is a clip, which format 'datasets' does not hold"):
        convert(data, tmp_path / "out", "datasets")
    assert not (tmp_path / "out").exists()


def test_msrvtt(tmp_path: Path) -> None:
    folder = msrvtt(tmp_path)
    for path in (folder, folder / "videodatainfo.json"):
        assert splits_of(path) == ["train", "validate", "test"]
        data = load_dataset(path, split="val")
        assert data.references == {"video1": ["sentence 0 of 1", "sentence 1 of 1"]}
        assert data[0].image.path == folder / "TrainValVideo" / "video1.mp4"
    content = json.loads((folder / "videodatainfo.json").read_text())
    content["sentences"].append({"video_id": "video9", "caption": "lost"})
    (folder / "videodatainfo.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match="sentence 7 is of video 'video9', which is not listed"):
        load_dataset(folder, split="train")


def test_msvd_as_sentences_of_splits(tmp_path: Path) -> None:
    captions = tmp_path / "captions"
    captions.mkdir()
    for split, number in {"train": 1, "val": 2, "test": 3}.items():
        (captions / f"sents_{split}_lc_nopunc.txt").write_text(f"vid{number}\ta man runs\nvid{number}\ta person runs\n")
        clip(tmp_path / "YouTubeClips" / f"-4wsuPCjDBc_{number}_15.avi")
    mapping = "".join(f"-4wsuPCjDBc_{number}_15 vid{number}\n" for number in (1, 2, 3))
    (tmp_path / "youtube_mapping.txt").write_text(mapping)
    assert splits_of(tmp_path) == ["train", "val", "test"]
    data = load_dataset(tmp_path, split="val")
    assert data.references == {"vid2": ["a man runs", "a person runs"]}
    assert shown(data) == {"vid2": [1, 3, 5, 7]}


def test_two_files_of_msvd_of_one_split_are_refused(tmp_path: Path) -> None:
    """The last one was read, without a word."""
    for kind in ("lc_nopunc", "raw"):
        (tmp_path / f"sents_train_{kind}.txt").write_text(f"vid1\ta man runs ({kind})\n")
    clip(tmp_path / "vid1.avi")
    with pytest.raises(
        UsageError, match=r"sents_train_lc_nopunc\.txt and .*sents_train_raw\.txt are both of split 'train'"
    ):
        load_dataset(tmp_path)
    assert load_dataset(tmp_path / "sents_train_raw.txt").references == {"vid1": ["a man runs (raw)"]}


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("tgif-v1.0.tsv", "https://x/one.gif\ta man runs"),
        ("sents_train_lc_nopunc.txt", "one\ta man runs"),
        ("AllVideoDescriptions.txt", "one a man runs"),
    ],
)
def test_lines_that_end_as_on_windows_lose_their_end(tmp_path: Path, name: str, line: str) -> None:
    """Each caption ended in a carriage return."""
    (tmp_path / name).write_bytes(f"{line}\r\n\r\n{line}\r\n".encode())
    clip(tmp_path / "one.gif")
    assert load_dataset(tmp_path / name).references == {"one": ["a man runs", "a man runs"]}


def test_a_heading_with_stray_quotes_is_not_that_of_msvd(tmp_path: Path) -> None:
    """It was taken for one, and a column looked for in vain."""
    (tmp_path / "y.csv").write_text('VideoID,Start,End,Language,Descriptio"n\na,1,2,English,x\n')
    with pytest.raises(UsageError):
        load_references(tmp_path / "y.csv")


def test_msvd_as_one_file_and_as_a_table(tmp_path: Path) -> None:
    clip(tmp_path / "videos" / "mv89psg6zh4_33_46.avi")
    head = "# A head\n#\n\n"
    (tmp_path / "AllVideoDescriptions.txt").write_text(f"{head}mv89psg6zh4_33_46 A bird bathes.\n")
    (tmp_path / "corpus.csv").write_text(
        "VideoID,Start,End,WorkerID,Source,AnnotationTime,Language,Description\n"
        "mv89psg6zh4,33,46,588702,unverified,55,Slovene,Papagaj se umiva.\n"
        'mv89psg6zh4,33,46,588702,unverified,55,English,"A bird bathes, slowly."\n'
    )
    data = load_dataset(tmp_path / "AllVideoDescriptions.txt")
    assert data.references == {"mv89psg6zh4_33_46": ["A bird bathes."]}
    assert shown(data, 2) == {"mv89psg6zh4_33_46": [2, 6]}
    assert load_dataset(tmp_path / "corpus.csv").references == {"mv89psg6zh4_33_46": ["A bird bathes, slowly."]}


@pytest.mark.parametrize("ending", ["mp4", "webm", "gif"])
def test_clips_in_tars(tmp_path: Path, ending: str) -> None:
    data = clip(tmp_path / f"x.{ending}").read_bytes()
    with tarfile.open(tmp_path / "0.tar", "w") as archive:
        for name, content in {f"7.{ending}": data, "7.txt": b"it brightens"}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    (example,) = load_dataset(tmp_path / "0.tar")
    assert (example.id, example.references) == ("7", ("it brightens",))
    assert [number_of(frame) for frame in example.image.frames(4)] == [1, 3, 5, 7]
    assert isinstance(example.image, PackedClip) == (ending != "gif")


def frames_of(folder: Path) -> Path:
    for number, array in enumerate(grey_frames(5)):
        (folder / "frames" / "clip").mkdir(parents=True, exist_ok=True)
        Image.fromarray(array).save(folder / "frames" / "clip" / f"{number}.png")
    record = {
        "filepath": "frames/clip",
        "frames": [f"{number}.png" for number in range(5)],
        "split": "train",
        "cocoid": 3,
        "sentences": [{"raw": "it brightens"}],
    }
    (folder / "dataset.json").write_text(json.dumps({"images": [record], "dataset": "clips"}))
    return folder


def test_frames_in_karpathys_files(tmp_path: Path) -> None:
    folder = frames_of(tmp_path)
    (example,) = load_dataset(folder, split="train")
    assert example.image == FrameFiles(tuple(folder / "frames" / "clip" / f"{number}.png" for number in range(5)))
    assert shown([example], 5) == {"3": [0, 1, 2, 3, 4]}
    (folder / "frames" / "clip" / "2.png").unlink()
    with pytest.raises(UsageError, match=r"missing image.*, first .*2\.png"):
        load_dataset(folder, split="train")
    content = json.loads((folder / "dataset.json").read_text())
    content["images"][0]["frames"] = []
    (folder / "dataset.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match="'frames' of clip '3' is"):
        load_dataset(folder, split="train")


def video_captions(shared_data: Path) -> Path:
    if not (shared_data / "video").is_dir():
        pytest.skip("the caption files of videos (shared/data/video) are not beside the project")
    return shared_data / "video"


def everything(path: Path) -> dict:
    source = source_at(path)
    return {
        split: {e.id: (e.references, shown([e], 5)[e.id]) for e in source.read([split])} for split in source.splits()
    }


@pytest.mark.parametrize("to", ["folder", "karpathy", "webdataset", "sidecars", "csv"])
def test_conversion_keeps_clips(tmp_path: Path, to: str) -> None:
    """Of format folder the splits are folders; ``validate`` is a split's name in all of them."""
    folder = msrvtt(tmp_path / "from")
    convert(source_at(folder), tmp_path / "to", to)
    assert everything(tmp_path / "to") == everything(folder)
    written = list((tmp_path / "to").rglob("*.mp4"))
    if to != "webdataset":
        originals = sorted(path.read_bytes() for path in folder.rglob("*.mp4"))
        assert sorted(path.read_bytes() for path in written) == originals


@pytest.mark.parametrize("to", ["karpathy", "folder", "webdataset"])
def test_conversion_keeps_frames(tmp_path: Path, to: str) -> None:
    folder = frames_of(tmp_path / "from") if (tmp_path / "from").mkdir() is None else None
    convert(source_at(folder), tmp_path / "to", to)
    assert everything(tmp_path / "to") == everything(folder)


def test_a_check_counts_and_names_broken_clips(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clip(tmp_path / "good.mp4")
    write_clip(tmp_path / "one.mp4", grey_frames(1))
    write_clip(tmp_path / "turned.mp4", grey_frames(6)[::-1], rotation=90)
    write_clip(tmp_path / "varying.mp4", grey_frames(5), stamps=[0, 1, 2, 3, 30])
    write_webp(tmp_path / "moves.webp", grey_frames(8) // 2)
    write_sound(tmp_path / "sound.mp4")
    (tmp_path / "cut.mp4").write_bytes((tmp_path / "good.mp4").read_bytes()[:600])
    assert run_check([str(tmp_path), "--json", "--strict", "--num_workers", "0"]) == 2
    (split,) = json.loads(capsys.readouterr().out)["splits"].values()
    assert split["images"] == 7
    assert {broken["id"] for broken in split["broken"]} == {"sound.mp4", "cut.mp4"}
    assert split["kinds"] == {"one frame": 1, "turned by its display matrix": 1, "variable frame rate": 1}


@pytest.mark.parametrize(
    ("split", "clips", "sentences"), [("train", 1200, 48774), ("val", 100, 4290), ("test", 670, 27763)]
)
def test_the_real_captions_of_msvd_have_their_counts(
    tmp_path: Path, shared_data: Path, split: str, clips: int, sentences: int
) -> None:
    """Written back in the form of S2VT, from which they came, they are read alike."""
    stored = load_references(video_captions(shared_data) / "msvd" / f"captions_{split}.json")
    lines = [f"vid{e.id}\t{text}\n" for e in stored for text in e.references]
    file = tmp_path / f"sents_{split}_lc_nopunc.txt"
    file.write_text("".join(lines))
    found = load_references(file)
    assert (len(found), sum(len(e.references) for e in found)) == (clips, sentences)
    assert found.references == {f"vid{name}": texts for name, texts in stored.references.items()}


def test_the_real_addresses_of_tgif_are_ids(tmp_path: Path, shared_data: Path) -> None:
    urls = json.loads((video_captions(shared_data) / "tgif" / "urls.json").read_text())
    written = json.loads((video_captions(shared_data) / "tgif" / "results_lstm_cnn_finetune.json").read_text())
    captions = {row["image_id"]: row["caption"] for row in written}
    lines = "".join(f"{url}\t{captions[i]}\n" for i, url in enumerate(urls))
    (tmp_path / "tgif-v1.0.tsv").write_text(lines)
    found = load_references(tmp_path)
    assert len(found) == len(urls) == 11360
    assert found.ids[0] == "tumblr_ngf9rveb2q1sh98coo1_400"
