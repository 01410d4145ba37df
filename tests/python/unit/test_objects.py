"""Checkpoints in an object storage: what a directory does not have. What both have is in ``test_checkpoints.py``."""

import errno
import hashlib
import json
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest
from conftest import Launch
from pawl_launch import CheckpointUnreadable, bucket
from pawl_launch.bucket import Bucket, BucketError
from pawl_launch.checkpoints import MANIFEST
from pawl_launch.gang import Gang
from pawl_launch.keeper import Keeper
from pawl_launch.objects import ObjectFence, ObjectStore
from pawl_launch.outcome import InvalidPlan, StorageFull, Superseded, Unsupported
from pawl_launch.storages import open_storage, probe_objects
from pawl_launch.plan import CheckpointPolicy, Plan, Rank
from pawl_launch.progress import Position, Reporter
from pawl_launch.throughput import Throughput

obstore = pytest.importorskip("obstore", reason="needs obstore")
PLAN = Plan("job", "job-1", "launch", "Train", {}, {}, 1)
KEEP_ONE = CheckpointPolicy.read({"everySeconds": 3600, "keep": 1, "resume": True})


class S3(BaseHTTPRequestHandler):
    """The part of the protocol of S3 that checkpoints need, with the objects in memory."""

    protocol_version = "HTTP/1.1"
    objects: dict[str, bytes]
    parts: dict[int, bytes]
    denied = False
    cut = 0
    """If not 0, the connection is closed after so many bytes of an answer."""

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def _answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        headers = {"Content-Length": str(len(content)), "ETag": '"1"', "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"} | headers
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.close_connection = 0 < self.cut < len(content)
            self.wfile.write(content[: self.cut] if self.close_connection else content)

    def _handle(self) -> None:
        address = urlsplit(self.path)
        key, query = unquote(address.path.removeprefix("/bucket").lstrip("/")), parse_qs(address.query, keep_blank_values=True)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.denied:
            self._answer(403, b"<Error><Code>AccessDenied</Code></Error>")
        elif self.command == "PUT" and "x-amz-copy-source" in self.headers:
            self.objects[key] = self.objects[unquote(self.headers["x-amz-copy-source"]).removeprefix("/").removeprefix("bucket/")]
            self._answer(200, b"<CopyObjectResult><ETag>1</ETag></CopyObjectResult>")
        elif self.command == "POST" and "uploads" in query:
            self._answer(200, b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>")
        elif self.command == "PUT" and "partNumber" in query:
            self.parts[int(query["partNumber"][0])] = body
            self._answer(200)
        elif self.command == "POST" and "uploadId" in query:
            self.objects[key] = b"".join(self.parts.pop(number) for number in sorted(self.parts))
            self._answer(200, b"<CompleteMultipartUploadResult><ETag>1</ETag></CompleteMultipartUploadResult>")
        elif self.command == "PUT":
            if self.headers.get("If-None-Match") == "*" and key in self.objects:
                return self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            self.objects[key] = body
            self._answer(200)
        elif self.command == "POST" and "delete" in query:
            deleted = [part.partition("</Key>")[0] for part in body.decode().split("<Key>")[1:]]
            for each in deleted:
                self.objects.pop(each, None)
            found = "".join(f"<Deleted><Key>{each}</Key></Deleted>" for each in deleted)
            self._answer(200, f"<DeleteResult>{found}</DeleteResult>".encode())
        elif self.command == "DELETE":
            self.objects.pop(key, None)
            self._answer(204)
        elif "list-type" in query:
            first = int(query.get("continuation-token", ["0"])[0])
            self._answer(200, self._listing(query["prefix"][0] if "prefix" in query else "", "delimiter" in query, first))
        elif key in self.objects and "Range" in self.headers:
            content = self.objects[key]
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            end = min(len(content), int(last) + 1 if last else len(content))
            self._answer(206, content[int(first) : end], **{"Content-Range": f"bytes {first}-{end - 1}/{len(content)}"})
        elif key in self.objects:
            self._answer(200, self.objects[key])
        else:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

    def _listing(self, prefix: str, folders: bool, first: int) -> bytes:
        """A page of two objects and folders."""
        keys = sorted(key for key in self.objects if key.startswith(prefix))
        inner = {prefix + key[len(prefix) :].partition("/")[0] + "/" for key in keys if folders and "/" in key[len(prefix) :]}
        objects = [key for key in keys if not folders or "/" not in key[len(prefix) :]]
        found = [
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key])}</Size><ETag>1</ETag>"
            "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
            for key in objects
        ]
        found += [f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in sorted(inner)]
        end = first + 2
        more = f"<NextContinuationToken>{end}</NextContinuationToken>" if end < len(found) else ""
        page, truncated = "".join(found[first:end]), "true" if more else "false"
        return f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{more}{page}</ListBucketResult>".encode()


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server, which the environment names as people name theirs."""
    handler = type("Handler", (S3,), {"objects": {}, "parts": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    yield handler
    server.shutdown()
    server.server_close()


SCRIPT = """
import pawl_launch
run = pawl_launch.init(batch_per_gpu=4)
size, resumed = run.batch_size, run.get_checkpoint()
print("resumed", resumed and (resumed / "deep/the state").read_text(), flush=True)
for batch in run.steps([[0] * size] * 10, evaluate=lambda: {"loss": 1.0}):
    run.step(items=size, loss=1.0)
    if run.should_checkpoint:
        with run.checkpoint() as directory:
            (directory / "deep").mkdir()
            (directory / "deep/the state").write_text(str(run.step_count))
