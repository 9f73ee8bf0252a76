"""A stand-in for the W&B server on the loopback interface: enough of its protocol to start, fill and resume runs."""

import gzip
import json
import re
import time
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, NamedTuple, Self

PROJECT = {"id": "cHJvamVjdA==", "name": "fedlab_runner", "entity": {"id": "ZW50aXR5", "name": "tester"}}


class Run:
    """What the server knows of one run: its history by step, its config, its summary and its exit code."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.config: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.group: str | None = None
        self.tags: list[str] = []
        self.commit: str | None = None
        self.files: set[str] = set()
        self.exit_code: int | None = None

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


class Trouble(NamedTuple):
    """How a server answers instead of doing what it is asked."""

    status: int
    message: str = "something is wrong"
    path: str = ""  # requests whose path contains it
    headers: tuple[tuple[str, str], ...] = ()


class WandbServer:
    """Context manager: listens on a free port of 127.0.0.1; `runs` is what arrived, `stop` is a server that dies.

    While `trouble` is set requests are refused; each is answered after `seconds`.
    """

    def __init__(self, port: int = 0) -> None:
        self.runs: dict[str, Run] = {}
        self.operations: list[str] = []
        self.views: list[dict[str, Any]] = []  # workspaces
        self.stopped = False
        self.trouble: Trouble | None = None
        self.refused = 0
        self.seconds = 0.0
        handler = type("Handler", (_Handler,), {"owner": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            self._http.shutdown()
            self._http.server_close()
            self._thread.join()

    def graphql(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        match = re.search(r"(?:query|mutation)\s+(\w+)", query)
        operation = match.group(1) if match else ""
        self.operations.append(operation)
        run = self.runs.get(variables.get("name") or "")
        if operation == "ServerFeaturesQuery":
            return {"serverInfo": {"features": []}}
        if operation == "Viewer":
            viewer = {"id": "dXNlcg==", "entity": "tester", "username": "tester", "email": "", "admin": False}
            return {"viewer": viewer | {"flags": "{}", "teams": {"edges": []}}}
        if operation == "GetDefaultEntity":
            return {"viewer": {"id": "dXNlcg==", "entity": "tester"}}
        if operation == "RunResumeStatus":
            return {"model": PROJECT | {"bucket": run and self._bucket(variables["name"], run) | self._tails(run)}}
        if operation == "UpsertBucket":
            inserted = run is None
            run = self.runs.setdefault(variables["name"], Run())
            run.group = variables.get("groupName") or run.group
            run.tags = variables.get("tags") or run.tags
            run.commit = variables.get("commit") or run.commit
            if variables.get("config"):
                run.config = json.loads(variables["config"])
            return {"upsertBucket": {"bucket": self._bucket(variables["name"], run), "inserted": inserted}}
        if operation == "UpsertView2":
            self.views.append(variables)
            return {"upsertView": {"view": {"id": "dmlldw==", "name": variables["name"]}, "inserted": True}}
        if operation == "CreateRunFiles":
            run = self.runs[variables["run"]]
            run.files.update(variables["files"])
            files = [{"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}
        return {}

    def stream(self, run_id: str, body: dict[str, Any]) -> None:
        run = self.runs[run_id]
        for name, part in body.get("files", {}).items():
            if name == "wandb-history.jsonl":
                run.lines[part["offset"] :] = part["content"]
            elif name == "wandb-summary.json":
                run.summary = json.loads(part["content"][-1])
        if body.get("complete"):
            run.exit_code = body.get("exitcode")

    @staticmethod
    def _bucket(name: str, run: Run) -> dict[str, Any]:
        return {
            "id": name,
            "name": name,
            "displayName": name,
            "description": None,
            "config": json.dumps(run.config),
            "sweepName": None,
            "project": PROJECT,
            "historyLineCount": len(run.lines),
        }

    @staticmethod
    def _tails(run: Run) -> dict[str, Any]:
        return {
            "summaryMetrics": json.dumps(run.summary),
            "logLineCount": 0,
            "eventsLineCount": 0,
            "historyTail": json.dumps(run.lines[-1:]),
            "eventsTail": "[]",
            "tags": run.tags,
            "notes": None,
            "wandbConfig": json.dumps({"t": 1}),
        }


class _Handler(BaseHTTPRequestHandler):
    """Routes requests to the `owner`, a WandbServer."""

    owner: WandbServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self._body()
        time.sleep(self.owner.seconds)
        trouble = self.owner.trouble
        if trouble is not None and trouble.path in self.path:
            self.owner.refused += 1
            self._answer({"errors": [{"message": trouble.message}]}, trouble.status, trouble.headers)
        elif self.path == "/graphql":
            request = json.loads(body)
            self._answer({"data": self.owner.graphql(request["query"], request.get("variables") or {})})
        elif match := re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", self.path):
            self.owner.stream(match.group(1), json.loads(body))
            self._answer({})
        else:
            self._answer({})

    def do_PUT(self) -> None:
        self._body()
        self._answer({})

    do_GET = do_PUT

    def log_message(self, format: str, *args: object) -> None:
        """Keeps the test's output clean."""

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _answer(self, value: dict[str, Any], status: int = 200, headers: Iterable[tuple[str, str]] = ()) -> None:
        data = json.dumps(value).encode()
        # One request a connection: a stopped server leaves no connection that would still be answered.
        self.send_response(status)
        for name, text in headers:
            self.send_header(name, text)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)
