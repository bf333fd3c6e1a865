"""A captioner behind an OpenAI-compatible HTTP endpoint, such as vLLM's or SGLang's: requests at once, retries, failures."""

from __future__ import annotations

import base64
import io
import json
import math
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, cast

import httpx2
import torch

from tellapart.captioners.families.base import CONTEXT
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.captioning.addresses import check_address
from tellapart.captioning.defaults import ENDPOINT_KEY, IMAGE_SIZE, TIMEOUT
from tellapart.captioning.draw import Drawer, Drawing
from tellapart.captioning.records import Caption
from tellapart.captioning.serve import StationError
from tellapart.draws import mix_seeds
from tellapart.errors import UsageError, brief, printable, reason_of, without_secrets
from tellapart.types import Batch, Decoding, Rollout

if TYPE_CHECKING:
    from PIL import Image

ATTEMPTS = 6
"""Requests for an image before it is given up."""
BACK_OFF, LONGEST_WAIT = 0.5, 60.0
"""Seconds before the second request, doubled before each further one; and the longest wait that a server may ask for."""
FRUITLESS = 20
"""Images in a row without an answer after which the run stops: then something else than the images is wrong."""
LARGEST_ANSWER = 4 * 2**20
"""Bytes of an answer from which it is refused."""
QUALITY = 95
"""Of the JPEG that is sent."""
PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""HTTP statuses that may be different the next time."""
OF_THE_IMAGE = frozenset({400, 413, 415, 422})
"""HTTP statuses that are about this request, and not about all."""


class _PassingError(Exception):
    """A request failed in a way that may pass.

    Args:
        why: a few words.
        wait: seconds that the server asks to wait.
        reached: whether there was a server.
    """

    def __init__(self, why: str, *, wait: float = 0.0, reached: bool = True) -> None:
        super().__init__(why)
        self.wait, self.reached = wait, reached


class _ImageError(Exception):
    """The server has no caption for this image."""


@dataclass(frozen=True)
class Endpoint:
    """Where a model is served, and how it is asked.

    Args:
        url: up to ``/v1``, to which ``/chat/completions`` is added.
        model: the name that the server knows it by.
        prompt: the question about each image; ``{context}`` is what is known of it.
        image_size: longest side in pixels of the JPEG that is sent; larger images are made smaller.
        timeout: seconds that one request may take: to the first bytes of the answer, and to its last ones.
        concurrency: requests at once.

    Raises:
        UsageError: the address cannot be used.
    """

    url: str
    model: str
    prompt: str
    image_size: int = IMAGE_SIZE
    timeout: float = TIMEOUT
    concurrency: int = 16

    def __post_init__(self) -> None:
        check_address(self.url)

    @property
    def address(self) -> str:
        """Of the requests."""
        return f"{self.url.rstrip('/')}/chat/completions"


class EndpointCaptioner:
    """Draws captions by requests, one per image, several at once.

    The key is read from the environment (``OPENAI_API_KEY``) and goes into no message, file or pickle.

    Args:
        endpoint: where and how.

    Attributes:
        failed: image id -> why the server has no caption for it, of the last calls; who reads it empties it.

    Raises:
        UsageError: the key cannot be sent.

    Example:
        >>> captioner = EndpointCaptioner(Endpoint("http://localhost:8000/v1", "Qwen/Qwen2.5-VL-7B-Instruct", "Describe it."))
        >>> batch = Batch(["a"], [[]], {captioner.name: captioner.process([Image.open("a.jpg")])})  # doctest: +SKIP
        >>> captioner.generate(batch, Decoding()).texts  # doctest: +SKIP
    """

    name = "endpoint"

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.failed: dict[str, str] = {}
        self._key = os.environ.get(ENDPOINT_KEY, "").strip()
        if not (self._key.isascii() and self._key.isprintable()):
            raise UsageError(f"{ENDPOINT_KEY} holds characters that cannot be sent: correct it.")
        headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
        limits = httpx2.Limits(max_connections=endpoint.concurrency)
        self._client = httpx2.Client(headers=headers, timeout=endpoint.timeout, limits=limits)
        self._pool = ThreadPoolExecutor(endpoint.concurrency, thread_name_prefix="endpoint")
        self._stopped, self._lock, self._in_a_row = Event(), Lock(), 0
        self.answered: set[str] = set()
        """Images of this batch that have a caption, which stays where asking for another one fails."""

    def process(self, images: list[Any]) -> dict[str, torch.Tensor]:
        """The images as JPEGs: ``jpeg`` ``[B, L]`` uint8 bytes, padded with zeros, and ``length`` ``[B]``."""
        files = [torch.frombuffer(bytearray(self._jpeg(image)), dtype=torch.uint8) for image in images]
        length = torch.tensor([len(file) for file in files])
        return {"jpeg": torch.nn.utils.rnn.pad_sequence(files, batch_first=True), "length": length}

    def _jpeg(self, image: Image.Image) -> bytes:
        image = image.convert("RGB")  # a copy, which thumbnail may change
        image.thumbnail((self.endpoint.image_size, self.endpoint.image_size))
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=QUALITY)
        return buffer.getvalue()

    def generate(self, batch: Batch, decoding: Decoding) -> Rollout:
        """Captions of all images; an image that the server refuses gets empty ones, and is in ``failed``.

        Args:
            batch: B images.
            decoding: greedy or sampling. A sample's seed follows from torch's seed and the image's id, but servers that batch
                requests do not promise equal answers to equal seeds.

        Returns:
            ``num_return_sequences`` captions per image, without tokens.

        Raises:
            StationError: the endpoint cannot be used, or answered nothing for ``FRUITLESS`` images in a row.
        """
        encoded, seed = batch.inputs[self.name], torch.initial_seed()
        jpegs, lengths = encoded["jpeg"].cpu().numpy(), encoded["length"].tolist()
        calls = []
        for row, name in enumerate(batch.ids):
            data = jpegs[row, : lengths[row]].tobytes()
            context = batch.contexts[row] if batch.contexts else ""
            calls.append(partial(self._drawn, name, data, context, decoding, mix_seeds(seed, name) % 2**31))
        futures = [self._pool.submit(call) for call in calls]
        try:
            drawn = [one for future in futures for one in future.result()]
        except BaseException as error:
            for future in futures:
                future.cancel()
            if not isinstance(error, Exception):  # interrupted: what runs is not waited for
                self.close()
            raise
        count = decoding.num_return_sequences
        tokens = torch.zeros(len(drawn), 1, dtype=torch.long)
        image = torch.arange(len(batch)).repeat_interleave(count)
        finished = torch.tensor([end for _, end in drawn])
        return Rollout(batch, image, [text for text, _ in drawn], tokens, tokens.bool(), finished)

    def close(self) -> None:
        """Break off all requests."""
        self._stopped.set()
        self._client.close()

    def _drawn(self, name: str, jpeg: bytes, context: str, decoding: Decoding, seed: int) -> list[tuple[str, bool]]:
        """The captions of one image, and whether each was finished."""
        if name in self.failed:  # this batch has asked for it before
            return [("", False)] * decoding.num_return_sequences
        body = json.dumps(self._request(jpeg, context, decoding, seed)).encode()
        try:
            drawn = self._tried(body, decoding.num_return_sequences)
        except _ImageError as error:
            if name in self.answered:
                return [("", False)] * decoding.num_return_sequences
            self.failed[name] = f"{name} has no caption ({error}): run the same command again, or leave it out."
            self._count_failure(str(error))
            return [("", False)] * decoding.num_return_sequences
        self._in_a_row = 0
        self.answered.add(name)
        return drawn

    def _count_failure(self, why: str) -> None:
        with self._lock:
            self._in_a_row += 1
            if self._in_a_row >= FRUITLESS:
                raise StationError(
                    f"{self.endpoint.url} gave no caption for {self._in_a_row} images in a row ({why}): repair that, and run the "
                    "same command again to resume."
                )

    def _request(self, jpeg: bytes, context: str, decoding: Decoding, seed: int) -> dict[str, Any]:
        url = f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"
        text = self.endpoint.prompt.replace(CONTEXT, context)
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
        asked: dict[str, Any] = {
            "model": self.endpoint.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": decoding.max_new_tokens,
            "n": decoding.num_return_sequences,
            "temperature": decoding.temperature if decoding.do_sample else 0.0,
        }
        if decoding.do_sample:
            asked |= {"top_p": decoding.top_p, "seed": seed}
        # vLLM and SGLang know these two, OpenAI does not.
        asked |= {"top_k": decoding.top_k} if decoding.do_sample and decoding.top_k else {}
        return asked | ({"min_tokens": decoding.min_new_tokens} if decoding.min_new_tokens else {})

    def _tried(self, body: bytes, count: int) -> list[tuple[str, bool]]:
        """The answer to a request, which is repeated with growing pauses when it fails in a way that may pass.

        Raises:
            _ImageError: it keeps failing, or the server refuses this request.
            StationError: there is no server, or it refuses every request.
        """
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return _captions(self._posted(body), count)
            except _PassingError as error:
                if attempt < ATTEMPTS and not self._stopped.is_set():
                    pause = (
                        BACK_OFF * 2 ** (attempt - 1) * random.uniform(0.5, 1.0)
                    )  # so that requests do not come together
                    self._stopped.wait(min(max(pause, error.wait), LONGEST_WAIT))
                elif error.reached:
                    raise _ImageError(f"{error}, {attempt} times") from error
                else:
                    raise StationError(
                        f"{self.endpoint.url} cannot be reached ({error}): start the server, and run the same command again to "
                        "resume."
                    ) from error
        raise AssertionError("the last attempt returns or raises")

    def _posted(self, body: bytes) -> bytes:
        """The body of the answer to one request."""
        until, headers = time.monotonic() + self.endpoint.timeout, {"content-type": "application/json"}
        try:
            with self._client.stream("POST", self.endpoint.address, content=body, headers=headers) as answer:
                data = bytearray()
                for chunk in answer.iter_bytes():
                    data += chunk
                    if len(data) > LARGEST_ANSWER:
                        raise _PassingError(f"an answer of more than {LARGEST_ANSWER:,} bytes")
                    if time.monotonic() > until:
                        raise _PassingError(f"no whole answer in {self.endpoint.timeout:g} seconds")
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise _PassingError(self._clean(reason_of(error)), reached=False) from error
        except httpx2.TimeoutException as error:
            raise _PassingError(f"no answer in {self.endpoint.timeout:g} seconds") from error
        except (
            httpx2.HTTPError,
            httpx2.StreamError,
            RuntimeError,
            OSError,
        ) as error:  # RuntimeError: the client was closed
            raise _PassingError(self._clean(reason_of(error))) from error
        self._require_good(answer, bytes(data))
        return bytes(data)

    def _require_good(self, answer: httpx2.Response, data: bytes) -> None:
        status = answer.status_code
        if status == 200:
            return
        why = self._clean(f"HTTP {status} {_message(data)}".rstrip())
        if status in PASSING:
            raise _PassingError(why, wait=_asked_pause(answer.headers.get("retry-after", "")))
        if status in OF_THE_IMAGE:
            raise _ImageError(why)
        remedy = f"put its key into {ENDPOINT_KEY}" if status in (401, 403) else "check --endpoint and --captioner"
        raise StationError(f"{self.endpoint.url} refuses {self.endpoint.model} ({why}): {remedy}.")

    def _clean(self, text: str) -> str:
        """The text without the key, which servers repeat in their errors."""
        text = text.replace(self._key, "...") if self._key else text
        return printable(brief(without_secrets(text)))[:300].rstrip(".")


def _asked_pause(header: str) -> float:
    """The seconds of a ``Retry-After``, which has a number or a date (RFC 9110, section 10.2.3); 0 where it has neither."""
    try:
        return max(float(header), 0.0) if math.isfinite(float(header)) else 0.0
    except ValueError:
        pass
    try:
        until = parsedate_to_datetime(header)
    except (ValueError, OverflowError):
        return 0.0
    return max((until - datetime.now(UTC if until.tzinfo else None)).total_seconds(), 0.0)


def _message(data: bytes) -> str:
    """What the body of an error says."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return ""
    found = found.get("error", found) if isinstance(found, dict) else {}
    said = found.get("message", "") if isinstance(found, dict) else found
    return said if isinstance(said, str) else ""