"""


def test_a_script_trains_and_resumes_over_the_protocol_of_s3(launch: Launch, s3: Any, tmp_path: Path) -> None:
    def train(items: int, attempt: int) -> tuple[str, dict[str, Any]]:
        launch.train(items).plan["attempt"] = f"job-{attempt}"
        process = launch.start(SCRIPT, PAWL_CHECKPOINTS="s3://bucket/team/job", TMPDIR=str(tmp_path / "local"))
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, out + err
        return out, launch.report()

    (tmp_path / "local").mkdir()
    out, report = train(40, 1)
    name = report["lastCheckpoint"]["name"]
    assert out == "resumed None\n" and s3.objects[f"team/job/{name}/deep/the state"] == b"10"
    manifest = json.loads(s3.objects[f"team/job/{name}/{MANIFEST}"])
    assert manifest["files"]["deep/the state"] == 2 and len(manifest["hashes"]["deep/the state"]) == 64
    out, report = train(80, 2)
    assert (out, report["lastCheckpoint"]["items"]) == ("resumed 10\n", 80)
    assert [key for key in s3.objects if "/epochs/" in key] == ["team/job/epochs/2.1"]
    assert not list((tmp_path / "local").iterdir()), "nothing is left on the node"
    assert not [key for key in s3.objects if "uploads" in key]


def test_a_large_file_is_sent_in_parts(s3: Any, tmp_path: Path) -> None:
    content = bytes(range(256)) * (80 << 10)
    (tmp_path / "large").write_bytes(content)
    storage, beats = Bucket("s3://bucket/team", "f"), []
    sent = storage.upload({"large": tmp_path / "large"}, lambda: beats.append(storage.moved))
    assert s3.objects == {"team/large": content} and beats[-1] == len(content)
    received = storage.download({"large": tmp_path / "copy", "missing": tmp_path / "missing"}, lambda: beats.append(storage.moved))
    assert received == sent == {"large": hashlib.sha256(content).hexdigest()}
    assert (tmp_path / "copy").read_bytes() == content and beats[-1] == 2 * len(content), "it is progress"


def test_a_file_is_read_although_every_answer_is_cut_off(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of one request, the client tries no more than ten times to read the rest.
    monkeypatch.setattr(bucket, "_RANGE", 100)
    s3.objects["team/large"], s3.cut = bytes(range(256)) * 5, 60
    Bucket("s3://bucket/team", "f").download({"large": tmp_path / "copy"}, lambda: None)
    assert (tmp_path / "copy").read_bytes() == s3.objects["team/large"]


def test_a_store_that_refuses_says_which_object_and_what_to_do(s3: Any) -> None:
    probe_objects(Bucket("s3://bucket/team", "f"))
    assert not s3.objects
    s3.denied = True
    with pytest.raises(BucketError) as error:
        Bucket("s3://bucket/team", "f").write("epochs/1.1", b"")
    said = str(error.value)
    assert said.startswith("checkpoint storage s3://bucket/team: cannot write epochs/1.1: ") and "\n" not in said
    assert "AWS_ACCESS_KEY_ID" in said and "workload identity" in said
    with pytest.raises(CheckpointUnreadable, match="AWS_ACCESS_KEY_ID"):
        open_storage("s3://bucket/team", "train.checkpoint.storage", PLAN, Rank(), lambda: None).probe()


def test_a_store_without_conditional_writes_is_refused(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bucket, "create", lambda self, key, content=b"": self.write(key, content) is None)
    with pytest.raises(CheckpointUnreadable, match="If-None-Match"):
        probe_objects(Bucket("s3://bucket/team", "f"))
    assert not s3.objects


def test_an_address_that_cannot_work_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)

    def of(storage: str) -> None:
        open_storage(storage, "train.checkpoint.storage", PLAN, Rank(), lambda: None)

    with pytest.raises(Unsupported, match="train.checkpoint.storage: ftp://a: is not known: use pvc://, file://, s3://"):
        of("ftp://a")
    of("file:///a")
    with pytest.raises(InvalidPlan, match="train.checkpoint.storage: az://models/a: .*AZURE_STORAGE_ACCOUNT_NAME"):
        of("az://models/a")
    of("abfss://models@account.dfs.core.windows.net/a")
    with pytest.raises(InvalidPlan, match="train.checkpoint.storage: abfss://.*: account.dfs.core.chinacloudapi.cn is not .*ENDPOINT"):
        of("abfss://models@account.dfs.core.chinacloudapi.cn/a")


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(Unsupported, match=r"train.checkpoint.storage: s3://a: .*pip install 'pawl-launch\[objects\]'"):
        Bucket("s3://a", "train.checkpoint.storage")


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A storage in memory."""
    store = obstore.store.MemoryStore()
    monkeypatch.setattr(bucket, "connect", lambda *_: store)
    return Bucket("s3://bucket", "f")


