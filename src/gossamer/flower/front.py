"""The public side of a SuperLink: what nodes need of it, and nothing else.

A SuperLink serves its Control, Fleet and Runtime interfaces on one port, and asks for a key on the
Fleet interface only: whoever reaches that port can run code on the server and on every node. So the
SuperLink listens on 127.0.0.1, and others reach this front. It knows the calls of the Fleet
interface and `/health`, refuses a request that no registered key has signed before it reads its
body, and forwards the rest. Paths are looked up, never passed on.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import json
import socket
import ssl
import threading
from base64 import b64decode
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import uvicorn
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.proto.control_pb2 import ListNodesRequest, ListNodesResponse
from flwr.proto.fab_pb2 import GetFabResponse
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import (
    bytes_to_public_key,
    public_key_to_bytes,
    verify_signature,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gossamer.flower import certs
from gossamer.flower.commands import Link
from gossamer.flower.signing import Signature

CALLS = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "push-object",
    "pull-object",
    "confirm-message-received",
)
"""The calls of a node whose key the operator registered."""
OPEN = ("register-node", "unregister-node")
"""The calls by which a node without a key announces itself (`--insecure`)."""
LONGEST = 1 << 30
"""Bytes of a request's body; a longer one is refused."""
PATIENCE = 60.0
"""Seconds within which the SuperLink must answer."""
PROTOBUF = "application/protobuf"


class Front:
    """Forwards the calls of nodes to a SuperLink on this machine."""

    def __init__(
        self,
        link: Link,
        keys: Collection[bytes] | None,
        signatures: Collection[Signature] = (),
    ) -> None:
        """Prepares a front.

        Args:
            link: Where it listens, and where its SuperLink does.
            keys: Public keys of nodes, as PEM; None: anybody is a node.
            signatures: Of the apps that nodes may run, by the operator.
        """
        self._keys = keys
        self._calls = {name: f"/v1/fleet/{name}" for name in (*CALLS, *(OPEN if not keys else ()))}
        self._signatures = {each.app: each for each in signatures}
        scheme, verify = "http", None
        if link.certificates is not None:
            scheme, verify = (
                "https",
                ssl.create_default_context(cafile=link.certificates / certs.CA),
            )
        self._client = httpx.AsyncClient(
            base_url=f"{scheme}://127.0.0.1:{link.inner}",
            verify=verify or False,
            timeout=PATIENCE,
            trust_env=False,
            limits=httpx.Limits(max_connections=None, keepalive_expiry=2.0),
        )
        self.app = Starlette(
            routes=[
                Route("/health", self._health, methods=["GET"]),
                Route("/v1/fleet/{call}", self._fleet, methods=["POST"]),
            ],
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        async with self._client:
            yield

    async def _health(self, request: Request) -> Response:
        return _passed(await self._send("GET", "/health"))

    async def _fleet(self, request: Request) -> Response:
        path = self._calls.get(request.path_params["call"])
        if path is None:
            return Response(status_code=404)
        if self._keys is not None and not signed(request.headers, self._keys):
            return Response("the request is not signed by a registered key", status_code=401)
        body = await _body(request)
        if body is None:
            return Response(status_code=413)
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.startswith("flwr-") or name in ("content-type", "accept")
        }
        answer = await self._send("POST", path, body, headers)
        if path == self._calls["activate-node"] and answer.is_error and self._keys is not None:
            await self._release(headers)
            answer = await self._send("POST", path, body, headers)
        if path == self._calls["get-fab"] and answer.is_success:
            return Response(self._vouched(answer.content), media_type=PROTOBUF)
        return _passed(answer)

    async def _send(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = {}
    ) -> httpx.Response:
        try:
            return await self._client.request(method, path, content=body, headers=dict(headers))
        except httpx.TransportError as problem:
            return httpx.Response(503, text=f"the SuperLink does not answer: {problem!r}")

    async def _release(self, headers: Mapping[str, str]) -> None:
        """Ends the activation of a node whose process is gone, with the key of its successor.

        The SuperLink considers a node online for a minute after its last heartbeat, and refuses to
        activate it again meanwhile. A node signs the time, so its signature holds here too.
        """
        kind = {"content-type": PROTOBUF, "accept": PROTOBUF}
        path = "/v1/control/list-nodes"
        answer = await self._send("POST", path, ListNodesRequest().SerializeToString(), kind)
        if answer.is_error:
            return
        key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER])
        for node in ListNodesResponse.FromString(answer.content).nodes_info:
            if node.public_key == key:
                request = DeactivateNodeRequest(node_id=node.node_id).SerializeToString()
                await self._send("POST", self._calls["deactivate-node"], request, headers)

    def _vouched(self, content: bytes) -> bytes:
        """An app with the operator's signature, if there is one for exactly these bytes."""
        answer = GetFabResponse.FromString(content)
        found = self._signatures.get(hashlib.sha256(answer.fab.content).hexdigest())
        if found is not None:
            proof = {"signed_at": found.signed_at, "signature": found.signature}
            answer.fab.verifications[found.key] = json.dumps(proof)
            answer.fab.verifications["valid_license"] = "Valid"
        return bytes(answer.SerializeToString())


