"""The engineer's tutorial, with a server and two nodes that are processes of their own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from transcripts import ROOT, blocks, check, perform, run

PAGE = ROOT / "docs" / "tutorials" / "flower.md"
LIMIT = 900.0


def free_ports(count: int) -> list[str]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [str(each.getsockname()[1]) for each in sockets]


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


@pytest.mark.slow
def test_three_processes_end_with_the_bits_of_a_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("flwr", reason="needs Flower: pip install 'gossamer[flower]'")
    monkeypatch.chdir(tmp_path)
    ports = dict(zip(("serve", "node 0", "node 1"), free_ports(3), strict=True))
    processes: list[subprocess.Popen[bytes]] = []
    told = ""
    with ExitStack() as stack:
        for block in blocks(PAGE):
            if block.language == "text":
                check(block.text, told)
                continue
            if block.language == "python":
                capsys.readouterr()
                perform(block.text, PAGE)
                continue
            for words in block.commands:
                if words[1] not in ("serve", "join"):
                    if processes:  # the nodes are there, so the server will end
                        assert processes[0].wait(LIMIT) == 0, (tmp_path / "0.log").read_text()
                    code, told = run(words, capsys)
                    assert code == 0, told
                    continue
                own = "serve" if words[1] == "serve" else f"node {words[words.index('--node') + 1]}"
                words = [word.replace("9093", ports["serve"]) for word in words]
                command = [sys.executable, "-m", "gossamer", *words[1:], "--port", ports[own]]
                log = stack.enter_context(Path(f"{len(processes)}.log").open("wb"))
                process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
                stack.callback(end, process)
                processes.append(process)
        lines = capsys.readouterr().out.splitlines()
    assert len(processes) == 3
    hashes = [line.split()[-1] for line in lines if line.startswith(("study/run", "runs/sim"))]
    assert len(hashes) == 2 and len(set(hashes)) == 1
