"""The routes of the Hub that an upload and a download use, on loopback: repositories with commits, kept in memory."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

TOKEN = "hf_aTokenThatNobodyMaySee"


@dataclass
class Repository:
    private: bool
    branches: dict[str, str] = field(default_factory=dict)  # commit by branch
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)  # files by commit

    def commit(self, branch: str, files: dict[str, bytes]) -> str:
        names = "".join(f"{name} {hashlib.sha256(content).hexdigest()}\n" for name, content in sorted(files.items()))
        sha = hashlib.sha1(f"{len(self.commits)} {names}".encode()).hexdigest()
        self.commits[sha], self.branches[branch] = files, sha
        return sha


@dataclass
class Fault:
    """What a route answers in place of its own answer; `after`: how many requests are answered as usual before."""

    pattern: str  # of "METHOD /path"
    status: int  # 0: the connection is closed without an answer
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    times: int = 1_000
    after: int = 0


@dataclass
class FakeHub:
    user: str = "me"
    repositories: dict[str, Repository] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)  # LFS objects by sha256
    faults: list[Fault] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)  # "METHOD /path" of every request

    def __enter__(self) -> FakeHub:
        hub = self

        class Handler(Routes):
            pass

        Handler.hub = hub
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def files(self, repo: str, branch: str = "main") -> dict[str, bytes]:
        found = self.repositories[repo]
        return found.commits[found.branches[branch]]


class Routes(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def answer(self, status: int, values: Any = None, *, body: bytes | None = None, **headers: str) -> None:
        content = (json.dumps(values).encode() if body is None else body) if values is not None or body else b""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def missing(self, what: str) -> None:
        self.answer(404, {"error": what}, X_Error_Code=what)

    def handle_request(self) -> None:
        path = unquote(urlsplit(self.path).path)
        request = f"{self.command} {path}"
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length)
        self.hub.seen.append(request)
        for fault in self.hub.faults:
            if re.search(fault.pattern, request):
                if fault.after > 0:
                    fault.after -= 1
                elif fault.times > 0:
                    fault.times -= 1
                    if fault.status == 0:
                        self.close_connection = True
                        return
                    self.answer(fault.status, body=fault.body or b"{}", **fault.headers)
                    return
        if not path.startswith("/lfs/") and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            said = "Invalid username or password."
            self.answer(401, {"error": said}, X_Error_Message="Invalid credentials in Authorization header")
            return
        for pattern, route in ROUTES.items():
            found = re.fullmatch(pattern, request)
            if found is not None:
                route(self, *found.groups())
                return
        raise AssertionError(f"the Hub was asked for {request}")

    do_GET = do_HEAD = do_POST = do_PUT = handle_request

    # -- routes -----------------------------------------------------------------------------------------------------

    def repository(self, repo: str) -> Repository | None:
        found = self.hub.repositories.get(repo)
        if found is None:
            self.missing("RepoNotFound")
        return found

    def info(self, repo: str, revision: str = "main") -> None:
        found = self.repository(repo)
        if found is None:
            return
        sha = found.branches.get(revision, revision)
        if sha not in found.commits:
            self.missing("RevisionNotFound")
            return
        siblings = [{"rfilename": name} for name in found.commits[sha]]
        self.answer(200, {"id": repo, "sha": sha, "private": found.private, "siblings": siblings, "tags": []})

    def create(self) -> None:
        asked = json.loads(self.body)
        owner = asked["organization"] or self.hub.user
        repo = f"{owner}/{asked['name']}"
        if owner != self.hub.user:
            self.answer(403, {"error": f"You don't have the rights to create a model under the namespace {owner}"})
        elif repo in self.hub.repositories:
            self.answer(409, {"error": "You already created this model repo", "url": f"{self.hub.url}/{repo}"})
        else:
            made = self.hub.repositories[repo] = Repository(private=asked.get("visibility") == "private")
            made.commit("main", {".gitattributes": b"*.safetensors filter=lfs\n"})
            self.answer(200, {"url": f"{self.hub.url}/{repo}"})

    def validate(self) -> None:
        head = json.loads(self.body)["content"].split("---\n")[1]
        wrong = [] if isinstance(yaml.safe_load(head)["license"], str) else [{"message": '"license" must be a string'}]
        self.answer(400 if wrong else 200, {"errors": wrong, "warnings": []})

    def branch(self, repo: str, name: str) -> None:
        found = self.hub.repositories[repo]
        found.branches[name] = found.branches["main"]
        self.answer(200, {})

    def preupload(self, repo: str, revision: str) -> None:
        there = self.hub.files(repo, revision)
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith((".safetensors", ".gguf")) else "regular",
                "shouldIgnore": False,
                "oid": git_oid(there[file["path"]]) if file["path"] in there else None,
            }
            for file in json.loads(self.body)["files"]
        ]
        self.answer(200, {"files": files})

    def batch(self, repo: str) -> None:
        objects = []
        for each in json.loads(self.body)["objects"]:
            if each["oid"] not in self.hub.blobs:
                place = f"{self.hub.url}/lfs/{each['oid']}"
                each["actions"] = {"upload": {"href": place}, "verify": {"href": f"{place}/verify"}}
            objects.append(each)
        self.answer(200, {"transfer": "basic", "objects": objects})

    def put(self, oid: str) -> None:
        assert hashlib.sha256(self.body).hexdigest() == oid
        self.hub.blobs[oid] = self.body
        self.answer(200)

    def verify(self, oid: str) -> None:
        self.answer(200 if len(self.hub.blobs[oid]) == json.loads(self.body)["size"] else 400, {})

    def commit(self, repo: str, revision: str) -> None:
        found = self.hub.repositories[repo]
        header, *operations = [json.loads(line) for line in self.body.splitlines()]
        parent = header["value"].get("parentCommit")
        if parent is not None and parent != found.branches[revision]:
            self.answer(412, {"error": "A commit has happened since. Please refresh and try again."})
            return
        files = dict(self.hub.files(repo, revision))
        for operation in operations:
            value = operation["value"]
            match operation["key"]:
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.hub.blobs[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        sha = found.commit(revision, files)
        self.answer(200, {"commitUrl": f"{self.hub.url}/{repo}/commit/{sha}", "commitOid": sha})

    def tree(self, repo: str, sha: str) -> None:
        files = self.hub.repositories[repo].commits[sha].items()
        rows = [{"type": "file", "path": name, "size": len(data), "oid": git_oid(data)} for name, data in files]
        self.answer(200, rows)

    def resolve(self, repo: str, revision: str, name: str) -> None:
        found = self.hub.repositories[repo]
        sha = found.branches.get(revision, revision)
        if name not in found.commits[sha]:
            self.missing("EntryNotFound")
            return
        content = found.commits[sha][name]
        self.answer(200, body=content, ETag=f'"{git_oid(content)}"', X_Repo_Commit=sha)


def git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


REPO, REST = r"([\w.-]+/[\w.-]+)", r"(.+)"
ROUTES = {
    rf"GET /api/models/{REPO}": Routes.info,
    rf"GET /api/models/{REPO}/revision/{REST}": Routes.info,
    rf"GET /api/models/{REPO}/tree/(\w+)": Routes.tree,
    r"POST /api/repos/create": Routes.create,
    r"POST /api/validate-yaml": Routes.validate,
    rf"POST /api/models/{REPO}/branch/{REST}": Routes.branch,
    rf"POST /api/models/{REPO}/preupload/{REST}": Routes.preupload,
    rf"POST /{REPO}\.git/info/lfs/objects/batch": Routes.batch,
    r"PUT /lfs/(\w+)": Routes.put,
    r"POST /lfs/(\w+)/verify": Routes.verify,
    rf"POST /api/models/{REPO}/commit/{REST}": Routes.commit,
    rf"(?:GET|HEAD) /{REPO}/resolve/([\w.-]+)/{REST}": Routes.resolve,
}