def _captions(data: bytes, count: int) -> list[tuple[str, bool]]:
    """The texts of an answer, in the order of their numbers, and whether each was finished.

    Raises:
        _PassingError: it is not such an answer.
        StationError: it has another number of captions, for which the next request would be paid, too.
    """
    try:
        choices = sorted(json.loads(data)["choices"], key=lambda choice: int(choice.get("index") or 0))
        found = [(choice["message"].get("content"), choice.get("finish_reason")) for choice in choices]
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise _PassingError("an answer that is not a chat completion") from error
    if not found:
        raise _PassingError("an answer without captions")
    if not all(isinstance(text, str | None) for text, _ in found):
        raise _PassingError("an answer whose content is not text")
    if len(found) != count:
        raise StationError(
            f"a request for {count} captions is answered with {len(found)}, so the server does not follow n: ask for one caption "
            "per image, or serve the model by vLLM or SGLang."
        )
    return [(_written(text or ""), reason == "stop") for text, reason in found]


def _written(text: str) -> str:
    """The text without what no file holds: half characters, which JSON may name, and null characters."""
    return text.encode(errors="ignore").decode().replace("\0", "")


class EndpointDrawer(Drawer):
    """Captions batches by an endpoint; an image that it has no caption for becomes a caption with an error.

    Args:
        captioner: asks the endpoint.
        how: the settings.
        device: of the listener.
    """

    def __init__(self, captioner: EndpointCaptioner, how: Drawing, device: torch.device) -> None:
        self.captioner, self.how, self.device = cast(HuggingFaceCaptioner, captioner), how, device
        self._endpoint = captioner

    def __call__(self, batch: Batch, described: int | None = None) -> list[Caption]:
        """One caption per image, in the batch's order."""
        self._endpoint.answered.clear()
        captions = super().__call__(batch, described)
        failed, self._endpoint.failed = self._endpoint.failed, {}
        return [Caption(one.id, error=failed[one.id]) if one.id in failed else one for one in captions]
