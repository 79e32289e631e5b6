"""The front of a SuperLink: what passes, what does not, and what is not even read."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import socket
import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'gossamer[flower]'")

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.control_pb2 import ListNodesResponse
from flwr.proto.fab_pb2 import Fab, GetFabResponse
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from gossamer.cli.flower_processes import free_port
from gossamer.flower import certs, front
from gossamer.flower.commands import Link
from gossamer.flower.front import CALLS, Front, facing, public_keys, signed
from gossamer.flower.signing import Signature

APP = b"an app"


class SuperLink(BaseHTTPRequestHandler):
    """Answers as a SuperLink would, and notes what it was asked."""

    asked: ClassVar[list[tuple[str, bytes]]] = []
    refuses: ClassVar[list[str]] = []
    key = b""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.asked.append((self.path, body))
        answer = b"answer"
        if self.path == "/v1/fleet/get-fab":
            answer = GetFabResponse(fab=Fab(content=APP)).SerializeToString()
        if self.path == "/v1/control/list-nodes":
            nodes = [
                NodeInfo(node_id=3, public_key=b"other"),
                NodeInfo(node_id=5, public_key=self.key),
            ]
            answer = ListNodesResponse(nodes_info=nodes).SerializeToString()
        refused = self.path in self.refuses and not self.refuses.remove(self.path)
        self.send_response(409 if refused else 200)
        self.send_header("content-length", str(len(answer)))
        self.send_header("content-type", "application/protobuf")
        self.end_headers()
        self.wfile.write(answer)

    def do_GET(self) -> None:
        self.asked.append((self.path, b""))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *words: Any) -> None:
        """Says nothing."""


class Place:
    """A front before a SuperLink, with a key of a node and one of a stranger."""

    def __init__(self, folder: Path) -> None:
        certs.make(folder / "own", [], 1)
        certs.make(folder / "strange", [], 1)
        self.folder = folder
        self.url = ""
        SuperLink.asked, SuperLink.refuses = [], []
        SuperLink.key = next(iter(public_keys(folder / "own")))

    def headers(self, whose: str = "own", age: float = 0.0) -> dict[str, str]:
        key: Any = load_ssh_private_key((self.folder / whose / "node-0").read_bytes(), None)
        then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)
        stamp = then.isoformat()
        public = public_key_to_bytes(key.public_key())
        return {
            "flwr-public-key": base64.b64encode(public).decode(),
            "flwr-signature": base64.b64encode(sign_message(key, stamp.encode())).decode(),
            "flwr-timestamp": stamp,
        }

    def post(self, path: str, body: bytes = b"", **more: Any) -> httpx.Response:
        headers = self.headers() if "headers" not in more else more["headers"]
        return httpx.post(f"{self.url}{path}", content=body, headers=headers, trust_env=False)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), SuperLink) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        link = Link("127.0.0.1", free_port(), None, server.server_port)
        found.url = f"http://{link.address}"
        proof = Signature(hashlib.sha256(APP).hexdigest(), "operator-1", 7, "proof")
        with facing(Front(link, public_keys(tmp_path / "own"), [proof]), link):
            yield found
        server.shutdown()
        thread.join()


def test_of_all_that_flower_serves_only_fleet_and_health_are_forwarded(place: Place) -> None:
    from flwr.superlink.routers.control import router as control
    from flwr.superlink.routers.fleet.router import router as fleet

    served = [str(route.path) for router in (control, fleet) for route in router.routes]
    served += ["/openapi.json", "/docs", "/v1/runtime/acquire-task", "/", "/v1/fleet/"]
    assert len([path for path in served if path.startswith("/v1/control/")]) > 30
    answers = {path: place.post(path, b"x").status_code for path in served}
    answers["/health"] = httpx.get(f"{place.url}/health", trust_env=False).status_code
    passed = {path for path, code in answers.items() if code == 200}
    assert passed == {*(f"/v1/fleet/{name}" for name in CALLS), "/health"}
    assert {path for path, _ in SuperLink.asked} == passed
    assert {code for path, code in answers.items() if path not in passed} <= {404, 405}
    own = {f"/v1/fleet/{name}" for name in ("register-node", "unregister-node")}
    assert {str(route.path) for route in fleet.routes} - passed == own


SPELLINGS = [
    "/v1/fleet/../control/start-run",
    "/v1/fleet/..%2fcontrol%2fstart-run",
    "/v1/fleet/%2e%2e/control/start-run",
    "/v1/fleet//control/start-run",
    "//v1/control/start-run",
    "/V1/control/start-run",
    "/health/../v1/control/start-run",
    "/v1/fleet/get-run/../../control/start-run",
    "/v1/fleet/get-run%00",
    "http://127.0.0.1/v1/control/start-run",
]


def test_no_spelling_of_a_path_leads_around_the_front(place: Place) -> None:
    """Written to the socket as they are: a client would tidy them."""
    headers = "".join(f"{name}: {value}\r\n" for name, value in place.headers().items())
    hidden = "0\r\n\r\nPOST /v1/control/start-run HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"
    host, port = place.url.removeprefix("http://").split(":")
    for path in SPELLINGS:
        for more, body in (("", ""), ("transfer-encoding: chunked\r\n", hidden)):
            length = f"content-length: {len(body)}\r\n"
            head = f"POST {path} HTTP/1.1\r\nhost: a\r\n{headers}{more}{length}\r\n"
            with socket.create_connection((host, int(port)), timeout=5) as stream:
                stream.sendall((head + body).encode())
                first = stream.recv(65536).split(b"\r\n")[0]
            assert first.split()[1] in (b"400", b"404", b"405"), path
    assert not SuperLink.asked


def test_who_has_no_registered_key_is_refused_before_the_body_is_read(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/v1/fleet/pull-messages"
    bad: list[dict[str, str]] = [
        {},
        place.headers("strange"),
        place.headers(age=400),
        place.headers(age=-60),
        place.headers() | {"flwr-timestamp": "2026-01-01T00:00:00+00:00"},
        place.headers() | {"flwr-timestamp": "2026-01-01"},
        place.headers() | {"flwr-signature": "AAAA"},
        place.headers("strange") | {"flwr-public-key": place.headers()["flwr-public-key"]},
        place.headers() | {"flwr-public-key": "no base64!"},
    ]
    for headers in bad:
        assert place.post(path, b"x", headers=headers).status_code == 401
        assert not signed(headers, public_keys(place.folder / "own"))
    host, port = place.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as stream:
        stream.sendall(
            f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {1 << 40}\r\n\r\n".encode()
        )
        assert stream.recv(1000).startswith(b"HTTP/1.1 401")
    assert not SuperLink.asked
    monkeypatch.setattr(front, "LONGEST", 10)
    assert place.post(path, b"x" * 11).status_code == 413
    assert not SuperLink.asked and place.post(path, b"x" * 10).content == b"answer"


def test_an_app_is_handed_out_with_the_signature_for_its_bytes(place: Place) -> None:
    given = GetFabResponse.FromString(place.post("/v1/fleet/get-fab").content).fab
    assert given.content == APP and given.verifications["valid_license"] == "Valid"
    assert json.loads(given.verifications["operator-1"]) == {"signed_at": 7, "signature": "proof"}
    assert (
        front.Front(Link("", 0, None, 1), None)._vouched(
            GetFabResponse(fab=Fab(content=APP)).SerializeToString()
        )
        == GetFabResponse(fab=Fab(content=APP)).SerializeToString()
    )


def test_a_node_that_returns_is_activated_although_it_counts_as_online(place: Place) -> None:
    SuperLink.refuses = ["/v1/fleet/activate-node"]
    body = ActivateNodeRequest(public_key=SuperLink.key).SerializeToString()
    assert place.post("/v1/fleet/activate-node", body).status_code == 200
    assert [path for path, _ in SuperLink.asked] == [
        "/v1/fleet/activate-node",
        "/v1/control/list-nodes",
        "/v1/fleet/deactivate-node",
        "/v1/fleet/activate-node",
    ]
    assert DeactivateNodeRequest.FromString(SuperLink.asked[2][1]).node_id == 5
    SuperLink.refuses = ["/v1/fleet/activate-node"] * 2
    assert place.post("/v1/fleet/activate-node", body).status_code == 409


def test_without_keys_nodes_announce_themselves_and_nothing_else_is_open(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), SuperLink) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        link = Link("127.0.0.1", free_port(), None, server.server_port)
        with facing(Front(link, None), link), httpx.Client(trust_env=False) as client:
            codes = {
                path: client.post(f"http://{link.address}{path}").status_code
                for path in ("/v1/fleet/register-node", "/v1/control/start-run", "/v1/runtime/x")
            }
        server.shutdown()
        thread.join()
    assert list(codes.values()) == [200, 404, 404]


def test_the_front_speaks_tls_and_says_when_its_superlink_is_gone(tmp_path: Path) -> None:
    certs.make(tmp_path, ["127.0.0.1"], 1)
    link = Link("127.0.0.1", free_port(), tmp_path, free_port())
    known = ssl.create_default_context(cafile=tmp_path / certs.CA)
    with facing(Front(link, public_keys(tmp_path)), link):
        with httpx.Client(verify=known, trust_env=False) as client:
            assert client.get(f"https://{link.address}/health").status_code == 503
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(f"http://{link.address}/health", trust_env=False)
        with pytest.raises(OSError, match="in use"), facing(Front(link, None), link):
            pass
