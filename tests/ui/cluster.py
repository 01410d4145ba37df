"""An API server with one TrainingJob, and tests of the pages of `pawl ui --cluster` against it; see `run`."""
import json
import queue
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import jobs
from playwright.sync_api import expect

LIST = "/apis/pawl.dev/v1alpha1/namespaces/team/trainingjobs"
TOKEN = "good"


class Api:
    """A server of the namespace `team` with the job `toy`."""

    def __init__(self):
        phase = {"name": "graph", "state": "Measuring", "speedup": {"estimate": "1.31", "pairs": 2}}
        self.job = jobs.manifest("toy") | {
            "metadata": {"name": "toy", "namespace": "team", "uid": "u-1", "resourceVersion": "1", "generation": 1},
            "status": {"stage": "Optimizing", "observedGeneration": 1, "progress": "phase 1/2", "phases": [phase]},
        }
        # Why a change is refused.
        self.refusal: str | None = None
        # Whether it asks for the token.
        self.asks = False
        self.watches: list[queue.Queue] = []
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def change(self, change: Callable[[dict], None]) -> None:
        with self.lock:
            change(self.job)
            self.job["metadata"]["resourceVersion"] = str(int(self.job["metadata"]["resourceVersion"]) + 1)
            event = json.dumps({"type": "MODIFIED", "object": self.job})
            for watch in self.watches:
                watch.put(event)

    def patch(self, patch: dict | list) -> None:
        if isinstance(patch, dict):
            self.change(lambda job: job["spec"].update(patch["spec"]))
            return
        for operation in patch:
            *parents, field = operation["path"].split("/")[1:]
            parent = self.job
            for key in parents:
                parent = parent[int(key) if isinstance(parent, list) else key]
            if operation["op"] == "test":
                assert parent[field] == operation["value"], f"{operation} is not true of {parent}"
            else:
                self.change(lambda _, parent=parent, field=field: parent.update({field: operation["value"]}))

    def handler(api) -> type[BaseHTTPRequestHandler]:  # noqa: N805: `self` is the handler
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def answer(self, code: int, document: dict) -> None:
                body = json.dumps(document).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def fail(self, code: int, reason: str, message: str) -> None:
                self.answer(code, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                                   "code": code, "reason": reason, "message": message})

            def known(self) -> bool:
                if api.asks and self.headers["Authorization"] != f"Bearer {TOKEN}":
                    self.fail(401, "Unauthorized", "Unauthorized")
                    return False
                return True

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                if not self.known():
                    return
                if url.path == f"{LIST}/toy":
                    self.answer(200, api.job)
                elif parse_qs(url.query).get("watch") == ["true"]:
                    self.stream()
                else:
                    items = [api.job] if url.path == LIST else []
                    version = api.job["metadata"]["resourceVersion"]
                    self.answer(200, {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": items})

            def stream(self) -> None:
                events: queue.Queue = queue.Queue()
                with api.lock:
                    api.watches.append(events)
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                try:
                    while True:
                        self.wfile.write(events.get().encode() + b"\n")
                        self.wfile.flush()
                except OSError:
                    pass  # the program has ended

            def do_PATCH(self) -> None:
                patch = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if not self.known():
                    return
                if api.refusal:
                    self.fail(403, "Forbidden", api.refusal)
                    return
                api.patch(patch)
                self.answer(200, api.job)

        return Handler


@contextmanager
def served(scene, api: Api, *arguments: str) -> Iterator:
    """The scene with `pawl ui` of that cluster instead of its own server."""
    folder = scene.folder / "cluster"
    folder.mkdir(exist_ok=True)
    kubeconfig: Path = folder / "kubeconfig"
    cluster = {"server": f"http://127.0.0.1:{api.server.server_port}"}
    kubeconfig.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}], "users": [{"name": "test", "user": {}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "team"}}],
    }))
    command = [jobs.PAWL, "ui", "--cluster", "--kubeconfig", kubeconfig, "--listen", "127.0.0.1:0", *arguments]
    program = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    own = scene.address
    try:
        scene.address = program.stdout.readline().strip().removeprefix("listening on ")
        yield scene
    finally:
        scene.address = own
        program.terminate()
        program.wait()
        api.server.shutdown()


def refused(scene) -> None:
    """Forgets that the browser reports answers with a refusal as errors of the page."""
    scene.errors[:] = [error for error in scene.errors if "status of 401" not in error and "status of 403" not in error]


def acted(scene) -> None:
    """A job is suspended and pinned by dialogs that ask again; what the API server refuses is shown."""
    api = Api()
    with served(scene, api, "--allow-actions"):
        page = scene.open("/jobs/toy")
        dialog = page.get_by_role("dialog")
        page.get_by_role("button", name="Suspend…").click()
        expect(dialog).to_contain_text("Suspend toy?")
        # A change of the job leaves the dialog as it is.
        api.change(lambda job: job["status"].update(progress="phase 2/2"))
        page.wait_for_timeout(1500)
        expect(dialog).to_be_visible()
        dialog.get_by_role("button", name="Cancel").click()
        expect(dialog).to_be_hidden()
        expect(page.locator(".now")).to_contain_text("phase 2/2")
        assert "suspend" not in api.job["spec"], "it was cancelled"

        page.get_by_role("button", name="Suspend…").click()
        dialog.get_by_role("button", name="Suspend", exact=True).click()
        expect(page.get_by_role("button", name="Resume…")).to_be_visible()
        assert api.job["spec"]["suspend"] is True

        page.get_by_role("button", name="Pin…").click()
        dialog.locator("select[name=phase]").select_option("slow")
        dialog.locator("select[name=to]").select_option("DryRun")
        dialog.get_by_role("button", name="Pin", exact=True).click()
        expect(page.get_by_role("button", name="Pin…")).to_be_visible()
        assert api.job["spec"]["phases"][1]["pin"] == "DryRun", api.job["spec"]

        api.refusal = "jane cannot patch trainingjobs"
        page.get_by_role("button", name="Resume…").click()
        dialog.get_by_role("button", name="Resume", exact=True).click()
        expect(page.locator("main")).to_contain_text("jane cannot patch trainingjobs")
        refused(scene)


def logged_in(scene) -> None:
    """Only who has a token sees the jobs, until they log out."""
    api = Api()
    api.asks = True
    with served(scene, api, "--login", "--namespace", "team"):
        page = scene.open("/")
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("does not accept this token")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("link", name="toy", exact=True)).to_be_visible()
        assert page.evaluate("document.cookie") == "", "no script reads the session"
        page.get_by_role("link", name="Log out").click()
        page.get_by_role("button", name="Log out").click()
        page.goto(f"{scene.address}/jobs/toy")
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        refused(scene)


TESTS = [acted, logged_in]
