"""A server of W&B, as far as ``wandb sync`` needs one."""

import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class WandbServer(ThreadingHTTPServer):
    """Keeps the group, the history, the summary and the exit code of each run by its identifier."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.groups: dict[str, str] = {}
        self.history: dict[str, list[dict[str, Any]]] = {}
        self.summaries: dict[str, dict[str, Any]] = {}
        self.exits: dict[str, int] = {}

    def __enter__(self) -> "WandbServer":
        threading.Thread(target=self.serve_forever).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.shutdown()
        self.server_close()

    def query(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """The answer to a query of GraphQL."""
        if "upsertBucket" in query:
            # Later ones of the same run change its settings only.
            self.groups.setdefault(variables["name"], variables["groupName"])
            project = {"name": variables["project"], "entity": {"name": variables["entity"]}}
            bucket = {"id": "1", "name": variables["name"], "displayName": "", "config": "{}", "project": project}
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if "createRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.address}/content/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": files}}
        return {"serverInfo": {"features": []}}

    def stream(self, run: str, sent: dict[str, Any]) -> None:
        """Keeps a part of a run."""
        files = sent.get("files", {})
        for line in files.get("wandb-history.jsonl", {}).get("content", []):
            self.history.setdefault(run, []).append(json.loads(line))
        for line in files.get("wandb-summary.json", {}).get("content", []):
            self.summaries[run] = json.loads(line)
        if sent.get("complete"):
            self.exits[run] = sent["exitcode"]


class Request(BaseHTTPRequestHandler):
    """A request of ``wandb sync``."""

    server: WandbServer

    def respond(self, status: int, answer: dict[str, Any]) -> None:
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path == "/graphql":
            asked = json.loads(body)
            self.respond(200, {"data": self.server.query(asked["query"], asked.get("variables") or {})})
        elif self.path.endswith("/file_stream"):
            self.server.stream(self.path.split("/")[-2], json.loads(body))
            self.respond(200, {})
        else:
            # Its own telemetry.
            self.respond(404, {})

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.respond(200, {})

    def log_message(self, *_: Any) -> None:
        """Is quiet."""
