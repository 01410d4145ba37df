"""What 'pawl export --push' uploads by the program of Hugging Face, to a server that keeps it as a hub does."""

import base64
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import Job, environment

TOKEN = "t17"


class Hub(ThreadingHTTPServer):
    """A hub with one model, for one token. Content of weights is uploaded before the commit that names it by its hash."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.created: dict[str, Any] = {}
        self.uploaded: dict[str, bytes] = {}
        self.files: dict[str, bytes] = {}

    def answer(self, path: str, body: bytes) -> dict[str, Any]:
        """The answer to a request of the program."""
        if path == "/api/repos/create":
            self.created = json.loads(body)
            return {"url": f"{self.address}/team/toy", "name": "team/toy", "id": "1"}
        if path == "/api/models/team/toy/preupload/main":
            asked = [file["path"] for file in json.loads(body)["files"]]
            modes = {name: "lfs" if name.endswith(".safetensors") else "regular" for name in asked}
            return {"files": [{"path": name, "uploadMode": mode, "shouldIgnore": False} for name, mode in modes.items()]}
        if path == "/team/toy.git/info/lfs/objects/batch":
            place = f"{self.address}/content/"
            objects = json.loads(body)["objects"]
            return {
                "transfer": "basic",
                "objects": [{**one, "actions": {"upload": {"href": place + one["oid"]}}} for one in objects],
            }
        assert path == "/api/models/team/toy/commit/main", path
        for line in body.splitlines():
            change = json.loads(line)
            value = change["value"]
            if change["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            elif change["key"] == "lfsFile":
                self.files[value["path"]] = self.uploaded[value["oid"]]
        return {"commitUrl": f"{self.address}/team/toy/commit/1", "commitOid": "1", "success": True}


class Request(BaseHTTPRequestHandler):
    """A request for a hub."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def respond(self, status: int, answer: dict[str, Any]) -> None:
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_POST(self) -> None:
        body = self.body()
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self.respond(401, {"error": "Invalid username or password."})
        self.respond(200, self.server.answer(self.path.partition("?")[0], body))

    def do_PUT(self) -> None:
        self.server.uploaded[self.path.removeprefix("/content/")] = self.body()
        self.respond(200, {})

    def do_GET(self) -> None:
        self.respond(404, {"error": "not found"})

    do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:
        """Is quiet."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever)
    thread.start()
    yield hub
    hub.shutdown()
    thread.join()
    hub.server_close()


def push(job: Job, hub: Hub, to: str, token: str) -> subprocess.CompletedProcess[str]:
    command = [os.environ["PAWL"], "export", "job.yaml", "--to", to, "--checkpoint", "last", "--push", "team/toy", "--private"]
    # The server has no Xet, the storage of files by their blocks.
    variables = environment(HF_ENDPOINT=hub.address, HF_TOKEN=token, HF_HUB_DISABLE_XET="1", HF_HOME=str(job.directory / "home"))
    return subprocess.run(command, cwd=job.directory, env=variables, capture_output=True, text=True, timeout=300)


def content(directory: Path) -> dict[str, bytes]:
    files = [path for path in directory.rglob("*") if path.is_file() and ".cache" not in path.parts]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_a_model_is_uploaded_as_it_was_exported(job: Job, hub: Hub) -> None:
    spec = {
        "workload": {"name": "ups", "config": {"preset": "smoke"}},
        "settings": {"batchPerGpu": 2},
        "train": {"items": 24, "checkpoint": {"every": "1h", "keep": 2}},
    }
    job.write([], spec)
    code, _ = job.run()
    assert code == 0

    pushed = push(job, hub, "model", TOKEN)
    assert (pushed.returncode, pushed.stdout) == (0, "model\n"), pushed.stderr
    assert "hf upload team/toy model --private\n" in pushed.stderr
    exported = content(job.directory / "model")
    assert {"model.safetensors", "config.json"} <= exported.keys()
    assert hub.files == exported
    assert hub.created["name"] == "toy" and hub.created["organization"] == "team"
    assert hub.created.get("visibility") == "private" or hub.created.get("private"), hub.created

    refused = push(job, hub, "again", "of-nobody")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "the model is in again" in refused.stderr, refused.stderr
    assert (job.directory / "again/model.safetensors").read_bytes() == exported["model.safetensors"]
