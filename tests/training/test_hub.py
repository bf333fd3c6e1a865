"""Pushing: what a stand-in for the hub is asked, and a sentence for everything that the hub can answer."""

import shutil
from types import SimpleNamespace

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled

from tellapart.errors import UsageError
from tellapart.training.hub import check_name, push, require_login


class Hub:
    """Remembers what it was asked, or fails."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure, self.asked, self.files = failure, [], {}

    def create_repo(self, **options):
        self.asked.append(("create", options))

    def upload_folder(self, *, folder_path, **options):
        if self.failure is not None:
            raise self.failure
        self.asked.append(("upload", options))
        self.files = {path.name: path.read_text() for path in folder_path.iterdir()}
        return SimpleNamespace(commit_url="https://hub/commit/1")


@pytest.fixture
def captioner(tmp_path):
    (tmp_path / "captioner").mkdir()
    (tmp_path / "captioner" / "config.json").write_text("{}")
    return tmp_path / "captioner"


def test_one_commit_holds_the_folder_and_the_card(captioner):
    hub = Hub()
    assert push(captioner, "me/mine", card="# card", private=True, api=hub) == "https://hub/commit/1"
    (create, made), (upload, sent) = hub.asked
    assert (create, made) == ("create", {"repo_id": "me/mine", "private": True, "exist_ok": True})
    assert (upload, sent["repo_id"], sent["ignore_patterns"]) == ("upload", "me/mine", [".*"])
    assert hub.files == {"config.json": "{}", "README.md": "# card"}


def refusal(status: int) -> HfHubHTTPError:
    return HfHubHTTPError("no", response=SimpleNamespace(status_code=status, headers={}, request=None))


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        (LocalTokenNotFoundError("none"), "no one is logged in: run hf auth login"),
        (OfflineModeIsEnabled("offline"), "while HF_HUB_OFFLINE is set: unset it"),
        (ConnectionError("no route"), r"cannot be reached to push me/mine \(no route\): check the connection"),
        (TimeoutError("slow"), "cannot be reached"),
        (refusal(401), "the token is not valid"),
        (refusal(403), "the token may not write there"),
        (refusal(503), "status 503: try again later"),
    ],
)
def test_failures_are_sentences(captioner, failure, sentence):
    with pytest.raises(UsageError, match=sentence) as told:
        push(captioner, "me/mine", card="", api=Hub(failure))
    assert "\n" not in str(told.value)
    assert (captioner / "config.json").is_file()


def test_the_hubs_own_client_without_a_network(captioner, monkeypatch):
    """Port 9 of this machine refuses connections, as a network that is down would."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    api = HfApi(endpoint="http://127.0.0.1:9", token="hf_x")
    with pytest.raises(UsageError, match="the Hugging Face hub cannot be reached to push me/mine"):
        push(captioner, "me/mine", card="", api=api)
    assert not (captioner / "README.md").exists()


def test_a_captioner_that_is_removed_meanwhile_is_not_taken_for_pushed(captioner):
    class Removing(Hub):
        def create_repo(self, **options):
            shutil.rmtree(captioner)

    with pytest.raises(UsageError, match=r"files of .* were removed while it was pushed"):
        push(captioner, "me/mine", card="A card.", api=Removing())


def test_names_and_folders_are_checked_before_the_hub_is_asked(captioner, tmp_path):
    for name, sentence in ((None, "the repository is missing"), ("mine", "names no owner"), ("a b/c", "cannot name")):
        with pytest.raises(UsageError, match=sentence):
            check_name(name, "--hub_model_id")
    assert check_name("me/mine", "--hub_model_id") == "me/mine"
    hub = Hub()
    with pytest.raises(UsageError, match="does not exist"):
        push(tmp_path / "gone", "me/mine", card="", api=hub)
    assert not hub.asked


def test_nobody_logged_in_is_told_without_a_network(monkeypatch):
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(UsageError, match="run hf auth login, or set HF_TOKEN"):
        require_login()
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_x")
    require_login()