def signed(headers: Mapping[str, str], keys: Collection[bytes]) -> bool:
    """Whether one of the keys has just signed the time, as SuperNodes do for every request."""
    try:
        key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
        signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
        stamp = headers[TIMESTAMP_HEADER]
        now = datetime.datetime.now(datetime.UTC)
        age = (now - datetime.datetime.fromisoformat(stamp)).total_seconds()
        fresh = -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
        if key not in keys or not fresh:
            return False
        return bool(verify_signature(bytes_to_public_key(key), stamp.encode("ascii"), signature))
    except (KeyError, ValueError, TypeError):
        return False


def public_keys(folder: Path) -> frozenset[bytes]:
    """The keys of all nodes in a folder of certificates, as SuperNodes spell them.

    Raises:
        ValueError: A file is not the public key of a node.
    """
    found = set()
    for path in folder.glob("node-*.pub"):
        key = load_ssh_public_key(path.read_bytes())
        if not isinstance(key, EllipticCurvePublicKey):
            raise ValueError(f"{path} is not the public key of a node")
        found.add(public_key_to_bytes(key))
    return frozenset(found)


@contextmanager
def facing(front: Front, link: Link) -> Iterator[None]:
    """The front listens, in a thread of this process, so it ends with it in any case.

    Raises:
        OSError: It could not listen at its address.
    """
    folder = link.certificates
    config = uvicorn.Config(
        front.app,
        log_config=None,
        access_log=False,
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=2,
        ssl_certfile=folder and folder / certs.SERVER,
        ssl_keyfile=folder and folder / certs.SERVER_KEY,
    )
    server = uvicorn.Server(config)
    family = socket.AF_INET6 if ":" in link.host else socket.AF_INET
    with socket.create_server((link.host, link.port), family=family) as listening:
        work = _listen(server, listening)
        thread = threading.Thread(target=lambda: asyncio.run(work), daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.should_exit = True
            thread.join()


async def _listen(server: uvicorn.Server, listening: socket.socket) -> None:
    """Serves until it is told to stop, then drops the connections that nodes keep open."""
    await server.serve([listening])
    for connection in list(server.server_state.connections):
        connection.transport.abort()
    await asyncio.sleep(0.1)  # in which the transports close


def _passed(answer: httpx.Response) -> Response:
    """The SuperLink's answer, without headers that are about the connection."""
    headers = {name: value for name, value in answer.headers.items() if name.startswith("flwr-")}
    kind = answer.headers.get("content-type")
    return Response(answer.content, answer.status_code, headers, kind)


async def _body(request: Request) -> bytes | None:
    """The body, or None as soon as it is too long."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LONGEST:
            return None
    return bytes(body)
