"""Access to a directory of an object storage, by ``obstore``, which is the client of Pawl's own trainer and is configured by the same
environment variables."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from .outcome import InvalidPlan, Unsupported

_PIECE = 8 << 20
# Bytes of one request. The client ends a request after 30 s, and its retries after 3 minutes.
_RANGE = 32 << 20
# In memory there are at most so many files, each with so many parts, or one range.
_THREADS = 4
_PARTS_AT_ONCE = 4
_MOST_PARTS = 9000
_BEAT_SECONDS = 1.0
_AZURE_SERVICES = ("dfs.core.windows.net", "blob.core.windows.net")
# The service, and the variables with its credentials, of each scheme.
SCHEMES = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_SERVICE_ACCOUNT",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "abfss": "AZURE_STORAGE_ACCOUNT_KEY",
}


class BucketError(OSError):
    """An operation failed. The message names the storage, the object and the remedy."""


class Bucket:
    """The objects below a URL. Keys are relative to it.

    Raises:
        Unsupported: ``obstore`` is not installed.
        InvalidPlan: The URL, or what the environment says of it, is invalid.
        BucketError: A method failed.
    """

    def __init__(self, url: str, field_name: str) -> None:
        self.url = url.rstrip("/")
        self._scheme, _, address = self.url.partition("://")
        try:
            import obstore
        except ImportError:
            raise Unsupported(
                f"{field_name}: {url}: needs the package obstore: pip install 'pawl-launch[objects]', or use pvc:// or file://"
            ) from None
        self._obstore: Any = obstore
        self._missing = (FileNotFoundError, obstore.exceptions.NotFoundError)
        try:
            self._store = connect(self._scheme, address)
        except Exception as error:
            raise InvalidPlan(f"{field_name}: {url}: {_first_line(error)}: {self._remedy()}") from error
        self.moved = 0
        """Bytes that were read or written."""

    def names(self, folder: str = "") -> list[str]:
        """What is one level below a folder: folders and objects."""
        found = self._do("list", folder, lambda: self._obstore.list_with_delimiter(self._store, folder or None))
        paths = [*found["common_prefixes"], *(each["path"] for each in found["objects"])]
        return sorted(path.rstrip("/").rpartition("/")[2] for path in paths)

    def sizes(self, folder: str) -> dict[str, int]:
        """All objects in a folder, at any depth, by their keys relative to it, and their sizes, bytes."""
        found = self._do("list", folder, lambda: self._obstore.list(self._store, folder).collect())
        return {each["path"].removeprefix(f"{folder}/"): each["size"] for each in found}

    def read(self, key: str) -> bytes | None:
        """An object; ``None`` when there is none."""
        found: bytes | None = self._do("read", key, lambda: bytes(self._obstore.get(self._store, key).bytes()), missing=True)
        return found

    def write(self, key: str, content: bytes) -> None:
        """Replaces an object atomically."""
        self._do("write", key, lambda: self._obstore.put(self._store, key, content))

    def create(self, key: str, content: bytes = b"") -> bool:
        """Creates an object atomically. Returns whether it is new: an existing one is left unchanged."""
        try:
            self._obstore.put(self._store, key, content, mode="create", use_multipart=False)
        except self._obstore.exceptions.AlreadyExistsError:
            return False
        except Exception as error:
            raise self._failed("create", key, error) from error
        return True

    def delete(self, key: str) -> None:
        """Deletes an object, if it exists."""
        self._do("delete", key, lambda: self._obstore.delete(self._store, key), missing=True)

    def delete_folder(self, folder: str, first: str) -> None:
        """Deletes all objects in a folder, ``first`` before all others."""
        self.delete(f"{folder}/{first}")
        for name in self.sizes(folder):
            self.delete(f"{folder}/{name}")

    def rename(self, key: str, to: str) -> None:
        """Copies an object, then deletes it."""
        self._do("rename", key, lambda: self._obstore.rename(self._store, key, to))

    def upload(self, paths: Mapping[str, Path], beat: Callable[[], None]) -> dict[str, str]:
        """Writes files to the keys given, several at a time. Returns the SHA-256 of what was written, by key. ``beat`` is called while
        bytes move."""
        return self._each(paths, lambda key: self._upload(key, paths[key]), beat)

    def download(self, paths: Mapping[str, Path], beat: Callable[[], None]) -> dict[str, str]:
        """Reads objects into files, several at a time. Returns the SHA-256 of what was read, by key, without objects that do not exist.
        ``beat`` is called while bytes move."""
        found = self._each(paths, lambda key: self._download(key, paths[key]), beat)
        return {key: sha256 for key, sha256 in found.items() if sha256 is not None}

    def _upload(self, key: str, path: Path) -> str:
        digest = hashlib.sha256()

        def pieces() -> Iterator[bytes]:
            with open(path, "rb") as file:
                while piece := file.read(_PIECE):
                    digest.update(piece)
                    self.moved += len(piece)
                    yield piece

        size = path.stat().st_size
        if size <= _PIECE:
            self.write(key, b"".join(pieces()))
        else:
            # In parts, of which there are at most 10,000.
            part = max(_PIECE, size // _MOST_PARTS)
            put = self._obstore.put
            self._do("write", key, lambda: put(self._store, key, pieces(), chunk_size=part, max_concurrency=_PARTS_AT_ONCE))
        return digest.hexdigest()

    def _download(self, key: str, path: Path) -> str | None:
        def read() -> str:
            digest = hashlib.sha256()
            size = self._obstore.head(self._store, key)["size"]
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:
                for start in range(0, size, _RANGE):
                    piece = self._obstore.get_range(self._store, key, start=start, end=min(start + _RANGE, size))
                    digest.update(piece)
                    self.moved += len(piece)
                    file.write(piece)
            return digest.hexdigest()

        found: str | None = self._do("read", key, read, missing=True)
        return found

    def _each(self, keys: Iterable[str], work: Callable[[str], Any], beat: Callable[[], None]) -> dict[str, Any]:
        with ThreadPoolExecutor(_THREADS) as pool:
            futures = {key: pool.submit(work, key) for key in keys}
            pending, seen = set(futures.values()), self.moved
            try:
                while pending:
                    done, pending = wait(pending, _BEAT_SECONDS, FIRST_COMPLETED)
                    for future in done:
                        future.result()
                    if self.moved != seen:
                        seen = self.moved
                        beat()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return {key: future.result() for key, future in futures.items()}

    def _do(self, action: str, key: str, work: Callable[[], Any], missing: bool = False) -> Any:
        """What ``work`` returns; ``None`` if the object may be ``missing``, and is."""
        try:
            return work()
        except Exception as error:
            if isinstance(error, OSError) and error.errno is not None:
                # Of a file of this machine.
                raise
            if missing and isinstance(error, self._missing):
                return None
            raise self._failed(action, key, error) from error

    def _failed(self, action: str, key: str, error: Exception) -> BucketError:
        known = self._obstore.exceptions
        if isinstance(error, self._missing):
            remedy = "does the bucket exist?"
        elif isinstance(error, (known.PermissionDeniedError, known.UnauthenticatedError)):
            remedy = f"give the pod credentials that may write, read, list and delete there ({SCHEMES[self._scheme]}, or workload identity)"
        else:
            remedy = self._remedy()
        return BucketError(f"checkpoint storage {self.url}: cannot {action} {key or '/'}: {_first_line(error)}: {remedy}")

    def _remedy(self) -> str:
        return f"check the address, the network and the credentials ({SCHEMES[self._scheme]}, or workload identity)"


def _first_line(error: Exception) -> str:
    """What is wrong; obstore adds the structure of the error in the lines after it."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def connect(scheme: str, address: str) -> Any:
    """The store of ``obstore`` at an address, which is a bucket and a directory. It reads the environment."""
    from obstore.store import AzureStore, GCSStore, S3Store

    bucket, _, prefix = address.partition("/")
    if scheme == "s3":
        return S3Store(bucket, prefix=prefix or None)
    if scheme == "gs":
        return GCSStore(bucket, prefix=prefix or None)
    container, _, host = bucket.partition("@")
    account, _, service = host.partition(".")
    if host and service not in _AZURE_SERVICES:
        # With the name of the account alone, the client would send its key to the public cloud.
        raise ValueError(f"{host} is not ACCOUNT.dfs.core.windows.net: elsewhere use az:// with AZURE_STORAGE_ENDPOINT")
    # Without a host, AZURE_STORAGE_ACCOUNT_NAME names the account.
    named: Any = {"account_name": account} if host else {}
    return AzureStore(container, prefix=prefix or None, **named)
