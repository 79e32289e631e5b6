"""Downloads from a server on this machine that can break off, lie and refuse."""

from __future__ import annotations

import hashlib
import io
import socket
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from gossamer.data import SOURCES, DownloadError, get
from gossamer.data.download import bar, fetch, unpack
from gossamer.data.sources import Remote, Source

CONTENT = bytes(range(256)) * 4000


@dataclass
class Server:
    """Serves `content`; the first `breaks` answers stop half-way."""

    content: bytes = CONTENT
    breaks: int = 0
    ranges: bool = True
    status: int = 200
    url: str = ""
    asked: list[str | None] = field(default_factory=list)


def handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers["Range"]
            server.asked.append(wanted)
            if server.status != 200:
                self.send_error(server.status)
                return
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
            start = start if server.ranges else 0
            if start and start >= len(server.content):
                self.send_error(416)
                return
            body = server.content[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if server.breaks > 0:
                server.breaks -= 1
                body = body[: len(body) // 2]
            self.wfile.write(body)
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(state)) as http:
        state.url = f"http://127.0.0.1:{http.server_address[1]}/file"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield state
        http.shutdown()
        thread.join(5)


def source(
    *urls: str, content: bytes = CONTENT, name: str = "file", unpack: bool = False
) -> Source:
    proof = hashlib.md5(content, usedforsecurity=False).hexdigest()
    remote = Remote(name, proof, urls, unpack)
    return replace(
        SOURCES["mnist"], name="tiny", files=("file",), folders=("tiny/inside",), remotes=(remote,)
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_downloaded_and_reported(server: Server, tmp_path: Path) -> None:
    seen = []
    folder = fetch(source(server.url), tmp_path, lambda *state: seen.append(state))
    assert (folder / "file").read_bytes() == CONTENT
    assert names(tmp_path) == ["file"]
    assert seen[-1] == ("file", len(CONTENT), len(CONTENT))


def test_what_is_there_is_not_downloaded_again(server: Server, tmp_path: Path) -> None:
    fetch(source(server.url), tmp_path, None)
    fetch(source(server.url), tmp_path, None)
    assert len(server.asked) == 1


def test_an_interrupted_transfer_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.breaks = 1
    fetch(source(server.url), tmp_path, None)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == [None, f"bytes={len(CONTENT) // 2}-"]


def test_a_transfer_that_keeps_breaking_is_resumed_by_the_next_call(
    server: Server, tmp_path: Path
) -> None:
    server.breaks = 3
    with pytest.raises(DownloadError, match=r"the connection ended after \d+ of 1024000 bytes"):
        fetch(source(server.url), tmp_path, None)
    assert names(tmp_path) == ["file.part"]
    fetch(source(server.url), tmp_path, None)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked[-1] == f"bytes={len(CONTENT) * 7 // 8}-"


@pytest.mark.parametrize("packed", [False, True])
def test_two_downloads_at_once_are_one(server: Server, tmp_path: Path, packed: bool) -> None:
    wanted = source(server.url)
    if packed:
        with io.BytesIO() as archive:
            with zipfile.ZipFile(archive, "w") as bundle:
                bundle.writestr("file", CONTENT)
            server.content = archive.getvalue()
        wanted = source(server.url, content=server.content, name="file.zip", unpack=True)
    wanted = replace(wanted, read=lambda folder: (folder / "file").read_bytes())
    both = Barrier(2)

    def download(_: int) -> Path:
        both.wait(5)
        return fetch(wanted, tmp_path, None)

    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(download, range(2))] == [tmp_path, tmp_path]
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert names(tmp_path) == ["file"] and len(server.asked) == 1


def test_a_server_without_ranges_sends_everything_again(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    fetch(source(server.url), tmp_path, None)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_part_that_is_whole_already_is_only_checked(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT)
    fetch(source(server.url), tmp_path, None)
    assert names(tmp_path) == ["file"]


def test_a_wrong_checksum_leaves_nothing_behind(server: Server, tmp_path: Path) -> None:
    server.content = b"something else"
    with pytest.raises(
        DownloadError, match=r"md5 is \w{32}, not \w{32}.*put file into .* by other"
    ):
        fetch(source(server.url), tmp_path, None)
    assert names(tmp_path) == []


def test_a_damaged_part_is_thrown_away_and_started_over(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(b"x" * 1000)
    fetch(source(server.url), tmp_path, None)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == ["bytes=1000-", None]


def test_a_refusal_is_reported_with_what_to_do_offline(server: Server, tmp_path: Path) -> None:
    server.status = 404
    with pytest.raises(DownloadError, match=r"answered 404 Not Found\); try again later, or put"):
        fetch(source(server.url), tmp_path, None)
    assert len(server.asked) == 1


def test_the_next_address_is_tried(server: Server, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{closed.getsockname()[1]}/file"
        fetch(source(dead, server.url), tmp_path, None)
        assert (tmp_path / "file").exists()
        (tmp_path / "file").unlink()
        with pytest.raises(DownloadError, match="refused"):
            fetch(source(dead), tmp_path, None)
    assert names(tmp_path) == []


def tar(*members: tuple[str, bytes], link: str | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as bundle:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            bundle.addfile(info, io.BytesIO(content))
        if link is not None:
            info = tarfile.TarInfo("link")
            info.type, info.linkname = tarfile.SYMTYPE, link
            bundle.addfile(info)
    return buffer.getvalue()


def zipped(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        for name, content in members:
            bundle.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_an_archive_is_unpacked_and_removed(server: Server, tmp_path: Path, kind: str) -> None:
    pack = tar if kind == "tar.gz" else zipped
    server.content = pack(("inside/file", b"data"))
    made = source(server.url, content=server.content, name=f"all.{kind}", unpack=True)
    assert fetch(made, tmp_path, None) == tmp_path / "inside"
    assert (tmp_path / "inside" / "file").read_bytes() == b"data"
    assert names(tmp_path) == ["inside"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("evil.tar.gz", tar(("../outside", b"x"))),
        ("evil.tar.gz", tar(link="/etc/passwd")),
        ("evil.zip", zipped(("../outside", b"x"))),
        ("evil.zip", zipped(("/tmp/outside-of-everything", b"x"))),
        ("evil.zip", b"no archive"),
        ("evil.tar.gz", b"no archive"),
    ],
)
def test_an_archive_that_would_leave_its_folder_is_refused(
    tmp_path: Path, name: str, content: bytes
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / name).write_bytes(content)
    with pytest.raises(DownloadError, match=r"cannot be unpacked .*; delete it"):
        unpack(folder / name, folder)
    assert names(folder) == [name]
    assert names(tmp_path) == ["folder"]


def test_an_archive_without_the_files_is_reported(server: Server, tmp_path: Path) -> None:
    server.content = zipped(("other/file", b"data"))
    made = source(server.url, content=server.content, name="all.zip", unpack=True)
    with pytest.raises(DownloadError, match="lacks file; put them into"):
        fetch(made, tmp_path, None)


def test_sets_without_a_download_say_how_to_make_them() -> None:
    with pytest.raises(
        DownloadError, match=r"no official download; make it with `git clone .*leaf"
    ):
        get("femnist")
    with pytest.raises(
        DownloadError, match=r"data/shakespeare && ./preprocess.sh .*put train, test"
    ):
        get("shakespeare")


def test_every_other_set_has_addresses_and_checksums() -> None:
    for made in SOURCES.values():
        assert made.embedded or made.recipe or made.remotes
        for remote in made.remotes:
            assert len(remote.md5) == 32
            assert all(url.startswith("http") for url in remote.urls)


def test_the_bar_is_quiet_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    bar("file", 10, 100)
    assert capsys.readouterr().err == ""
    bar("file", 100, 100)
    assert capsys.readouterr().err == "file  100 %  0.0 of 0.0 MB\n"


def test_a_damaged_set_is_downloaded_again_and_a_whole_one_is_not(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(folder: Path) -> Any:
        if (folder / "file").read_bytes() != CONTENT:
            raise ValueError("damaged")

    monkeypatch.setenv("GOSSAMER_DATA", str(tmp_path))
    place = tmp_path / "tiny" / "inside"
    place.mkdir(parents=True)
    (place / "file").write_bytes(CONTENT[:-1])
    known = replace(source(server.url), read=read)
    assert fetch(known, progress=None) == place and (place / "file").read_bytes() == CONTENT
    assert fetch(known, progress=None) == place and len(server.asked) == 1
