"""A trained captioner on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tellapart.errors import UsageError, reason_of
from tellapart.files import write_text

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CARD_FILE = "README.md"


def push(captioner: Path, name: str, *, card: str, private: bool = False, api: HfApi | None = None) -> str:
    """Upload a captioner's folder with its model card, in one commit; returns the commit's or the repository's address.

    The card becomes the folder's own ``README.md``. Files of the repository that the folder lacks stay.

    Args:
        captioner: folder that plain transformers (with LoRA: peft) loads.
        name: repository, ``owner/name``; it is made if it does not exist.
        card: text of the model card.
        private: make a new repository private; one that exists stays as it is.
        api: connection to the hub; default: the logged-in user's.

    Raises:
        UsageError: the name cannot be used, no one is logged in, the hub cannot be reached, or it refuses; or files of the
            captioner were removed meanwhile.
    """
    from huggingface_hub import HfApi

    check_name(name, "the repository")
    if not captioner.is_dir():
        raise UsageError(f"{captioner} does not exist: train a captioner first.")
    files = [path for path in captioner.iterdir() if path.name[0] != "."]
    connection = HfApi() if api is None else api
    with hub_errors(name):
        connection.create_repo(repo_id=name, private=private, exist_ok=True)
    write_text(captioner / CARD_FILE, card)
    with hub_errors(name):
        done = connection.upload_folder(
            repo_id=name,
            folder_path=captioner,
            commit_message="Captioner and model card, by tellapart",
            ignore_patterns=[".*"],  # what a killed process may have left half-written
        )
    gone = [path.name for path in files if not path.exists()]
    if gone:
        raise UsageError(
            f"{len(gone)} files of {captioner} were removed while it was pushed, such as {gone[0]}, so {name} may lack them: "
            "restore them, and push again."
        )
    return str(getattr(done, "commit_url", None) or done)


def check_name(name: str | None, option: str) -> str:
    """The name, if it can name a repository of the hub.

    Raises:
        UsageError: it cannot, or there is none.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    if not name:
        raise UsageError(f"the name of the repository is missing: give {option} owner/name.")
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise UsageError(f"{option} {name!r} cannot name a repository of the hub: write owner/name.") from error
    if name.count("/") != 1:
        raise UsageError(f"{option} {name!r} names no owner: write owner/name.")
    return name


def require_login() -> None:
    """Raise where no token of the hub is known on this machine; the hub is not asked.

    Raises:
        UsageError: there is none.
    """
    from huggingface_hub import get_token

    if not get_token():
        raise UsageError(
            "no one is logged in to the Hugging Face hub: run hf auth login, or set HF_TOKEN to a token that may write."
        )


@contextmanager
def hub_errors(name: str) -> Iterator[None]:
    """Turn errors of the hub inside the block into one sentence.

    Raises:
        UsageError: with its remedy.
    """
    from huggingface_hub import errors
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled

    unreachable = (
        vars(errors).get("HTTPError", OSError),
        OSError,
    )  # of whichever HTTP library the hub's client uses
    try:
        yield
    except LocalTokenNotFoundError as error:
        raise UsageError(
            f"{name} cannot be pushed to, because no one is logged in: run hf auth login, or set HF_TOKEN."
        ) from error
    except OfflineModeIsEnabled as error:
        raise UsageError(f"{name} cannot be pushed to while HF_HUB_OFFLINE is set: unset it.") from error
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        raise UsageError(f"the Hugging Face hub refuses {name} ({_refusal(status)}).") from error
    except unreachable as error:
        raise UsageError(
            f"the Hugging Face hub cannot be reached to push {name} ({reason_of(error)}): check the connection and push again."
        ) from error


def _refusal(status: int | None) -> str:
    known = {
        401: "the token is not valid: run hf auth login",
        403: "the token may not write there: use one that may, or another owner",
        404: "there is no such owner: correct the name",
    }
    return known.get(status or 0, f"status {status}: try again later, or see --debug")