def node(memory: Bucket, directory: Path, rank: int, fence: ObjectFence, nodes: int = 1) -> ObjectStore:
    """The store on a node with one rank."""
    directory.mkdir()
    return ObjectStore(memory, directory, Rank(rank=rank, world_size=nodes), lambda: None, fence)


def written(stores: list[ObjectStore], files: Callable[[int], dict[str, str]]) -> None:
    """A checkpoint of nodes, each of which writes its own files: to the directory of that name on each."""
    partials = [store.begin(10, "job-1") for store in stores]
    for rank, partial in enumerate(partials):
        for name, content in files(rank).items():
            (partial / name).write_text(content)
    # The other node first: rank 0 completes it.
    for store, partial in reversed(list(zip(stores, partials))):
        store.gather(partial, Gang(0, 1))
    stores[0].commit(partials[0], 1, 10, {})


def test_nodes_without_a_common_directory_write_and_read_one_checkpoint(memory: Bucket, tmp_path: Path) -> None:
    fence = ObjectFence(memory, "job-1")
    fence.supersede()
    stores = [node(memory, tmp_path / f"node-{rank}", rank, fence, 2) for rank in (0, 1)]
    written(stores, lambda rank: {f"shard-{rank}": f"weights of {rank}", "config": f"as {rank} writes it"})
    found = stores[0].newest()
    assert found is not None and sorted(found.hashes) == ["config", "shard-0", "shard-1"]
    for store in stores:
        path = store.named(found.path.name).path
        assert path.parent == store.directory
        assert {file.name: file.read_text() for file in path.iterdir() if file.name != MANIFEST} == {
            "shard-0": "weights of 0",
            "shard-1": "weights of 1",
            "config": "as 0 writes it",
        }


class Ranks(Gang):
    """Ranks that are threads."""

    def __init__(self, rank: int, barrier: threading.Barrier) -> None:
        super().__init__(rank, barrier.parties)
        self._barrier = barrier

    def barrier(self) -> None:
        self._barrier.wait(60)


@pytest.mark.parametrize("ranks_per_node", [1, 2])
def test_all_ranks_of_all_nodes_write_and_resume(
    memory: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks_per_node: int
) -> None:
    """A machine cannot have two nodes with directories of their own: here, all nodes have one."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def gang(attempt: int) -> list[tuple[str, list[str]]]:
        """What each rank has resumed, and the files of it."""
        plan = Plan("job", f"job-{attempt}", f"launch-{attempt}", "Train", {}, {}, 1, checkpoint=KEEP_ONE)
        barrier = threading.Barrier(2)

        copies: list[Path] = []

        def of(number: int) -> tuple[str, list[str]]:
            rank = Rank(number, number % ranks_per_node, 2, ranks_per_node, checkpoints="s3://bucket/job")
            reporter = Reporter(plan, rank, Throughput(0), Position())
            keeper = Keeper(plan, rank, Ranks(number, barrier), reporter)
            resumed = keeper.resumed
            files = sorted(path.name for path in resumed.path.iterdir()) if resumed else []
            reporter.position.step, reporter.position.items = attempt, 10 * attempt
            with keeper.write({}) as directory:
                (directory / f"shard-{number}").write_text(f"{attempt} {number}")
            copies.extend([resumed.path] if resumed else [])
            return resumed.path.name if resumed else "", files

        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(of, range(2)))
        assert not any(path.exists() for path in copies), "they are deleted when there is a newer checkpoint"
        return found

    assert gang(1) == [("", []), ("", [])]
    assert gang(2) == 2 * [("000000000000010-job-1", [MANIFEST, "shard-0", "shard-1"])]
    assert memory.sizes("000000000000020-job-2").keys() == {MANIFEST, "shard-0", "shard-1"}
    assert not memory.sizes("000000000000010-job-1"), "one is kept"


def test_a_file_of_two_other_nodes_that_differs_is_an_error(memory: Bucket, tmp_path: Path) -> None:
    stores = [node(memory, tmp_path / f"node-{rank}", rank, ObjectFence(memory, "job-1"), 3) for rank in (0, 1, 2)]
    with pytest.raises(InvalidPlan, match="checkpoint: notes differs between nodes"):
        written(stores, lambda rank: {"notes": str(rank)} if rank else {"state": ""})
    assert stores[0].newest() is None


def test_an_upload_that_was_cut_off_is_ignored_and_deleted(memory: Bucket, tmp_path: Path) -> None:
    fences = [ObjectFence(memory, f"job-{attempt}") for attempt in (1, 2)]
    fences[0].supersede()
    old = node(memory, tmp_path / "old", 0, fences[0])
    partial = old.begin(10, "job-1")
    (partial / "state").write_text("x")
    old.gather(partial, Gang(0, 1))
    fences[1].supersede()
    with pytest.raises(Superseded):
        old.commit(partial, 1, 10, {})
    new = node(memory, tmp_path / "new", 0, fences[1])
    assert new.newest() is None and memory.sizes("000000000000010-job-1") == {"state": 1}
    others = {"2024-01-15/notes", "00000007-step-70-by-1.0/manifest.json", "000000000000010-job-1.damaged/state", "old-1/state"}
    for other in (*others, ".pawl/uploads/000000000000010-job-1/1", ".pawl/uploads/000000000000010-job-3/1"):
        memory.write(other, b"x")
    new.prune(KEEP_ONE, None, "job-2")
    assert not memory.sizes("000000000000010-job-1") and memory.names(".pawl/uploads") == ["000000000000010-job-3"]
    assert all(memory.read(other) for other in others), "they are not of this package"


def test_training_goes_on_when_nothing_can_be_deleted(memory: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = node(memory, tmp_path / "node", 0, ObjectFence(memory, "job-1"))
    written([store], lambda _: {"state": "x"})
    memory.write("000000000000005-job-1.0/state", b"x")

    def refused(key: str) -> None:
        raise BucketError(f"cannot delete {key}")

    with monkeypatch.context() as patched:
        patched.setattr(memory, "delete", refused)
        store.prune(KEEP_ONE, None, "job-1")
    ObjectFence(memory, "job-2").supersede()
    with pytest.raises(Superseded):
        store.prune(KEEP_ONE, None, "job-1")
    assert memory.sizes("000000000000005-job-1.0")


def test_a_checkpoint_that_is_written_again_stays_complete_while_its_files_are_the_same(memory: Bucket, tmp_path: Path) -> None:
    store = node(memory, tmp_path / "node", 0, ObjectFence(memory, "job-1"))

    def again(content: str) -> Path:
        partial = store.begin(10, "job-1")
        (partial / "state").write_text(content)
        store.gather(partial, Gang(0, 1))
        return partial

    store.commit(again("x"), 1, 10, {"validation": 1})
    partial = again("x")
    assert [checkpoint.state for checkpoint in store.all()] == [{"validation": 1}]
    store.commit(partial, 1, 10, {"validation": 2})
    assert [checkpoint.state for checkpoint in store.all()] == [{"validation": 2}]
    partial = again("y")
    assert not store.all(), "a file was replaced"
    assert store.commit(partial, 1, 10, {}).hashes == {"state": hashlib.sha256(b"y").hexdigest()}


def test_a_node_whose_upload_is_not_listed_is_an_error(memory: Bucket, tmp_path: Path) -> None:
    store = node(memory, tmp_path / "node", 0, ObjectFence(memory, "job-1"), nodes=2)
    with pytest.raises(BucketError, match="names the uploads of 1 nodes, not of 2"):
        written([store], lambda _: {"state": "x"})
    assert not store.all()


def test_a_node_without_space_says_what_to_do(memory: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = node(memory, tmp_path / "node", 0, ObjectFence(memory, "job-1"))
    written([store], lambda _: {"state": "x"})

    def no_space(*_: Any) -> dict[str, str]:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(memory, "download", no_space)
    with pytest.raises(StorageFull, match="No space left on device: set TMPDIR"):
        store.newest()


def test_a_manifest_that_names_a_file_elsewhere_is_damaged(memory: Bucket, tmp_path: Path) -> None:
    store = node(memory, tmp_path / "node", 0, ObjectFence(memory, "job-1"))
    written([store], lambda _: {"state": "x"})
    manifest = json.loads(memory.read(f"000000000000010-job-1.0/{MANIFEST}") or b"")
    manifest["files"] = {"../../escaped": 1}
    del manifest["hashes"], manifest["sha256"]
    memory.write(f"000000000000010-job-1.0/{MANIFEST}", json.dumps(manifest).encode())
    assert store.newest() is None and [path.name for path in store.damaged()] == ["000000000000010-job-1.0"]
